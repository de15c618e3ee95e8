/// @file
/// The warp's matrix instruction of Turing and Ampere, PTX mma.sync (ISA "Warp-level matrix instructions").
#pragma once

#include "simt.h"

inline namespace simulated {

/// C[16][8] += A[16][16] * B[16][8]: FP16 factors, float sums. PTX mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32.
///
/// Each lane holds a part (g = lane / 4, q = lane % 4; a register of A and B holds two neighbours in k):
///
///     A: a[0] = (g, 2q)   a[1] = (g+8, 2q)   a[2] = (g, 2q+8)   a[3] = (g+8, 2q+8)     as (row, k)
///     B: b0 = (2q, g)     b1 = (2q+8, g)                                                as (k, column)
///     C: c[0], c[1] = (g, 2q), (g, 2q+1)     c[2], c[3] = (g+8, 2q), (g+8, 2q+1)         as (row, column)
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, SIMULATOR_SITE_PARAMETERS);

}  // namespace simulated
