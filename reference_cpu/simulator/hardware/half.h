/// @file
/// FP16 storage (IEEE 754 binary16: 1 sign, 5 exponent and 10 mantissa bits) and its conversions.
#pragma once

#include "simt.h"

inline namespace simulated {

struct half {
  uint16_t bits;
};

/// The exact value of a half. PTX cvt.f32.f16 (ISA "Data Movement and Conversion Instructions: cvt").
__forceinline__ float to_float(half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(h.bits & 0x7FFFu) << 13;
  // Moving the exponent's bias from 15 to 127 is a multiplication by 2^112, right for subnormals too.
  uint32_t magnitude = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);
  if (rest >= 0x0F800000u) magnitude = rest | 0x7F800000u;  // infinity and NaN
  return std::bit_cast<float>(magnitude | sign);
}

/// The bits of to_half(value).
uint16_t half_bits(float value);
/// The nearest half, ties to even; beyond 65519 infinity. PTX cvt.rn.f16.f32.
__forceinline__ half to_half(float value) {
  half h;
  h.bits = half_bits(value);  // an assignment: the hooks do not see a struct that a call returns into memory
  return h;
}

/// Two halves in a register, `low` in bits 0..15. PTX cvt.rn.f16x2.f32 (whose first source is the upper half).
uint32_t pack_halves(float low, float high);

/// And back.
__forceinline__ float2 unpack_halves(uint32_t packed) {
  return {to_float(half{static_cast<uint16_t>(packed)}), to_float(half{static_cast<uint16_t>(packed >> 16)})};
}

}  // namespace simulated
