/// @file
/// What the module of simulator_kernels.cu exports.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Runs a kernel of simulator_kernels.cu on simulated memory.
/// @param right  1: the kernel as it should be, 0: with its fault
/// @return       null, or why the machine refused or abandoned it
const char* flash_test_launch(const char* kernel, int right, uint32_t* data, int words);

#ifdef __cplusplus
}
#endif
