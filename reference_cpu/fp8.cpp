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
  const float leading = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) & 0x7f800000);  // 2^exponent, or 0
  return std::max(leading, std::ldexp(1.0f, least)) * std::ldexp(1.0f, -mantissa_bits);
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

float quantizing_factor(std::span<const float> x) {
  float amax = 0;
  for (float value : x)
    if (std::isfinite(value)) amax = std::max(amax, std::fabs(value));
  return amax == 0 ? 1 : largest_e4m3 / amax;
}

uint8_t quantized(float x, float factor) { return to_e4m3(std::isfinite(x) ? x * factor : NAN); }

float random_sign(int64_t column) {
  // Pi without its 3, 32 binary digits a word; column c takes bit c % 32 of word c / 32.
  constexpr uint32_t pi[8] = {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89};
  return pi[column / 32] >> column % 32 & 1 ? -1 : 1;
}

void rotate(std::span<float> row) {
  const size_t d = row.size();
  for (size_t c = 0; c < d; ++c) row[c] *= random_sign(int64_t(c));
  // H of 2n is (H H; H -H) of n, so log2(d) rounds of sums and differences do it.
  for (size_t n = 1; n < d; n *= 2)
    for (size_t c = 0; c < d; ++c)
      if ((c & n) == 0) {
        const float a = row[c], b = row[c + n];
        row[c] = a + b;
        row[c + n] = a - b;
      }
}

StoredHead quantize(std::span<const uint16_t> x, int64_t dim, Quantization quantization) {
  std::vector<float> values;
  values.reserve(x.size());
  for (uint16_t bits : x) values.push_back(from_half(bits));
  const size_t d = size_t(dim), rows = x.size() / d, share = quantization.blocks ? size_t(block_rows) : rows;
  if (quantization.hadamard)
    for (size_t r = 0; r < rows; ++r) rotate(std::span(values).subspan(r * d, d));
  StoredHead head;
  head.x.reserve(x.size());
  for (size_t first = 0; first < rows; first += share) {
    const size_t count = std::min(share, rows - first);
    const auto block = std::span(values).subspan(first * d, count * d);
    const float factor = quantizing_factor(block);
    for (float value : block) head.x.push_back(quantized(value, factor));
    head.descales.insert(head.descales.end(), count, 1 / factor / (quantization.hadamard ? std::sqrt(float(dim)) : 1));
  }
  return head;
}

std::vector<float> dequantized(std::span<const uint16_t> x, int64_t rows, int64_t dim, Quantization quantization) {
  std::vector<float> all;
  all.reserve(x.size());
  const size_t size = size_t(rows * dim);  // of a head
  for (size_t begin = 0; begin < x.size(); begin += size) {
    const StoredHead head = quantize(x.subspan(begin, size), dim, quantization);
    for (size_t i = 0; i < size; ++i) all.push_back(from_e4m3(head.x[i]) * head.descales[i / size_t(dim)]);
  }
  return all;
}

}  // namespace attention
