/// @file
#include "bfloat16.h"

inline namespace simulated {

static uint32_t bfloat16_bits(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t odd = bits >> 16 & 1;
  return (bits + 0x7FFFu + odd) >> 16;  // a carry into the exponent is right, to infinity too
}

uint32_t pack_bfloat16s(float low, float high) { return bfloat16_bits(low) | bfloat16_bits(high) << 16; }

}  // namespace simulated
