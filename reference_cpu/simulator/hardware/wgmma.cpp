/// @file
#include "wgmma.h"

inline namespace simulated {

Descriptor descriptor(const void* shared, int leading_bytes, int stride_bytes, const char* file, int line) {
  if (!simulator::is_shared(shared))
    simulator::fail("address", "A matrix descriptor needs an address in shared memory; this is none.", SIMULATOR_SITE);
  return simulator::shared_window(shared) >> 4 | static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | uint64_t{1} << 62;
}

}  // namespace simulated
