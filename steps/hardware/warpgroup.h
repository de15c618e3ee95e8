/// @file
/// Parting a CTA into roles: named barriers, registers that change hands, one lane for a warp.
#pragma once

#include "simt.h"

inline namespace gpu {

/// Waits at barrier `id` (1..15; 0 is __syncthreads) until `threads` threads, this warp's included, have come to it by
/// either call. All that they did before is visible afterwards. PTX barrier.cta.sync (ISA "barrier{.cta}").
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Comes to barrier `id` without waiting. PTX barrier.cta.arrive.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The warpgroup keeps `count` registers a thread and gives the others back to the CTA's pool; a multiple of 8, 24 .. 256.
/// PTX setmaxnreg.dec.sync.aligned.u32.
template <int count>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/// The warpgroup waits until the pool has enough for `count` registers a thread, and takes them.
/// PTX setmaxnreg.inc.sync.aligned.u32.
template <int count>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// True in one lane of the warp, always the same; every lane must call. PTX elect.sync.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{ .reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(elected));
  return elected;
}

}  // namespace gpu
