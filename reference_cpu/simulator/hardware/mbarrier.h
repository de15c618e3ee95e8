/// @file
/// Barriers in shared memory that count arrivals and bytes, PTX mbarrier (ISA "Parallel synchronization: mbarrier").
///
/// A phase of an mbarrier is complete when all its arrivals came and all bytes that it expects have landed; then the next
/// phase begins with the same number of arrivals. A waiter names a phase by its parity: 0 for the first phase, 1 for the
/// second, and so on. What is wrong about their use ends the launch with a report.
#pragma once

#include "simt.h"

inline namespace simulated {

/// Lies in shared memory. Its 64 bits are the machine's own.
struct Mbarrier {
  uint64_t state;
};

/// Makes the barrier ready: each phase needs `arrivals` arrivals, 1 .. 2^20 - 1. One thread does it; then
/// fence_mbarrier_init() and a CTA barrier. PTX mbarrier.init.shared::cta.b64.
__forceinline__ void mbarrier_init(Mbarrier& barrier, int arrivals, SIMULATOR_SITE_PARAMETERS) {
  simulator::mbarrier_init(&barrier, arrivals, SIMULATOR_SITE);
}

/// Makes this thread's mbarrier_init visible to the copy engine. PTX fence.mbarrier_init.release.cluster.
__forceinline__ void fence_mbarrier_init(SIMULATOR_SITE_PARAMETERS) { simulator::fence_mbarrier_init(SIMULATOR_SITE); }

/// Arrives once. What this thread did before is visible to whoever waits for the phase.
/// PTX mbarrier.arrive.shared::cta.b64.
__forceinline__ void mbarrier_arrive(Mbarrier& barrier, SIMULATOR_SITE_PARAMETERS) {
  simulator::mbarrier_arrive(&barrier, SIMULATOR_SITE);
}

/// Arrives once, and the phase now also waits for `bytes` bytes of copies. PTX mbarrier.arrive.expect_tx.shared::cta.b64.
__forceinline__ void mbarrier_expect(Mbarrier& barrier, int bytes, SIMULATOR_SITE_PARAMETERS) {
  simulator::mbarrier_expect(&barrier, bytes, SIMULATOR_SITE);
}

/// Waits until the phase of this parity is complete. On a new barrier parity 1 is complete already: it is that of the
/// phase before the first. PTX mbarrier.try_wait.parity.shared::cta.b64 in a loop: a thread that comes so late that the
/// phase after is complete too, waits for the one after that.
__forceinline__ void mbarrier_wait(Mbarrier& barrier, int parity, SIMULATOR_SITE_PARAMETERS) {
  simulator::mbarrier_wait(&barrier, parity, SIMULATOR_SITE);
}

}  // namespace simulated
