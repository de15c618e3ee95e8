# The script ./learn, on a project of its own.
add_test(NAME learn_script COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_learn.sh ${FLASH_ROOT}/learn)
set_tests_properties(learn_script PROPERTIES TIMEOUT 120)
