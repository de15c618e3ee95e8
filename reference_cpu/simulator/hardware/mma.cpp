/// @file
/// The 32 lanes' parts are put together to whole matrices, multiplied, and handed back.
#include "mma.h"

#include "../timeline.h"
#include "half.h"

inline namespace simulated {
namespace {

struct Parts {
  float* c;
  const uint32_t* a;
  uint32_t b0, b1;
};

// Two neighbours in k.
void unpack(uint32_t halves, float& low, float& high) {
  low = to_float({static_cast<uint16_t>(halves)});
  high = to_float({static_cast<uint16_t>(halves >> 16)});
}

void multiply(void* const* lanes, unsigned) {
  float A[16][16], B[16][8], C[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& p = *static_cast<const Parts*>(lanes[lane]);
    const int g = lane / 4, q = lane % 4;
    unpack(p.a[0], A[g][2 * q], A[g][2 * q + 1]);
    unpack(p.a[1], A[g + 8][2 * q], A[g + 8][2 * q + 1]);
    unpack(p.a[2], A[g][2 * q + 8], A[g][2 * q + 9]);
    unpack(p.a[3], A[g + 8][2 * q + 8], A[g + 8][2 * q + 9]);
    unpack(p.b0, B[2 * q][g], B[2 * q + 1][g]);
    unpack(p.b1, B[2 * q + 8][g], B[2 * q + 9][g]);
    for (int i = 0; i < 4; ++i) C[g + 8 * (i / 2)][2 * q + i % 2] = p.c[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) C[row][column] += A[row][k] * B[k][column];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& p = *static_cast<const Parts*>(lanes[lane]);
    const int g = lane / 4, q = lane % 4;
    for (int i = 0; i < 4; ++i) p.c[i] = C[g + 8 * (i / 2)][2 * q + i % 2];
  }
  simulator::count(simulator::Count::tensor_flops, 2 * 16 * 8 * 16);
}

}  // namespace

void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const char* file, int line) {
  Parts parts{c, a, b0, b1};
  simulator::warp_collective("mma.sync", 0xFFFFFFFFu, &parts, multiply, SIMULATOR_SITE);
  if (simulator::recording) simulator::note_product(2 * 16 * 8 * 16, nullptr, 0);
}

}  // namespace simulated
