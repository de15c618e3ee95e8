# The wrappers that need Hopper, on each machine.
flash_simulated_library(hopper_kernels ${CMAKE_CURRENT_SOURCE_DIR}/hopper_kernels.cu "" tests)
flash_test(test_hopper_simulated 60 test_hopper.cpp hopper_kernels.simulated)
if(FLASH_CUDA)
  flash_gpu_library(hopper_kernels ${CMAKE_CURRENT_SOURCE_DIR}/hopper_kernels.cu "" tests 90a)
  flash_test(test_hopper_gpu 60 test_hopper.cpp hopper_kernels.gpu)
  set_tests_properties(test_hopper_gpu PROPERTIES LABELS gpu)
endif()

# The simulated GPU's judgement of kernels that use them wrongly.
flash_simulated_library(hopper_faults ${CMAKE_CURRENT_SOURCE_DIR}/hopper_faults.cu "" tests)
flash_test(test_hopper_faults 60 test_hopper_faults.cpp hopper_faults.simulated simulator)
target_compile_definitions(test_hopper_faults PRIVATE FLASH_TEST_KERNELS="${CMAKE_CURRENT_SOURCE_DIR}/hopper_faults.cu")
add_dependencies(test_symbols hopper_kernels.simulated hopper_faults.simulated)
