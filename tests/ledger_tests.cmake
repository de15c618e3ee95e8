# What an idea moves or saves, as equalities of the ledger.
flash_test(test_ledger_warps 120 test_ledger_warps.cpp course_lib)
add_dependencies(test_ledger_warps course)  # and with it the steps
