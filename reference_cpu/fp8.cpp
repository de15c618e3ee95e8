/// @file
/// FP8 conversions and quantization.
#include "fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace attention {
namespace {

/// The distance between neighbours around `magnitude`, where numbers below 2^`least` are as far apart as there.
float spacing(float magnitude, int mantissa_bits, int least) {
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), least) : least;
  return std::ldexp(1.0f, exponent - mantissa_bits);
}

/// `value` rounded to a format's numbers, ties to even, and not beyond the largest. Division by a power of two is
/// exact, and nearbyint rounds to even.
float rounded(float value, int mantissa_bits, int least, float largest) {
  if (std::fabs(value) >= largest) return std::copysign(largest, value);
  const float step = spacing(std::fabs(value), mantissa_bits, least);
  return std::copysign(std::min(std::nearbyint(std::fabs(value) / step) * step, largest), value);
}

}  // namespace

float from_e4m3(uint8_t bits) {
  // Moved to the places of FP16's exponent and mantissa it is 2^8 too small: the biases are 7 and 15. NaN has none.
  if ((bits & 0x7f) == 0x7f) return std::copysign(NAN, bits & 0x80 ? -1.0f : 1.0f);
  return from_half(uint16_t((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * 0x1p8f;
}

uint8_t to_e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint16_t half = to_half(rounded(value, 3, -6, largest_e4m3) * 0x1p-8f);
  return uint8_t((half >> 8 & 0x80) | (half >> 7 & 0x7f));
}

float from_e5m2(uint8_t bits) { return from_half(uint16_t(bits << 8)); }

uint8_t to_e5m2(float value) {
  if (std::isnan(value)) return 0x7f;
  return uint8_t(to_half(rounded(value, 2, -14, 57344)) >> 8);
}

float quantizing_factor(std::span<const uint16_t> x) {
  float amax = 0;
  for (uint16_t bits : x)
    if (float magnitude = std::fabs(from_half(bits)); std::isfinite(magnitude)) amax = std::max(amax, magnitude);
  return amax == 0 ? 1 : largest_e4m3 / amax;
}

uint8_t quantized(float x, float factor) { return to_e4m3(std::isfinite(x) ? x * factor : NAN); }

std::vector<float> dequantized(std::span<const uint16_t> x, int64_t size) {
  std::vector<float> all;
  all.reserve(x.size());
  for (size_t begin = 0; begin < x.size(); begin += size_t(size)) {
    const auto head = x.subspan(begin, size_t(size));
    const float factor = quantizing_factor(head), descale = 1 / factor;
    for (uint16_t bits : head) all.push_back(from_e4m3(quantized(from_half(bits), factor)) * descale);
  }
  return all;
}

}  // namespace attention
