# What the exercises need of the build: how a step is compiled for the simulator, for the students' kernels,
# and Eigen for the twins.
find_package(Eigen3 REQUIRED)
string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
list(APPEND flags -std=c++20 -fPIC ${FLASH_HOOKS})
list(JOIN flags "|" flags)
target_compile_definitions(course_lib PRIVATE FLASH_KERNEL_FLAGS="${flags}"
                           FLASH_REFERENCE="$<TARGET_FILE:reference>" FLASH_SIMULATOR="$<TARGET_FILE:simulator>")
target_link_libraries(course_lib PRIVATE Eigen3::Eigen)
