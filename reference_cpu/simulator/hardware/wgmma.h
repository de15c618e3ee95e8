/// @file
/// The warpgroup's matrix instruction, PTX wgmma.mma_async (ISA "Asynchronous warpgroup-level matrix instructions").
///
/// Four warps multiply together, and the instruction returns at once. Its accumulators, and a factor in registers, belong to
/// the tensor core from wgmma_fence() on until wgmma_wait(); its factors in shared memory are read until then. Simulated
/// accumulators hold NaN from the first wgmma of a sum until the wait. The ledger has wgmma's FLOPs, but not the bytes of
/// shared memory that it reads.
#pragma once

#include <type_traits>

#include "bfloat16.h"
#include "fp8.h"
#include "swizzle.h"

inline namespace simulated {

/// Where a factor lies in shared memory and how (ISA "Matrix descriptor"): of the low word, bits 0..13 are address / 16 and
/// bits 16..29 leading bytes / 16; of the high word, bits 0..13 are stride bytes / 16 and bits 30..31 the swizzle. The
/// address is in the low word, so that advancing is one addition of 32 bits.
struct Descriptor {
  uint32_t low, high;
};

/// Describes a tile in the swizzle in which the copy engine writes it, beginning at a multiple of 8 spans (1024 bytes).
/// @param leading_bytes  K-major: not used; MN-major: from one span of columns (64 halves) to the next
/// @param stride_bytes   from 8 rows of one span (128 bytes) to the next 8
Descriptor descriptor(const void* shared, int leading_bytes, int stride_bytes, Swizzle swizzle = Swizzle::bytes_128,
                      SIMULATOR_SITE_PARAMETERS);

/// The same tile, beginning `bytes` later: the next 16 columns of halves or 32 of FP8 (32 bytes, K-major), or the next 16
/// rows (2048 bytes, MN-major).
__forceinline__ Descriptor advance(Descriptor d, int bytes) { return {d.low + static_cast<uint32_t>(bytes >> 4), d.high}; }

/// How the right factor lies: k_major as [N][K], MN_major as [K][N].
enum class Major { k, mn };

/// The 64 bits of the ISA.
__forceinline__ uint64_t bits_of(Descriptor d) { return static_cast<uint64_t>(d.high) << 32 | d.low; }

/// A thread's registers, by where the simulator keeps them.
template <typename T>
__forceinline__ simulator::RegisterArray registers_of(T& registers) {
  return {&registers, sizeof registers};
}

/// Hands registers to the tensor core: what was written to them before is seen by the wgmma that follow. Up to four arrays.
/// PTX wgmma.fence.sync.aligned.
__forceinline__ void wgmma_fence(SIMULATOR_SITE_PARAMETERS) { simulator::wgmma_fence(nullptr, 0, SIMULATOR_SITE); }
/// The same for one array.
template <typename A>
__forceinline__ void wgmma_fence(A& a, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a)};
  simulator::wgmma_fence(arrays, 1, SIMULATOR_SITE);
}
/// The same for two arrays.
template <typename A, typename B>
__forceinline__ void wgmma_fence(A& a, B& b, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b)};
  simulator::wgmma_fence(arrays, 2, SIMULATOR_SITE);
}
/// The same for three arrays.
template <typename A, typename B, typename C>
__forceinline__ void wgmma_fence(A& a, B& b, C& c, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c)};
  simulator::wgmma_fence(arrays, 3, SIMULATOR_SITE);
}
/// The same for four arrays.
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
/// The same for one array.
template <int pending, typename A>
__forceinline__ void wgmma_wait(A& a, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a)};
  simulator::wgmma_wait(pending, arrays, 1, SIMULATOR_SITE);
}
/// The same for two arrays.
template <int pending, typename A, typename B>
__forceinline__ void wgmma_wait(A& a, B& b, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b)};
  simulator::wgmma_wait(pending, arrays, 2, SIMULATOR_SITE);
}
/// The same for three arrays.
template <int pending, typename A, typename B, typename C>
__forceinline__ void wgmma_wait(A& a, B& b, C& c, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c)};
  simulator::wgmma_wait(pending, arrays, 3, SIMULATOR_SITE);
}
/// The same for four arrays.
template <int pending, typename A, typename B, typename C, typename D>
__forceinline__ void wgmma_wait(A& a, B& b, C& c, D& d, SIMULATOR_SITE_PARAMETERS) {
  const simulator::RegisterArray arrays[] = {registers_of(a), registers_of(b), registers_of(c), registers_of(d)};
  simulator::wgmma_wait(pending, arrays, 4, SIMULATOR_SITE);
}

