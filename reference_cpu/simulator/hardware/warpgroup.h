/// @file
/// Parting a CTA into roles: named barriers, registers that change hands, one lane for a warp.
#pragma once

#include "simt.h"

inline namespace simulated {

/// Waits at barrier `id` (1..15; 0 is __syncthreads) until `threads` threads, this warp's included, have come to it by
/// either call. All that they did before is visible afterwards. PTX barrier.cta.sync (ISA "barrier{.cta}").
__forceinline__ void named_barrier_sync(int id, int threads, SIMULATOR_SITE_PARAMETERS) {
  simulator::named_barrier_sync(id, threads, SIMULATOR_SITE);
}

/// Comes to barrier `id` without waiting. PTX barrier.cta.arrive.
__forceinline__ void named_barrier_arrive(int id, int threads, SIMULATOR_SITE_PARAMETERS) {
  simulator::named_barrier_arrive(id, threads, SIMULATOR_SITE);
}

/// The warpgroup keeps `count` registers a thread and gives the others back to the CTA's pool; a multiple of 8, 24 .. 256.
/// The pool holds what the CTA began with: all threads together 65536 registers, at most 256 each, in multiples of 8.
/// PTX setmaxnreg.dec.sync.aligned.u32.
template <int count>
__forceinline__ void setmaxnreg_dec(SIMULATOR_SITE_PARAMETERS) {
  simulator::setmaxnreg_dec(count, SIMULATOR_SITE);
}

/// The warpgroup waits until the pool has enough for `count` registers a thread, and takes them.
/// PTX setmaxnreg.inc.sync.aligned.u32.
template <int count>
__forceinline__ void setmaxnreg_inc(SIMULATOR_SITE_PARAMETERS) {
  simulator::setmaxnreg_inc(count, SIMULATOR_SITE);
}

/// True in one lane of the warp, always the same; every lane must call. PTX elect.sync.
bool elect_one(SIMULATOR_SITE_PARAMETERS);

}  // namespace simulated
