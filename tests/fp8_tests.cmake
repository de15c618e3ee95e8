# The wrappers that know FP8, on each machine.
flash_simulated_library(fp8_kernels ${CMAKE_CURRENT_SOURCE_DIR}/fp8_kernels.cu "" tests)
flash_test(test_fp8_simulated 120 test_fp8.cpp fp8_kernels.simulated)
target_compile_definitions(test_fp8_simulated PRIVATE FLASH_TEST_SIMULATED)
if(FLASH_CUDA)
  flash_gpu_library(fp8_kernels ${CMAKE_CURRENT_SOURCE_DIR}/fp8_kernels.cu "" tests 90a)
  flash_test(test_fp8_gpu 60 test_fp8.cpp fp8_kernels.gpu)
  set_tests_properties(test_fp8_gpu PROPERTIES LABELS gpu)
endif()
add_dependencies(test_symbols fp8_kernels.simulated)

# The answers that FP8 steps are held to.
find_package(Eigen3 REQUIRED)
flash_test(test_fp8_answers 120 test_fp8_answers.cpp course_lib Eigen3::Eigen)

# The steps in FP8, on each machine.
flash_test(test_fp8_steps 240 test_fp8_steps.cpp course_lib)
add_dependencies(test_fp8_steps course)
if(FLASH_CUDA)
  add_test(NAME test_fp8_steps_gpu COMMAND test_fp8_steps)
  set_tests_properties(test_fp8_steps_gpu PROPERTIES TIMEOUT 120 ENVIRONMENT FLASH_TEST_MACHINE=gpu SKIP_RETURN_CODE 77
                       LABELS gpu)
endif()
