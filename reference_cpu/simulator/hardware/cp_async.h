/// @file
/// Asynchronous copies from global to shared memory, PTX cp.async (ISA "Non-bulk asynchronous copy").
#pragma once

#include "simt.h"

inline namespace simulated {

/// Starts to copy 16 bytes; of them only the first `valid` are read and the others become zero, so that a tail can
/// name an address past the end with valid = 0. PTX cp.async.cg.shared.global [dst], [src], 16, valid.
__forceinline__ void cp_async_16(void* shared, const void* global, int valid = 16, SIMULATOR_SITE_PARAMETERS) {
  simulator::async_copy(shared, global, 16, valid, SIMULATOR_SITE);
}

/// Closes the group of all copies that this thread started since the last commit. PTX cp.async.commit_group.
__forceinline__ void cp_async_commit(SIMULATOR_SITE_PARAMETERS) { simulator::async_commit(SIMULATOR_SITE); }

/// Waits until at most `pending` of this thread's latest groups are in flight. Their bytes are then visible to this
/// thread; the others need a barrier. PTX cp.async.wait_group.
template <int pending>
__forceinline__ void cp_async_wait(SIMULATOR_SITE_PARAMETERS) {
  simulator::async_wait(pending, SIMULATOR_SITE);
}

}  // namespace simulated
