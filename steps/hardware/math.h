/// @file
/// The arithmetic that the ledger counts: one instruction each.
#pragma once

#include "simt.h"

inline namespace gpu {

/// a * b + c with one rounding. SASS FFMA; 2 FLOP. PTX fma.rn.f32.
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }

/// 2^x, to about 2 units in the last place, subnormal results flushed to zero. PTX ex2.approx.ftz.f32; SASS MUFU.EX2.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1 / x, to about 1 unit in the last place, subnormals flushed to zero. PTX rcp.approx.ftz.f32; SASS MUFU.RCP.
__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// x * factor: a multiplication that carries an unfinished result (an element of O) to a new maximum. PTX mul.f32.
__device__ __forceinline__ float rescale(float x, float factor) { return x * factor; }

}  // namespace gpu
