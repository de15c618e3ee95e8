# The program behind ./learn: its parts, and its command line.

# A step that misbehaves as the problem asks.
flash_simulated_library(faulty_step ${CMAKE_CURRENT_SOURCE_DIR}/faulty_step.cu faulty_step tests)
flash_test(test_course 120 test_course.cpp course_lib)
target_compile_definitions(test_course PRIVATE FLASH_FAULTY_STEP="$<TARGET_FILE:faulty_step.simulated>")
add_dependencies(test_course faulty_step.simulated course)

flash_test(test_course_program 240 test_course_program.cpp course_lib)
target_compile_definitions(test_course_program PRIVATE FLASH_COURSE="$<TARGET_FILE:course>")
add_dependencies(test_course_program course)

# The program on a machine with a GPU, whose every part but the GPU is real.
add_library(fake_gpu SHARED fake_gpu.cpp)
target_include_directories(fake_gpu PRIVATE ${FLASH_ROOT})
set_target_properties(fake_gpu PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${FLASH_BIN}/tests)
flash_test(test_course_gpu 120 test_course_gpu.cpp course_lib)
target_compile_definitions(test_course_gpu PRIVATE FLASH_COURSE="$<TARGET_FILE:course>"
                           FLASH_FAKE_GPU="$<TARGET_FILE:fake_gpu>"
                           FLASH_FAULTY_STEP="$<TARGET_FILE:faulty_step.simulated>")
add_dependencies(test_course_gpu course fake_gpu faulty_step.simulated)
