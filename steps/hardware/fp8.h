/// @file
/// FP8 storage and its conversions on the GPU (ISA "Alternate floating point data formats"). One needs sm_89.
#pragma once

#include "half.h"

inline namespace gpu {

/// 1 sign, 4 exponent and 3 mantissa bits, bias 7: up to 448, no infinity, NaN is 0x7F and 0xFF.
struct e4m3 {
  uint8_t bits;
};
/// 1 sign, 5 exponent and 2 mantissa bits, bias 15: the upper byte of a half; up to 57344, with infinity and NaN.
struct e5m2 {
  uint8_t bits;
};

/// The exact value. PTX cvt.rn.f16x2.e4m3x2, cvt.f32.f16.
__device__ __forceinline__ float to_float(e4m3 x) {
  uint32_t both;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(static_cast<uint16_t>(x.bits)));
  return unpack_halves(both).x;
}

/// The exact value. PTX cvt.f32.f16 of the byte in the upper half of a half.
__device__ __forceinline__ float to_float(e5m2 x) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(x.bits << 8)));
}

/// Four e4m3 in a register, `a` in the lowest byte, each the nearest, ties to even; beyond 448, infinity included, +-448;
/// NaN stays NaN. PTX cvt.rn.satfinite.e4m3x2.f32, whose first source is the upper byte.
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{ .reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high}; }"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

/// The same in e5m2, whose largest is 57344. PTX cvt.rn.satfinite.e5m2x2.f32.
__device__ __forceinline__ uint32_t pack_e5m2(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{ .reg .b16 low, high;\n"
      "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1; cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high}; }"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

/// Four bytes chosen from eight: those of `a` are 0..3, lowest first, those of `b` 4..7; the hexadecimal digit i of
/// `selector`, lowest first, names byte i of the result. Digits above 7 are not for use. PTX prmt.b32.
__device__ __forceinline__ uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

}  // namespace gpu
