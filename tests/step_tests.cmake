# The steps. What is tested of each is a test of its own, so that ctest runs them side by side.
find_package(Eigen3 REQUIRED)
file(GLOB folders RELATIVE ${FLASH_ROOT}/steps CONFIGURE_DEPENDS ${FLASH_ROOT}/steps/[0-9][0-9]_*)

# flash_step_tests(PROGRAM SECONDS ARGUMENTS...): PROGRAM_NN runs the program for step NN alone.
function(flash_step_tests program seconds)
  foreach(step IN LISTS folders)
    string(SUBSTRING ${step} 0 2 number)
    add_test(NAME ${program}_${number} COMMAND ${program} ${ARGN})
    set_tests_properties(${program}_${number} PROPERTIES TIMEOUT ${seconds} ENVIRONMENT FLASH_TEST_STEPS=${number})
  endforeach()
endfunction()

foreach(program test_steps test_mutants test_exercises)
  add_executable(${program} ${program}.cpp)
  target_link_libraries(${program} PRIVATE test_main course_lib Eigen3::Eigen)
  target_compile_options(${program} PRIVATE -O1)
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${FLASH_BIN}/tests)
  add_dependencies(${program} course)
endforeach()
flash_step_tests(test_steps 600)
flash_step_tests(test_mutants 1200)
# The exercises of a step, and what the desk does apart from them.
set(of_a_step "*numbers are those*,*kernel of every step*,*no unsolved file*")
flash_step_tests(test_exercises 600 --test-case=${of_a_step})
add_test(NAME test_exercises COMMAND test_exercises --test-case-exclude=${of_a_step})
set_tests_properties(test_exercises PROPERTIES TIMEOUT 300)

if(FLASH_CUDA)
  add_test(NAME test_steps_gpu COMMAND test_steps)
  set_tests_properties(test_steps_gpu PROPERTIES TIMEOUT 600 ENVIRONMENT FLASH_TEST_MACHINE=gpu SKIP_RETURN_CODE 77
                       LABELS gpu)
endif()

flash_test(test_ledger 120 test_ledger.cpp course_lib)
add_dependencies(test_ledger course)

# The generated blocks of README.md and the lessons, and the charts, hold what the simulator counts and docs/results measured.
add_test(NAME tables COMMAND ${python} ${FLASH_ROOT}/docs/tables.py --course $<TARGET_FILE:course> --check)
add_test(NAME charts COMMAND ${python} ${FLASH_ROOT}/docs/charts.py --check)
set_tests_properties(tables charts PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
