/// @file
/// The warp's matrix instruction of Turing and Ampere, PTX mma.sync (ISA "Warp-level matrix instructions").
#pragma once

#include "simt.h"

inline namespace gpu {

/// C[16][8] += A[16][16] * B[16][8]: FP16 factors, float sums. PTX mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32.
/// The simulated header of this name says which lane holds which element.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace gpu
