# The latency model, its command, and the figures of the lessons.
flash_test(test_timeline 120 test_timeline.cpp course_lib)
target_compile_definitions(test_timeline PRIVATE FLASH_COURSE="$<TARGET_FILE:course>"
                           FLASH_FIGURES="${FLASH_ROOT}/docs/figures")
add_dependencies(test_timeline course)  # and with it the steps
