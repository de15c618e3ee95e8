/// @file
/// Asynchronous copies from global to shared memory, PTX cp.async (ISA "Non-bulk asynchronous copy").
#pragma once

#include "simt.h"

inline namespace gpu {

/// Starts to copy 16 bytes; of them only the first `valid` are read and the others become zero, so that a tail can
/// name an address past the end with valid = 0. PTX cp.async.cg.shared.global [dst], [src], 16, valid.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, int valid = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(valid)
               : "memory");
}

/// Closes the group of all copies that this thread started since the last commit. PTX cp.async.commit_group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `pending` of this thread's latest groups are in flight. Their bytes are then visible to this
/// thread; the others need a barrier. PTX cp.async.wait_group.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace gpu
