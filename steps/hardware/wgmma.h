/// @file
/// The warpgroup's matrix instruction, PTX wgmma.mma_async (ISA "Asynchronous warpgroup-level matrix instructions").
///
/// Four warps multiply together, and the instruction returns at once. Its accumulators, and a factor in registers, belong to
/// the tensor core from wgmma_fence() on until wgmma_wait(); its factors in shared memory are read until then.
#pragma once

#include <type_traits>

#include "bfloat16.h"
#include "fp8.h"
#include "swizzle.h"

inline namespace gpu {

/// Where a factor lies in shared memory and how (ISA "Matrix descriptor"). The address is in the low word, so that advancing
/// is one addition of 32 bits.
struct Descriptor {
  uint32_t low, high;
};

/// Describes a tile in the swizzle in which the copy engine writes it, beginning at a multiple of 8 spans (1024 bytes).
/// @param leading_bytes  K-major: not used; MN-major: from one span of columns (64 halves) to the next
/// @param stride_bytes   from 8 rows of one span (128 bytes) to the next 8
__device__ __forceinline__ Descriptor descriptor(const void* shared, int leading_bytes, int stride_bytes,
                                                 Swizzle swizzle = Swizzle::bytes_128) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return {address >> 4 | uint32_t(leading_bytes >> 4) << 16, uint32_t(stride_bytes >> 4) | uint32_t(swizzle) << 30};
}

/// The same tile, beginning `bytes` later: the next 16 columns of halves or 32 of FP8 (32 bytes, K-major), or the next 16
/// rows (2048 bytes, MN-major).
__device__ __forceinline__ Descriptor advance(Descriptor d, int bytes) { return {d.low + (bytes >> 4), d.high}; }

/// How the right factor lies: k_major as [N][K], MN_major as [K][N].
enum class Major { k, mn };

/// Names a register to the compiler, so that it neither reads nor writes it on the other side.
__device__ __forceinline__ void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
/// The same for a factor's register.
__device__ __forceinline__ void pin(uint32_t& x) { asm volatile("" : "+r"(x)::"memory"); }
/// The same for an array.
template <typename T, int count>
__device__ __forceinline__ void pin(T (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) pin(x[i]);
}

