/// @file
#include "fp8.h"

inline namespace simulated {
namespace {

// A format of one byte: its mantissa bits, the exponent of its least normal number, its largest finite code.
struct Format {
  int mantissa, least_exponent;
  uint32_t largest;
};
constexpr Format four_three = {3, -6, 0x7E}, five_two = {2, -14, 0x7B};

// The finite value of a code without sign. Subnormal numbers have the exponent of the least normal one, and no leading 1.
float magnitude_of(uint32_t code, Format f) {
  const int exponent = static_cast<int>(code >> f.mantissa);
  const auto leading = exponent > 0 ? 1u << f.mantissa : 0u;
  const auto significand = static_cast<float>((code & ((1u << f.mantissa) - 1)) | leading);
  return std::ldexp(significand, f.least_exponent - f.mantissa + std::max(exponent - 1, 0));
}

// The code of the nearest value, ties to even, at most the largest finite one.
uint32_t code_of(float value, Format f) {
  if (std::isnan(value)) return 0x7F;
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude >= magnitude_of(f.largest, f)) return sign | f.largest;
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), f.least_exponent) : f.least_exponent;
  // In units of the last place: 2^mantissa .. 2^(mantissa + 1) for normal numbers. nearbyint rounds ties to even. A carry
  // into the next power of two carries into the exponent of the code as well.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent)));
  const auto steps = static_cast<uint32_t>(exponent - f.least_exponent) << f.mantissa;
  return sign | std::min(steps + units, f.largest);
}

uint32_t pack(float a, float b, float c, float d, Format f) {
  return code_of(a, f) | code_of(b, f) << 8 | code_of(c, f) << 16 | code_of(d, f) << 24;
}

}  // namespace

float to_float(e4m3 x) {
  const uint32_t code = x.bits & 0x7Fu;
  const float magnitude = code == 0x7F ? NAN : magnitude_of(code, four_three);
  return x.bits & 0x80 ? -magnitude : magnitude;
}

float to_float(e5m2 x) { return to_float(half{static_cast<uint16_t>(x.bits << 8)}); }

uint32_t pack_e4m3(float a, float b, float c, float d) { return pack(a, b, c, d, four_three); }
uint32_t pack_e5m2(float a, float b, float c, float d) { return pack(a, b, c, d, five_two); }

uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t eight = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = selector >> (4 * i) & 7;
    result |= static_cast<uint32_t>(eight >> (8 * which) & 0xFF) << (8 * i);
  }
  return result;
}

}  // namespace simulated
