/// @file
/// Shared memory to the fragments of mma.sync, PTX ldmatrix (ISA "Warp-level matrix load instruction").
#pragma once

#include "half.h"

inline namespace gpu {

/// Four 8x8 matrices of halves. Lane i passes the address of row i % 8 of matrix i / 8 (16 bytes, aligned to 16);
/// it receives in r[m] the elements (row lane / 4, columns 2 * (lane % 4) and the next) of matrix m.
/// PTX ldmatrix.sync.aligned.m8n8.x4.shared.b16.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// The same with every matrix transposed: r[m] holds the elements (rows 2 * (lane % 4) and the next, column
/// lane / 4). PTX ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace gpu
