/// @file
#include "warpgroup.h"

inline namespace simulated {

bool elect_one(const char* file, int line) {
  simulator::warp_collective(
      "elect.sync", 0xFFFFFFFFu, nullptr, [](void* const*, unsigned) {}, SIMULATOR_SITE);
  return simulator::lane_index() == 0;
}

}  // namespace simulated
