/// @file
/// Launching a kernel on the simulated GPU.
#pragma once

#include <type_traits>

#include "../simulator.h"
#include "simt.h"

inline namespace simulated {

/// Where a step runs: the machine's sizes, and the stream (a simulated launch returns when it is done).
struct Device {
  void* stream;
  int sm_count;
  size_t shared_bytes_per_cta;  ///< the most that one CTA can have
  size_t memory_bytes;          ///< global memory that a workspace may take
};

/// The sizes of the simulated GPU.
__forceinline__ Device current_device(void* stream) {
  return {stream, simulator::sm_count, simulator::shared_bytes_per_cta, simulator::memory_bytes};
}

/// The CTA's dynamic shared memory, aligned to 1024 bytes.
template <typename T>
__forceinline__ T* dynamic_shared() {
  return static_cast<T*>(simulator::dynamic_shared_memory());
}

/// Runs `kernel` with `grid` CTAs of `threads` threads and `shared_bytes` of dynamic shared memory each.
/// @param name  of the kernel, for reports
/// @throws std::runtime_error  the machine refuses the sizes, or the kernel could not go on
template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
            const Device&, std::type_identity_t<Parameters>... arguments) {
  __shared__ char anchor;  // tells the simulator where this module's static shared variables lie
  auto call = [&] { kernel(arguments...); };
  simulator::launch({name,
                     {grid.x, grid.y, grid.z},
                     {threads, 1, 1},
                     shared_bytes,
                     [](const void* c) { (*static_cast<const decltype(call)*>(c))(); },
                     &call,
                     &anchor});
}

}  // namespace simulated
