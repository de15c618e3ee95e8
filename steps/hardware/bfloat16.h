/// @file
/// BF16 storage and its conversions on the GPU (ISA "Alternate floating point data formats"). They need sm_80.
#pragma once

#include <type_traits>

#include "half.h"

inline namespace gpu {

/// The upper half of a float: 1 sign, 8 exponent and 7 mantissa bits.
struct bfloat16 {
  uint16_t bits;
};

/// Two bfloat16 in a register, `low` in bits 0..15, each the nearest, ties to even.
/// PTX cvt.rn.bf16x2.f32, whose first source is the upper half.
__device__ __forceinline__ uint32_t pack_bfloat16s(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Two numbers of type T, half or bfloat16: pack_halves() or pack_bfloat16s().
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, half>) return pack_halves(low, high);
  else return pack_bfloat16s(low, high);
}

}  // namespace gpu
