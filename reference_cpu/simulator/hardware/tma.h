/// @file
/// The copy engine: boxes of a tensor between global and shared memory, PTX cp.async.bulk.tensor (ISA "Tensor copy").
#pragma once

#include "launch.h"
#include "mbarrier.h"
#include "swizzle.h"

inline namespace simulated {

/// A tensor in global memory and the box that one instruction copies. A kernel takes it as `const __grid_constant__`.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

/// What a tensor consists of. Only the size matters to a copy: a half may be a bfloat16. A byte is one FP8 number.
enum class Element { half, byte };

/// Describes a tensor.
///
/// In shared memory a box lies packed, its first dimension innermost, and swizzled: of each 1024 bytes, the 16-byte piece p
/// of the 128-byte row r lies where piece p xor r would. (The hardware does it with the address: bits 4..6 become their
/// exclusive or with bits 7..9.) So the innermost extent of the box is 128 bytes (64 halves), and the box begins at a
/// multiple of 1024 bytes; for shorter rows see Swizzle. Elements outside the tensor are read as zeros and never written.
/// @param base     of the tensor, aligned to 16 bytes
/// @param size     elements along each dimension, innermost first; 1 .. 2^32
/// @param stride   bytes from one element to the next along dimensions 1, 2, ...; multiples of 16 below 2^40
/// @param box      elements of the box along each dimension, 1 .. 256; along the innermost at most the swizzle's span
/// @throws std::runtime_error  a rule is broken (Driver API, cuTensorMapEncodeTiled)
template <int rank>
TensorMap tensor_map(const void* base, const uint64_t (&size)[rank], const uint64_t (&stride)[rank - 1],
                     const uint32_t (&box)[rank], Element element = Element::half, Swizzle swizzle = Swizzle::bytes_128) {
  static_assert(rank >= 2 && rank <= 5);
  TensorMap map;
  simulator::encode_tensor_map(&map, base, rank, size, stride, box, element == Element::half ? 2 : 1, span_of(swizzle));
  return map;
}

/// Starts to copy the box at (x0, x1, x2, x3) to shared memory; x0 is a multiple of 16 bytes (8 halves). When its bytes have
/// landed they count at `full`, all of the box, zeros outside the tensor included. PTX
/// cp.async.bulk.tensor.4d.shared\::cluster.global.tile.mbarrier.
__forceinline__ void tma_load(void* shared, const TensorMap& map, Mbarrier& full, int x0, int x1, int x2, int x3,
                              SIMULATOR_SITE_PARAMETERS) {
  const int at[] = {x0, x1, x2, x3};
  simulator::box_load(shared, &map, &full, at, 4, SIMULATOR_SITE);
}

/// Starts to copy a box from shared memory to (x0, x1, x2, x3), x0 a multiple of 16 bytes, none negative; what lies beyond
/// the tensor's end is left out.
/// PTX cp.async.bulk.tensor.4d.global.shared\::cta.tile.bulk_group.
__forceinline__ void tma_store(const TensorMap& map, const void* shared, int x0, int x1, int x2, int x3,
                               SIMULATOR_SITE_PARAMETERS) {
  const int at[] = {x0, x1, x2, x3};
  simulator::box_store(&map, shared, at, 4, SIMULATOR_SITE);
}

/// Closes the group of all stores that this thread started since the last commit. PTX cp.async.bulk.commit_group.
__forceinline__ void tma_commit(SIMULATOR_SITE_PARAMETERS) { simulator::box_commit(SIMULATOR_SITE); }

/// Waits until all but this thread's `pending` latest groups have read their shared memory, so that it may be written
/// again. PTX cp.async.bulk.wait_group.read.
template <int pending>
__forceinline__ void tma_wait_read(SIMULATOR_SITE_PARAMETERS) {
  simulator::box_wait_read(pending, SIMULATOR_SITE);
}

/// Makes this thread's ordinary accesses to shared memory visible to the copy engine and to wgmma, which reach it another
/// way (ISA "Async proxy"). Each writer needs it, before the barrier that tells the reader.
/// PTX fence.proxy.async.shared::cta.
__forceinline__ void fence_proxy_async(SIMULATOR_SITE_PARAMETERS) { simulator::fence_proxy_async(SIMULATOR_SITE); }

}  // namespace simulated
