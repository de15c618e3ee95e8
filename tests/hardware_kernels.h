/// @file
/// What a module of hardware_kernels.cu exports. There are two: one runs on the GPU, one on the simulated
/// GPU.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// @return  why this module's machine cannot run here, or null
const char* flash_test_unavailable(void);

/// Runs a kernel, named as in hardware_kernels.cu, on arrays of 32-bit words in host memory. The simulated
/// machine runs it in every schedule, and all must agree.
/// @param in   what the kernel reads
/// @param out  in: what the memory holds before; out: after
/// @return     null, or what went wrong in a sentence
const char* flash_test_run(const char* kernel, const uint32_t* in, int in_words, uint32_t* out,
                           int out_words);

#ifdef __cplusplus
}
#endif
