/// @file
/// Barriers in shared memory that count arrivals and bytes, PTX mbarrier (ISA "Parallel synchronization: mbarrier").
///
/// A phase of an mbarrier is complete when all its arrivals came and all bytes that it expects have landed; then the next
/// phase begins with the same number of arrivals. A waiter names a phase by its parity: 0 for the first phase, 1 for the
/// second, and so on.
#pragma once

#include "simt.h"

inline namespace gpu {

/// Lies in shared memory. Its 64 bits are the hardware's own.
struct Mbarrier {
  uint64_t state;
};

/// Makes the barrier ready: each phase needs `arrivals` arrivals. One thread does it; then fence_mbarrier_init() and a
/// CTA barrier. PTX mbarrier.init.shared::cta.b64.
__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))),
               "r"(arrivals)
               : "memory");
}

/// Makes this thread's mbarrier_init visible to the copy engine. PTX fence.mbarrier_init.release.cluster.
__device__ __forceinline__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Arrives once. What this thread did before is visible to whoever waits for the phase.
/// PTX mbarrier.arrive.shared::cta.b64.
__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier)))
               : "memory");
}

/// Arrives once, and the phase now also waits for `bytes` bytes of copies. PTX mbarrier.arrive.expect_tx.shared::cta.b64.
__device__ __forceinline__ void mbarrier_expect(Mbarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))),
               "r"(bytes)
               : "memory");
}

/// Waits until the phase of this parity is complete. On a new barrier parity 1 is complete already: it is that of the
/// phase before the first. PTX mbarrier.try_wait.parity.shared::cta.b64 in a loop; a build with FLASH_BOUNDED_WAITS traps
/// after some seconds instead of hanging (the trap makes ptxas serialize wgmma, so the release build has none).
__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, int parity) {
  uint32_t complete = 0;
#ifdef FLASH_BOUNDED_WAITS
  for (int tries = 0; !complete; ++tries) {
    if (tries == 2000000) __trap();
#else
  while (!complete) {
#endif
    asm volatile(
        "{ .reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done; }"
        : "=r"(complete)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))), "r"(parity)
        : "memory");
  }
}

}  // namespace gpu
