/// @file
#include "ldmatrix.h"

inline namespace simulated {
namespace {

struct Request {
  uint32_t* r;
  const half* row;
  simulator::Site site;
};

template <bool transposed>
void load(void* const* lanes, unsigned) {
  const int warp = simulator::thread_index() / 32;
  const half* rows[32];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& request = *static_cast<const Request*>(lanes[lane]);
    rows[lane] = request.row;
    if (!simulator::is_shared(request.row))
      simulator::fail("address", "ldmatrix reads shared memory only; a lane passed another address.", request.site);
    simulator::wrapped_read(request.row, 16, warp * 32 + lane, request.site);
  }
  for (int m = 0; m < 4; ++m) {
    const void* group[8];
    for (int i = 0; i < 8; ++i) group[i] = rows[8 * m + i];
    simulator::count_bank_conflicts(group, 8);
    for (int lane = 0; lane < 32; ++lane) {
      const int a = lane / 4, b = 2 * (lane % 4);
      const half low = transposed ? rows[8 * m + b][a] : rows[8 * m + a][b];
      const half high = transposed ? rows[8 * m + b + 1][a] : rows[8 * m + a][b + 1];
      static_cast<const Request*>(lanes[lane])->r[m] = low.bits | static_cast<uint32_t>(high.bits) << 16;
    }
  }
}

}  // namespace

void ldmatrix_x4(uint32_t (&r)[4], const half* row, const char* file, int line) {
  Request request{r, row, SIMULATOR_SITE};
  simulator::warp_collective("ldmatrix.x4", 0xFFFFFFFFu, &request, load<false>, SIMULATOR_SITE);
}

void ldmatrix_x4_trans(uint32_t (&r)[4], const half* row, const char* file, int line) {
  Request request{r, row, SIMULATOR_SITE};
  simulator::warp_collective("ldmatrix.x4.trans", 0xFFFFFFFFu, &request, load<true>, SIMULATOR_SITE);
}

}  // namespace simulated
