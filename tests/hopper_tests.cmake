# The wrappers that need Hopper, on each machine.
flash_simulated_library(hopper_kernels ${CMAKE_CURRENT_SOURCE_DIR}/hopper_kernels.cu "" tests)
flash_test(test_hopper_simulated 60 test_hopper.cpp hopper_kernels.simulated)
if(FLASH_CUDA)
  flash_gpu_library(hopper_kernels ${CMAKE_CURRENT_SOURCE_DIR}/hopper_kernels.cu "" tests 90a)
  flash_test(test_hopper_gpu 60 test_hopper.cpp hopper_kernels.gpu)
  set_tests_properties(test_hopper_gpu PROPERTIES LABELS gpu)
endif()
