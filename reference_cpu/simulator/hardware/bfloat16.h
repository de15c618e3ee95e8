/// @file
/// BF16 storage and its conversions (ISA "Alternate floating point data formats"). The GPU needs sm_80 for them.
#pragma once

#include <type_traits>

#include "half.h"

inline namespace simulated {

/// The upper half of a float: 1 sign, 8 exponent and 7 mantissa bits.
struct bfloat16 {
  uint16_t bits;
};

/// Two bfloat16 in a register, `low` in bits 0..15, each the nearest, ties to even.
/// PTX cvt.rn.bf16x2.f32, whose first source is the upper half.
uint32_t pack_bfloat16s(float low, float high);

/// Two numbers of type T, half or bfloat16: pack_halves() or pack_bfloat16s().
template <typename T>
__forceinline__ uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<T, half> || std::is_same_v<T, bfloat16>);
  return std::is_same_v<T, half> ? pack_halves(low, high) : pack_bfloat16s(low, high);
}

}  // namespace simulated
