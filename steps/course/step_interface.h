/// @file
/// The C interface of a step. Every step is a shared library (one for the GPU, one for the simulator) that
/// exports these functions and nothing else, so that the `learn` program, a C program or Python's ctypes can
/// call it.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// attention::Problem for C.
typedef struct flash_problem {
  int64_t batch, heads, seq_q, seq_k, dim;
  int32_t causal;  ///< 0 or 1; bottom-right
  float scale;
  int32_t dtype;  ///< of Q, K, V and O; 0: FP16, 1: BF16
} flash_problem;

/// attention::Tensors for C. Pointers are device memory; FP16 and BF16 are 16-bit patterns.
typedef struct flash_tensors {
  const void *Q, *K, *V;
  void* O;
  float* LSE;
  void* workspace;
  uint64_t workspace_bytes;
  const float* descales;  ///< null, unless Q, K, V are what flash_quantized() says
} flash_tensors;

/// Bytes of scratch memory that the step wants for a problem.
/// @param error  receives a full sentence if the problem is refused
/// @return       the bytes, or -1 if refused
int64_t flash_workspace_bytes(const flash_problem* problem, char* error, int64_t error_bytes);

/// Runs the step. On the GPU it only enqueues work on `stream` (a cudaStream_t, 0 is the default stream);
/// simulated, it returns when the work is done and `stream` is ignored.
/// @return  0, or 1 with a full sentence in `error`
int32_t flash_attention(const flash_problem* problem, const flash_tensors* tensors, void* stream, char* error,
                        int64_t error_bytes);

/// Where in the workspace an FP8 step's last flash_attention() for this problem left Q, K and V in e4m3, and their descales:
/// replaces these four pointers. With them, flash_attention() starts with attention, without quantizing.
/// @return  0, or 1 with a full sentence in `error`
int32_t flash_quantized(const flash_problem* problem, flash_tensors* tensors, char* error, int64_t error_bytes);

/// What the step launches for this problem, for the lesson's table: one line a kernel,
/// "name registers=40 spill_bytes=0 static_shared=0 dynamic_shared=57600 threads=256 ctas_per_sm=1\n".
/// Valid after flash_attention(); simulated, registers, spills and CTAs per SM are -1.
const char* flash_kernels(void);

/// What the products multiply: "fp16", or "fp8" if the step quantizes Q, K and V first. Its answer is then that of
/// the quantized tensors. "fp8" alone is 37_fp8: one descale a head, P = 2^8 exp(S - m) with m the running maximum, l the
/// sum of P before it is rounded, O in one accumulator. Words behind it say what a step does otherwise, in any order:
///     blocks     a descale for every 128 rows of Q, K and V
///     hadamard   Q and K are rotated
///     two_level  each block of 128 keys has an accumulator of its own, which is added to O in float
///     rounded_l  l is the sum of the rounded P, through the same accumulator as O
///     slack      P = 2^4 exp(S - m), and m stays until a row of the warp's 16 exceeds it by more than 4 in log2
/// as in "fp8 blocks hadamard two_level rounded_l slack". What they mean exactly: attention::twins::Options (twins.h).
const char* flash_precision(void);

#ifdef __cplusplus
}
#endif
