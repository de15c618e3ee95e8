# What every step's CMakeLists.txt includes: the toolchain's settings, the libraries that a step needs, and the
# function step(). A step becomes one shared library a backend, <step>.simulated.so and (with CUDA) <step>.gpu.so.
include_guard(GLOBAL)

set(FLASH_ROOT ${CMAKE_CURRENT_LIST_DIR}/..)
cmake_path(NORMAL_PATH FLASH_ROOT)
string(REGEX REPLACE "/$" "" FLASH_ROOT ${FLASH_ROOT})

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(CMAKE_CXX_FLAGS MATCHES "fast-math|Ofast")
  message(FATAL_ERROR "The reference and its comparison need IEEE arithmetic: build without -ffast-math and -Ofast.")
endif()
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Werror>)

# CUDA: FLASH_CUDA=ON needs the toolkit, OFF ignores it. Never "native": that fails where no GPU is.
option(FLASH_CUDA "Build the steps for the GPU too" OFF)
if(FLASH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 90)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "FLASH_CUDA is ON, but no nvcc was found. Install the CUDA Toolkit 13.0 or newer, or use the cpu preset.")
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    message(FATAL_ERROR "nvcc is ${CMAKE_CUDA_COMPILER_VERSION}; the steps need 13.0 or newer. Use the cpu preset, or update the toolkit.")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know it yet
  endif()
endif()

# All programs and libraries of a build lie together, so that the program finds the steps beside itself.
set(FLASH_BIN ${CMAKE_BINARY_DIR}/bin)

# How a unit that includes the simulated hardware/ is compiled: its plain loads and stores call the simulator.
# DWARF 4, because in DWARF 5 addr2line of binutils 2.40 names the including file instead of the included one.
set(FLASH_HOOKS -O1 -gdwarf-4 -fsanitize=thread,bounds -fno-strict-aliasing -fstack-clash-protection
                -fvisibility=hidden -fvisibility-inlines-hidden -Wno-unknown-pragmas -Wno-tsan -Wno-attributes -Wno-psabi)

# A library of one kernel file, for one of the two machines. A step, named by its namespace, gets the C
# interface too; a module of the tests (NAMESPACE "") has none. FOLDER of FLASH_BIN receives it. It exports
# its flash_* functions alone: code with hooks and code without must not be exchanged for each other.
function(flash_kernel_library target extension source namespace folder)
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}.${extension})
  set(content "#include \"${source}\"\n")
  if(namespace)
    string(APPEND content "#include <steps/course/step_interface_body.h>\n")
  endif()
  file(GENERATE OUTPUT ${unit} CONTENT "${content}")
  add_library(${target} SHARED ${unit})
  if(namespace)
    target_compile_definitions(${target} PRIVATE STEP=${namespace})
  endif()
  target_link_options(${target} PRIVATE LINKER:--version-script=${FLASH_ROOT}/steps/exports.map LINKER:-z,defs)
  set_target_properties(${target} PROPERTIES PREFIX "" LINK_DEPENDS ${FLASH_ROOT}/steps/exports.map
                        LIBRARY_OUTPUT_DIRECTORY ${FLASH_BIN}/${folder} BUILD_RPATH "$ORIGIN/..")
endfunction()

# flash_simulated_library(NAME SOURCE NAMESPACE FOLDER): a kernel file for the simulator.
function(flash_simulated_library name source namespace folder)
  flash_kernel_library(${name}.simulated cpp ${source} "${namespace}" ${folder})
  target_compile_options(${name}.simulated PRIVATE ${FLASH_HOOKS})
  target_include_directories(${name}.simulated PRIVATE ${FLASH_ROOT}/reference_cpu/simulator ${FLASH_ROOT})
  target_link_libraries(${name}.simulated PRIVATE simulator reference)
endfunction()

# flash_gpu_library(NAME SOURCE NAMESPACE FOLDER ARCH [SPILLS]): the same file for the GPU. ARCH is the least
# architecture; its PTX runs on newer GPUs, and Hopper gets machine code. "90a" code runs on Hopper alone. SPILLS bytes of
# registers may go to local memory, none unless it is said.
function(flash_gpu_library name source namespace folder arch)
  set(spills 0 ${ARGN})
  list(GET spills -1 spills)
  flash_kernel_library(${name}.gpu cu ${source} "${namespace}" ${folder})
  if(arch STREQUAL "90a")
    set(architectures 90a)
  else()
    set(architectures ${arch}-virtual 90-real)
  endif()
  target_compile_options(${name}.gpu PRIVATE -lineinfo -Xptxas=-v -Xcompiler=-fvisibility=hidden,-Wall,-Wextra,-Werror)
  target_include_directories(${name}.gpu PRIVATE ${FLASH_ROOT}/steps ${FLASH_ROOT})
  target_link_libraries(${name}.gpu PRIVATE reference)
  set_target_properties(${name}.gpu PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_VISIBILITY_PRESET hidden)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")  # waits end in a trap instead of hanging; but that makes ptxas serialize wgmma
    target_compile_definitions(${name}.gpu PRIVATE FLASH_BOUNDED_WAITS)
  else()
    set_target_properties(${name}.gpu PROPERTIES CUDA_COMPILER_LAUNCHER
                          "${CMAKE_COMMAND};-DSPILLS=${spills};-P;${FLASH_ROOT}/steps/ptxas_gate.cmake;--")
  endif()
endfunction()

# step(PREV <step or "-"> ARCH <75|80|90a> [SPILLS <bytes>] TITLE <one idea>): the step in this folder.
function(step)
  cmake_parse_arguments(arg "" "PREV;ARCH;SPILLS;TITLE" "" ${ARGN})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME name)
  string(SUBSTRING ${name} 0 2 number)
  flash_simulated_library(${name} ${CMAKE_CURRENT_SOURCE_DIR}/attention.cu step_${number} steps)
  add_dependencies(course ${name}.simulated)
  if(FLASH_CUDA)
    flash_gpu_library(${name} ${CMAKE_CURRENT_SOURCE_DIR}/attention.cu step_${number} steps ${arg_ARCH} ${arg_SPILLS})
    add_dependencies(course ${name}.gpu)
  endif()
  string(REGEX REPLACE "^-$" "" prev "${arg_PREV}")
  file(WRITE ${FLASH_BIN}/steps/${name}.json
       "{\"step\": \"${name}\", \"prev\": \"${prev}\", \"arch\": \"${arg_ARCH}\", \"title\": \"${arg_TITLE}\"}\n")
endfunction()

add_subdirectory(${FLASH_ROOT}/reference_cpu ${CMAKE_BINARY_DIR}/reference_cpu)
add_subdirectory(${FLASH_ROOT}/steps/course ${CMAKE_BINARY_DIR}/course)