template <typename T>
constexpr simulator::Number number_of = std::is_same_v<T, e4m3>       ? simulator::Number::e4m3
                                        : std::is_same_v<T, e5m2>     ? simulator::Number::e5m2
                                        : std::is_same_v<T, bfloat16> ? simulator::Number::bfloat16
                                                                      : simulator::Number::half;
template <typename T>
constexpr bool is_16_bits = std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;

/// C[64][N] = A[64][16] B[16][N], added to C if `accumulate`: FP16 or BF16 factors, float sums.
/// PTX wgmma.mma_async.sync.aligned.m64nNk16.f32.{f16.f16,bf16.bf16}.
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
/// @tparam T      half or bfloat16: the elements of A and B
/// @param c       N / 2 registers a thread
/// @param a       a descriptor (K-major)
/// @param b       a descriptor
template <Major major, typename T = half, int count>
__forceinline__ void wgmma(float (&c)[count], Descriptor a, Descriptor b, bool accumulate, SIMULATOR_SITE_PARAMETERS) {
  static_assert(count % 4 == 0 && count <= 128, "N is a multiple of 8 up to 256");
  static_assert(is_16_bits<T>);
  simulator::wgmma({c, count, nullptr, bits_of(a), bits_of(b), accumulate, major == Major::mn, number_of<T>, number_of<T>},
                   SIMULATOR_SITE);
}

/// The same with A in four registers a thread.
template <Major major, typename T = half, int count>
__forceinline__ void wgmma(float (&c)[count], const uint32_t (&a)[4], Descriptor b, bool accumulate,
                           SIMULATOR_SITE_PARAMETERS) {
  static_assert(count % 4 == 0 && count <= 128, "N is a multiple of 8 up to 256");
  static_assert(is_16_bits<T>);
  simulator::wgmma({c, count, a, 0, bits_of(b), accumulate, major == Major::mn, number_of<T>, number_of<T>}, SIMULATOR_SITE);
}

template <typename T>
constexpr bool is_fp8 = std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>;

/// C[64][N] = A[64][32] B[32][N], added to C if `accumulate`: FP8 factors, sums in an accumulator that holds about 13 bits
/// behind the leading one, stored as floats. Both factors are K-major: A as [64][K], B as [N][K].
/// PTX wgmma.mma_async.sync.aligned.m64nNk32.f32.{e4m3,e5m2}.{e4m3,e5m2}.
///
/// C lies in registers as wgmma's. Thread t of the warpgroup (w = t / 32, g = t % 32 / 4, q = t % 4) holds
///
///     a[r], byte b:      row 16 w + g + 8 (r % 2), k = 4 q + b + 16 (r / 2)
///
/// In shared memory, with `span` the swizzle's bytes and x its exclusive or (see Swizzle),
///
///     A, B:  (row, k) at x(start + row / 8 * stride + row % 8 * span + k)
///
/// So a thread does not hold the sums of one product where the next one wants them as A: of row g and columns 16 j .. it has
/// c[8 j + 0, 1, 4, 5], columns 2q, 2q + 1, 2q + 8, 2q + 9, and a[0] is k = 4q .. 4q + 3. They may stay with their thread if
/// the k of B have the same order: places 0 .. 15 of every sixteen are 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15.
///
/// How the sums lose bits is told at Options::narrow_fp8_sums (simulator.h).
/// @tparam Left   e4m3 or e5m2: the elements of A
/// @tparam Right  those of B
/// @param c       N / 2 registers a thread
/// @param a       a descriptor
/// @param b       a descriptor
template <typename Left, typename Right = Left, int count>
__forceinline__ void wgmma_fp8(float (&c)[count], Descriptor a, Descriptor b, bool accumulate, SIMULATOR_SITE_PARAMETERS) {
  static_assert(is_fp8<Left> && is_fp8<Right>);
  static_assert(count % 4 == 0 && count <= 128, "N is a multiple of 8 up to 256");
  simulator::wgmma({c, count, nullptr, bits_of(a), bits_of(b), accumulate, false, number_of<Left>, number_of<Right>},
                   SIMULATOR_SITE);
}

/// The same with A in four registers a thread.
template <typename Left, typename Right = Left, int count>
__forceinline__ void wgmma_fp8(float (&c)[count], const uint32_t (&a)[4], Descriptor b, bool accumulate,
                               SIMULATOR_SITE_PARAMETERS) {
  static_assert(is_fp8<Left> && is_fp8<Right>);
  static_assert(count % 4 == 0 && count <= 128, "N is a multiple of 8 up to 256");
  simulator::wgmma({c, count, a, 0, bits_of(b), accumulate, false, number_of<Left>, number_of<Right>}, SIMULATOR_SITE);
}

}  // namespace simulated
