/// @file
/// Fragments of a matrix instruction to shared memory, PTX stmatrix (ISA "Warp-level matrix store instruction").
#pragma once

#include "half.h"

inline namespace gpu {

/// Four 8x8 matrices of halves, the inverse of ldmatrix_x4: lane i passes the address of row i % 8 of matrix i / 8, and in
/// r[m] the elements (row lane / 4, columns 2 * (lane % 4) and the next) of matrix m.
/// PTX stmatrix.sync.aligned.m8n8.x4.shared.b16.
__device__ __forceinline__ void stmatrix_x4(half* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(row))),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace gpu
