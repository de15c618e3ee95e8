/// @file
/// The warpgroup's matrix instruction, PTX wgmma.mma_async (ISA "Asynchronous warpgroup-level matrix instructions").
///
/// Four warps multiply together, and the instruction returns at once. Its accumulators, and a factor in registers, belong to
/// the tensor core from wgmma_fence() on until wgmma_wait(); its factors in shared memory are read until then. Simulated
/// accumulators hold NaN from the first wgmma of a sum until the wait. The ledger has wgmma's FLOPs, but not the bytes of
/// shared memory that it reads.
#pragma once

#include "simt.h"

inline namespace simulated {

/// Where a factor lies in shared memory and how (ISA "Matrix descriptor"): of the low word, bits 0..13 are address / 16 and
/// bits 16..29 leading bytes / 16; of the high word, bits 0..13 are stride bytes / 16 and bits 30..31 the swizzle, 1 for 128
/// bytes. The address is in the low word, so that advancing is one addition of 32 bits.
struct Descriptor {
  uint32_t low, high;
};

/// Describes a tile in the 128-byte swizzle in which the copy engine writes it, beginning at a multiple of 1024 bytes.
/// @param leading_bytes  K-major: not used; MN-major: from 64 columns to the next 64
/// @param stride_bytes   from 8 rows of 128 bytes to the next 8
Descriptor descriptor(const void* shared, int leading_bytes, int stride_bytes, SIMULATOR_SITE_PARAMETERS);

/// The same tile, beginning `bytes` later: the next 16 columns (32 bytes, K-major) or rows (2048 bytes, MN-major).
__forceinline__ Descriptor advance(Descriptor d, int bytes) { return {d.low + static_cast<uint32_t>(bytes >> 4), d.high}; }

/// How the right factor lies: k_major as [N][K], MN_major as [K][N].
enum class Major { k, mn };

__forceinline__ uint64_t bits_of(Descriptor d) { return static_cast<uint64_t>(d.high) << 32 | d.low; }

template <typename T>
__forceinline__ simulator::RegisterArray registers_of(T& registers) {
  return {&registers, sizeof registers};
}

/// Hands registers to the tensor core: what was written to them before is seen by the wgmma that follow. Up to four arrays.
/// PTX wgmma.fence.sync.aligned.
__forceinline__ void wgmma_fence(SIMULATOR_SITE_PARAMETERS) { simulator::wgmma_fence(nullptr, 0, SIMULATOR_SITE); }
template <typename A>
__forceinline__ void wgmma_fence(A& a, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a)};
  simulator::wgmma_fence(arrays, 1, SIMULATOR_SITE);
}
template <typename A, typename B>
__forceinline__ void wgmma_fence(A& a, B& b, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b)};
  simulator::wgmma_fence(arrays, 2, SIMULATOR_SITE);
}
template <typename A, typename B, typename C>
__forceinline__ void wgmma_fence(A& a, B& b, C& c, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c)};
  simulator::wgmma_fence(arrays, 3, SIMULATOR_SITE);
}
template <typename A, typename B, typename C, typename D>
__forceinline__ void wgmma_fence(A& a, B& b, C& c, D& d, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c), registers_of(d)};
  simulator::wgmma_fence(arrays, 4, SIMULATOR_SITE);
}

/// Closes the group of all wgmma since the last commit. PTX wgmma.commit_group.sync.aligned.
__forceinline__ void wgmma_commit(SIMULATOR_SITE_PARAMETERS) { simulator::wgmma_commit(SIMULATOR_SITE); }

/// Waits until all but the `pending` latest groups are complete. The registers named, up to four arrays, are theirs:
/// accumulators, and factors in registers; after the wait they belong to the thread again. That one warp has waited means
/// that its warpgroup's wgmma are complete. PTX wgmma.wait_group.sync.aligned.
template <int pending>
__forceinline__ void wgmma_wait(SIMULATOR_SITE_PARAMETERS) {
  simulator::wgmma_wait(pending, nullptr, 0, SIMULATOR_SITE);
}
template <int pending, typename A>
__forceinline__ void wgmma_wait(A& a, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a)};
  simulator::wgmma_wait(pending, arrays, 1, SIMULATOR_SITE);
}
template <int pending, typename A, typename B>
__forceinline__ void wgmma_wait(A& a, B& b, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b)};
  simulator::wgmma_wait(pending, arrays, 2, SIMULATOR_SITE);
}
template <int pending, typename A, typename B, typename C>
__forceinline__ void wgmma_wait(A& a, B& b, C& c, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c)};
  simulator::wgmma_wait(pending, arrays, 3, SIMULATOR_SITE);
}
template <int pending, typename A, typename B, typename C, typename D>
__forceinline__ void wgmma_wait(A& a, B& b, C& c, D& d, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c), registers_of(d)};
  simulator::wgmma_wait(pending, arrays, 4, SIMULATOR_SITE);
}

/// C[64][N] = A[64][16] B[16][N], added to C if `accumulate`: FP16 factors, float sums.
/// PTX wgmma.mma_async.sync.aligned.m64nNk16.f32.f16.f16.
///
/// Thread t of the warpgroup (w = t / 32, g = t % 32 / 4, q = t % 4) holds
///
///     c[i]:              row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 q + i % 2
///     a[r], half h:      row 16 w + g + 8 (r % 2),     k = 2 q + h + 8 (r / 2)
///
/// so that c[8 j .. 8 j + 7] of one product, packed in pairs, are the factor a of step j of the next. In shared memory, with
/// x = the exclusive or of address bits 4..6 with bits 7..9,
///
///     K-major A, B:  (row, k) at x(start + row / 8 * stride + row % 8 * 128 + 2 k)
///     MN-major B:    (k, n) at x(start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + 2 (n % 64))
///
/// @tparam major  how B lies in shared memory
/// @param c       N / 2 registers a thread
/// @param a       a descriptor (K-major)
/// @param b       a descriptor
template <Major major, int count>
__forceinline__ void wgmma(float (&c)[count], Descriptor a, Descriptor b, bool accumulate, SIMULATOR_SITE_PARAMETERS) {
  static_assert(count % 4 == 0 && count <= 128, "N is a multiple of 8 up to 256");
  simulator::wgmma({c, count, nullptr, bits_of(a), bits_of(b), accumulate, major == Major::mn}, SIMULATOR_SITE);
}

/// The same with A in four registers a thread.
template <Major major, int count>
__forceinline__ void wgmma(float (&c)[count], const uint32_t (&a)[4], Descriptor b, bool accumulate,
                           SIMULATOR_SITE_PARAMETERS) {
  static_assert(count % 4 == 0 && count <= 128, "N is a multiple of 8 up to 256");
  simulator::wgmma({c, count, a, 0, bits_of(b), accumulate, major == Major::mn}, SIMULATOR_SITE);
}

}  // namespace simulated
