/// @file
/// FP16 storage and its conversions on the GPU.
#pragma once

#include <cuda_fp16.h>

#include <cstring>

#include "simt.h"

inline namespace gpu {

/// The exact value of a half. PTX cvt.f32.f16.
__device__ __forceinline__ float to_float(half h) { return __half2float(h); }

/// The nearest half, ties to even; beyond 65519 infinity. PTX cvt.rn.f16.f32.
__device__ __forceinline__ half to_half(float value) { return __float2half_rn(value); }

/// Two halves in a register, `low` in bits 0..15. PTX cvt.rn.f16x2.f32 (before sm_80: two cvt).
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  uint32_t packed;
  const __half2 both = __floats2half2_rn(low, high);
  memcpy(&packed, &both, 4);
  return packed;
}

/// And back.
__device__ __forceinline__ float2 unpack_halves(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

}  // namespace gpu
