/// @file
/// The copy engine: boxes of a tensor between global and shared memory, PTX cp.async.bulk.tensor (ISA "Tensor copy").
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "launch.h"
#include "mbarrier.h"
#include "swizzle.h"

inline namespace gpu {

/// A tensor in global memory and the box that one instruction copies. A kernel takes it as `const __grid_constant__`.
using TensorMap = CUtensorMap;

/// What a tensor consists of. Only the size matters to a copy: a half may be a bfloat16. A byte is one FP8 number.
enum class Element { half, byte };

/// Describes a tensor.
///
/// In shared memory a box lies packed, its first dimension innermost, and swizzled: of each 1024 bytes, the 16-byte piece p
/// of the 128-byte row r lies where piece p xor r would. So the innermost extent of the box is 128 bytes (64 halves), and the
/// box begins at a multiple of 1024 bytes; for shorter rows see Swizzle. Elements outside the tensor are read as zeros and
/// never written.
/// @param base     of the tensor, aligned to 16 bytes
/// @param size     elements along each dimension, innermost first; at least 1
/// @param stride   bytes from one element to the next along dimensions 1, 2, ...; multiples of 16
/// @param box      elements of the box along each dimension, 1 .. 256; along the innermost at most the swizzle's span
/// @throws std::runtime_error  the driver refuses (Driver API, cuTensorMapEncodeTiled)
template <int rank>
TensorMap tensor_map(const void* base, const uint64_t (&size)[rank], const uint64_t (&stride)[rank - 1],
                     const uint32_t (&box)[rank], Element element = Element::half,
                     Swizzle swizzle = Swizzle::bytes_128) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "Looking for cuTensorMapEncodeTiled in the driver");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  TensorMap map;
  uint32_t one[rank];
  for (uint32_t& x : one) x = 1;
  const CUresult result =
      encode(&map, element == Element::half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, rank,
             const_cast<void*>(base), size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle == Swizzle::bytes_128  ? CU_TENSOR_MAP_SWIZZLE_128B
             : swizzle == Swizzle::bytes_64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                            : CU_TENSOR_MAP_SWIZZLE_32B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("The driver refused a tensor map (CUresult " + std::to_string(result) +
                             "); the rules stand at cuTensorMapEncodeTiled in the Driver API.");
  return map;
}

/// Starts to copy the box at (x0, x1, x2, x3) to shared memory; x0 is a multiple of 16 bytes (8 halves). When its bytes
/// have landed they count at `full`, all of the box, zeros outside the tensor included.
/// PTX cp.async.bulk.tensor.4d.shared\::cluster.global.tile.mbarrier.
__device__ __forceinline__ void tma_load(void* shared, const TensorMap& map, Mbarrier& full, int x0, int x1, int x2,
                                         int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(&map), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&full))), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

/// Starts to copy a box from shared memory to (x0, x1, x2, x3), x0 a multiple of 16 bytes, none negative; what lies beyond
/// the tensor's end is left out.
/// PTX cp.async.bulk.tensor.4d.global.shared\::cta.tile.bulk_group.
__device__ __forceinline__ void tma_store(const TensorMap& map, const void* shared, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}

/// Closes the group of all stores that this thread started since the last commit. PTX cp.async.bulk.commit_group.
__device__ __forceinline__ void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but this thread's `pending` latest groups have read their shared memory, so that it may be written
/// again. PTX cp.async.bulk.wait_group.read.
template <int pending>
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/// Makes this thread's ordinary accesses to shared memory visible to the copy engine and to wgmma, which reach it another
/// way (ISA "Async proxy"). Each writer needs it, before the barrier that tells the reader.
/// PTX fence.proxy.async.shared::cta.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace gpu
