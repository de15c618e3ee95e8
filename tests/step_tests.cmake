# The steps themselves. Each is a test of its own, so that ctest runs them side by side.
find_package(Eigen3 REQUIRED)
add_executable(test_steps test_steps.cpp)
target_link_libraries(test_steps PRIVATE test_main course_lib Eigen3::Eigen)
target_compile_options(test_steps PRIVATE -O1)
set_target_properties(test_steps PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${FLASH_BIN}/tests)
add_dependencies(test_steps course)
file(GLOB folders RELATIVE ${FLASH_ROOT}/steps CONFIGURE_DEPENDS ${FLASH_ROOT}/steps/[0-9][0-9]_*)
foreach(step IN LISTS folders)
  string(SUBSTRING ${step} 0 2 number)
  add_test(NAME test_step_${number} COMMAND test_steps)
  set_tests_properties(test_step_${number} PROPERTIES TIMEOUT 300 ENVIRONMENT FLASH_TEST_STEPS=${number})
endforeach()
if(FLASH_CUDA)
  add_test(NAME test_steps_gpu COMMAND test_steps)
  set_tests_properties(test_steps_gpu PROPERTIES TIMEOUT 600 ENVIRONMENT FLASH_TEST_MACHINE=gpu SKIP_RETURN_CODE 77
                       LABELS gpu)
endif()

flash_test(test_mutants 400 test_mutants.cpp course_lib)
set_tests_properties(test_mutants PROPERTIES COST 100)  # the longest, so it begins first
add_dependencies(test_mutants course)

flash_test(test_ledger 120 test_ledger.cpp course_lib)
add_dependencies(test_ledger course)

# The generated blocks of README.md and the lessons hold what the simulator counts and docs/results measured.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND)
  add_test(NAME tables COMMAND ${Python3_EXECUTABLE} ${FLASH_ROOT}/docs/tables.py --course $<TARGET_FILE:course> --check)
else()
  add_test(NAME tables COMMAND sh -c "echo 'No python3: the tables are not compared.'; exit 77")
endif()
set_tests_properties(tables PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77)