/// Hands registers to the tensor core: what was written to them before is seen by the wgmma that follow.
/// PTX wgmma.fence.sync.aligned.
template <typename... Registers>
__device__ __forceinline__ void wgmma_fence(Registers&... registers) {
  (pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes the group of all wgmma since the last commit. PTX wgmma.commit_group.sync.aligned.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until all but the `pending` latest groups are complete. `registers` are theirs: accumulators, and factors in
/// registers; after the wait they belong to the thread again. PTX wgmma.wait_group.sync.aligned.
template <int pending, typename... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (pin(registers), ...);
}

/// C[64][N] = A[64][16] B[16][N], added to C if `accumulate`: FP16 or BF16 factors, float sums. The simulated header of this
/// name says which thread holds which element. PTX wgmma.mma_async.sync.aligned.m64nNk16.f32.{f16.f16,bf16.bf16}.
/// @tparam major  how B lies in shared memory
/// @tparam T      half or bfloat16: the elements of A and B
/// @param c       N / 2 registers a thread
/// @param a       a descriptor (K-major), or four registers a thread
/// @param b       a descriptor
#ifdef DOXYGEN  // what the macros below define
template <Major major, typename T = half, int count>
__device__ __forceinline__ void wgmma(float (&c)[count], Descriptor a, Descriptor b, bool accumulate);
#endif

template <typename T>
constexpr bool is_16_bits = std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;

// The names of the first registers of an instruction, and the registers themselves.
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_40 NAMES_36 ", %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_68 NAMES_64 ", %64, %65, %66, %67"
#define NAMES_72 NAMES_68 ", %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_88 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_96 NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_112 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110" \
  ", %111"
#define NAMES_128 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FLOATS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define FLOATS_8(c, i) FLOATS_4(c, i), FLOATS_4(c, i + 4)
#define FLOATS_32(c) FLOATS_8(c, 0), FLOATS_8(c, 8), FLOATS_8(c, 16), FLOATS_8(c, 24)
#define FLOATS_36(c) FLOATS_32(c), FLOATS_4(c, 32)
#define FLOATS_40(c) FLOATS_32(c), FLOATS_8(c, 32)
#define FLOATS_48(c) FLOATS_40(c), FLOATS_8(c, 40)
#define FLOATS_64(c) FLOATS_48(c), FLOATS_8(c, 48), FLOATS_8(c, 56)
#define FLOATS_68(c) FLOATS_64(c), FLOATS_4(c, 64)
#define FLOATS_72(c) FLOATS_64(c), FLOATS_8(c, 64)
#define FLOATS_80(c) FLOATS_72(c), FLOATS_8(c, 72)
#define FLOATS_88(c) FLOATS_80(c), FLOATS_8(c, 80)
#define FLOATS_96(c) FLOATS_88(c), FLOATS_8(c, 88)
#define FLOATS_112(c) FLOATS_96(c), FLOATS_8(c, 96), FLOATS_8(c, 104)
#define FLOATS_128(c) FLOATS_112(c), FLOATS_8(c, 112), FLOATS_8(c, 120)

// One instruction: its N, its registers of C, its factors' types, and the names of the operands that follow C.
#define WGMMA_SS(N, COUNT, TYPES, P0, P1, P2, P3, P4, P5) \
  asm volatile( \
      "{ .reg .pred p; .reg .b64 a, b;\n" \
      "setp.ne.b32 p, " P4 ", 0; mov.b64 a, {" P0 ", " P1 "}; mov.b64 b, {" P2 ", " P3 "};\n" \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {" NAMES_##COUNT "}, a, b, p, 1, 1, 0, " P5 "; }" \
      : FLOATS_##COUNT(c) \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "r"(int{accumulate}), "n"(major == Major::mn ? 1 : 0))
#define WGMMA_RS(N, COUNT, TYPES, P0, P1, P2, P3, P4, P5, P6, P7) \
  asm volatile( \
      "{ .reg .pred p; .reg .b64 b;\n" \
      "setp.ne.b32 p, " P6 ", 0; mov.b64 b, {" P4 ", " P5 "};\n" \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {" NAMES_##COUNT "}, {" P0 ", " P1 ", " P2 ", " P3 "}, b" \
      ", p, 1, 1, " P7 "; }" \
      : FLOATS_##COUNT(c) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high), "r"(int{accumulate}), \
        "n"(major == Major::mn ? 1 : 0))
#define WGMMA(N, COUNT, P0, P1, P2, P3, P4, P5, P6, P7) \
  template <Major major, typename T = half> \
  __device__ __forceinline__ void wgmma(float (&c)[COUNT], Descriptor a, Descriptor b, bool accumulate) { \
    static_assert(is_16_bits<T>); \
    if constexpr (std::is_same_v<T, half>) WGMMA_SS(N, COUNT, "f16.f16", P0, P1, P2, P3, P4, P5); \
    else WGMMA_SS(N, COUNT, "bf16.bf16", P0, P1, P2, P3, P4, P5); \
  } \
  template <Major major, typename T = half> \
  __device__ __forceinline__ void wgmma(float (&c)[COUNT], const uint32_t (&a)[4], Descriptor b, bool accumulate) { \
    static_assert(is_16_bits<T>); \
    if constexpr (std::is_same_v<T, half>) WGMMA_RS(N, COUNT, "f16.f16", P0, P1, P2, P3, P4, P5, P6, P7); \
    else WGMMA_RS(N, COUNT, "bf16.bf16", P0, P1, P2, P3, P4, P5, P6, P7); \
  }
WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39")
WGMMA(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47")
WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71")
WGMMA(144, 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79")
WGMMA(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87")
WGMMA(176, 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94", "%95")
WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103")
WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135")
#undef WGMMA
#undef WGMMA_RS
#undef WGMMA_SS

/// C[64][N] = A[64][32] B[32][N], added to C if `accumulate`: FP8 factors, sums in an accumulator that holds about 13 bits
/// behind the leading one, stored as floats. Both factors are K-major: A as [64][K], B as [N][K]. The simulated header of this
/// name says which thread holds which element. PTX wgmma.mma_async.sync.aligned.m64nNk32.f32.{e4m3,e5m2}.{e4m3,e5m2}.
/// @tparam Left   e4m3 or e5m2: the elements of A
/// @tparam Right  those of B
/// @param c       N / 2 registers a thread
/// @param a       a descriptor, or four registers a thread
/// @param b       a descriptor
#ifdef DOXYGEN
template <typename Left, typename Right = Left, int count>
__device__ __forceinline__ void wgmma_fp8(float (&c)[count], Descriptor a, Descriptor b, bool accumulate);
#endif

template <typename T>
constexpr bool is_e4m3 = std::is_same_v<T, e4m3>;
template <typename T>
constexpr bool is_fp8 = std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>;

// The instruction for one pair of types.
#define WGMMA_FP8_SS(N, COUNT, TYPES, P0, P1, P2, P3, P4) \
  asm volatile( \
      "{ .reg .pred p; .reg .b64 a, b;\n" \
      "setp.ne.b32 p, " P4 ", 0; mov.b64 a, {" P0 ", " P1 "}; mov.b64 b, {" P2 ", " P3 "};\n" \
      "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES " {" NAMES_##COUNT "}, a, b, p, 1, 1; }" \
      : FLOATS_##COUNT(c) \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "r"(int{accumulate}))
#define WGMMA_FP8_RS(N, COUNT, TYPES, P0, P1, P2, P3, P4, P5, P6) \
  asm volatile( \
      "{ .reg .pred p; .reg .b64 b;\n" \
      "setp.ne.b32 p, " P6 ", 0; mov.b64 b, {" P4 ", " P5 "};\n" \
      "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES " {" NAMES_##COUNT "}, {" P0 ", " P1 ", " P2 ", " P3 "}, b" \
      ", p, 1, 1; }" \
      : FLOATS_##COUNT(c) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high), "r"(int{accumulate}))
#define WGMMA_FP8(N, COUNT, P0, P1, P2, P3, P4, P5, P6) \
  template <typename Left, typename Right = Left> \
  __device__ __forceinline__ void wgmma_fp8(float (&c)[COUNT], Descriptor a, Descriptor b, bool accumulate) { \
    static_assert(is_fp8<Left> && is_fp8<Right>); \
    constexpr bool l = is_e4m3<Left>, r = is_e4m3<Right>; \
    if constexpr (l && r) WGMMA_FP8_SS(N, COUNT, "e4m3.e4m3", P0, P1, P2, P3, P4); \
    if constexpr (l && !r) WGMMA_FP8_SS(N, COUNT, "e4m3.e5m2", P0, P1, P2, P3, P4); \
    if constexpr (!l && r) WGMMA_FP8_SS(N, COUNT, "e5m2.e4m3", P0, P1, P2, P3, P4); \
    if constexpr (!l && !r) WGMMA_FP8_SS(N, COUNT, "e5m2.e5m2", P0, P1, P2, P3, P4); \
  } \
  template <typename Left, typename Right = Left> \
  __device__ __forceinline__ void wgmma_fp8(float (&c)[COUNT], const uint32_t (&a)[4], Descriptor b, bool accumulate) { \
    static_assert(is_fp8<Left> && is_fp8<Right>); \
    constexpr bool l = is_e4m3<Left>, r = is_e4m3<Right>; \
    if constexpr (l && r) WGMMA_FP8_RS(N, COUNT, "e4m3.e4m3", P0, P1, P2, P3, P4, P5, P6); \
    if constexpr (l && !r) WGMMA_FP8_RS(N, COUNT, "e4m3.e5m2", P0, P1, P2, P3, P4, P5, P6); \
    if constexpr (!l && r) WGMMA_FP8_RS(N, COUNT, "e5m2.e4m3", P0, P1, P2, P3, P4, P5, P6); \
    if constexpr (!l && !r) WGMMA_FP8_RS(N, COUNT, "e5m2.e5m2", P0, P1, P2, P3, P4, P5, P6); \
  }
WGMMA_FP8(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA_FP8(72, 36, "%36", "%37", "%38", "%39", "%40", "%41", "%42")
WGMMA_FP8(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
WGMMA_FP8(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
WGMMA_FP8(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
WGMMA_FP8(136, 68, "%68", "%69", "%70", "%71", "%72", "%73", "%74")
WGMMA_FP8(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
WGMMA_FP8(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
WGMMA_FP8(224, 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
WGMMA_FP8(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#undef WGMMA_FP8
#undef WGMMA_FP8_RS
#undef WGMMA_FP8_SS

}  // namespace gpu
