/// @file
#include "wgmma.h"

inline namespace simulated {

Descriptor descriptor(const void* shared, int leading_bytes, int stride_bytes, Swizzle swizzle, const char* file, int line) {
  if (!simulator::is_shared(shared))
    simulator::fail("address", "A matrix descriptor needs an address in shared memory; this is none.", SIMULATOR_SITE);
  return {simulator::shared_window(shared) >> 4 | static_cast<uint32_t>(leading_bytes >> 4) << 16,
          static_cast<uint32_t>(stride_bytes >> 4) | static_cast<uint32_t>(swizzle) << 30};
}

}  // namespace simulated
