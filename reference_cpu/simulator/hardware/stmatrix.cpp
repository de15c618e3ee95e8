/// @file
#include "stmatrix.h"

inline namespace simulated {
namespace {

struct Request {
  half* row;
  const uint32_t* r;
  simulator::Site site;
};

void store(void* const* lanes, unsigned) {
  const int warp = simulator::thread_index() / 32;
  half* rows[32];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& request = *static_cast<const Request*>(lanes[lane]);
    rows[lane] = request.row;
    if (!simulator::is_shared(request.row))
      simulator::fail("address", "stmatrix writes shared memory only; a lane passed another address.", request.site);
    simulator::wrapped_write(request.row, 16, warp * 32 + lane, request.site);
  }
  for (int m = 0; m < 4; ++m) {
    const void* group[8];
    for (int i = 0; i < 8; ++i) group[i] = rows[8 * m + i];
    simulator::count_bank_conflicts(group, 8);
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t both = static_cast<const Request*>(lanes[lane])->r[m];
      half* pair = rows[8 * m + lane / 4] + 2 * (lane % 4);
      pair[0].bits = static_cast<uint16_t>(both);
      pair[1].bits = static_cast<uint16_t>(both >> 16);
    }
  }
}

}  // namespace

void stmatrix_x4(half* row, const uint32_t (&r)[4], const char* file, int line) {
  Request request{row, r, SIMULATOR_SITE};
  simulator::warp_collective("stmatrix.x4", 0xFFFFFFFFu, &request, store, SIMULATOR_SITE);
}

}  // namespace simulated
