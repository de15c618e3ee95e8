/// @file
/// FP8 numbers, and tensors as the FP8 steps quantize them.
#pragma once

#include "attention.h"

namespace attention {

/// e4m3 bit pattern to float, exactly: 1 sign, 4 exponent and 3 mantissa bits, bias 7; 0x7F and 0xFF are NaN, and
/// there is no infinity.
float from_e4m3(uint8_t bits);
/// float to the nearest e4m3 bit pattern, ties to even; beyond 448, infinity included, +-448; NaN gives NaN.
uint8_t to_e4m3(float value);

/// e5m2 bit pattern to float, exactly: the upper byte of an FP16 number.
float from_e5m2(uint8_t bits);
/// float to the nearest e5m2 bit pattern, ties to even; beyond 57344, infinity included, +-57344; NaN gives NaN.
uint8_t to_e5m2(float value);

constexpr float largest_e4m3 = 448;

/// What a head is multiplied by before it is stored: 448 / amax, with amax the largest finite magnitude of `x`; 1 if
/// amax is 0. So the largest number is stored as 448. The descale, which undoes it, is 1 / factor.
float quantizing_factor(std::span<const uint16_t> x);

/// An FP16 number as it is stored: x * factor, in float, and that in e4m3. NaN and infinity give NaN. A kernel that
/// computes the factor in another way gets another neighbour where the product is a tie.
uint8_t quantized(float x, float factor);

/// Each head of a tensor quantized with a factor of its own, and multiplied by its descale again.
/// @param x     [heads, rows, dim] FP16 bit patterns
/// @param size  elements a head
std::vector<float> dequantized(std::span<const uint16_t> x, int64_t size);

}  // namespace attention
