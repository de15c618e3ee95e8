# The exercises: compiles some 25 kernels one after another.
flash_test(test_exercises 300 test_exercises.cpp course_lib)
add_dependencies(test_exercises course)  # and with it the steps
