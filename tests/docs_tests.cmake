# What the lessons and pages print, and the site that is made of them. docs/CMakeLists.txt has the test that builds it.
flash_simulated_library(primer_kernels ${CMAKE_CURRENT_SOURCE_DIR}/primer_kernels.cu "" tests)
flash_test(test_primer 60 test_primer.cpp primer_kernels.simulated)

set(site ${CMAKE_BINARY_DIR}/docs)
add_test(NAME commands COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/test_prose.py commands $<TARGET_FILE:course>)
add_test(NAME snippets COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/test_prose.py snippets)
add_test(NAME site COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/test_site.py ${site}/xml)
add_test(NAME browser_sees_faults COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/test_browser.py --self-test)
add_test(NAME browser COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/test_browser.py ${site}/html)
set_tests_properties(commands snippets site browser_sees_faults PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
set_tests_properties(browser PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 PROCESSORS 2)
set_tests_properties(browser browser_sees_faults PROPERTIES LABELS browser)
set_tests_properties(site browser PROPERTIES FIXTURES_REQUIRED site)
