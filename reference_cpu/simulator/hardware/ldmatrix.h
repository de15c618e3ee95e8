/// @file
/// Shared memory to the fragments of mma.sync, PTX ldmatrix (ISA "Warp-level matrix load instruction").
#pragma once

#include "half.h"

inline namespace simulated {

/// Four 8x8 matrices of halves. Lane i passes the address of row i % 8 of matrix i / 8 (16 bytes, aligned to 16);
/// it receives in r[m] the elements (row lane / 4, columns 2 * (lane % 4) and the next) of matrix m.
/// PTX ldmatrix.sync.aligned.m8n8.x4.shared.b16.
void ldmatrix_x4(uint32_t (&r)[4], const half* row, SIMULATOR_SITE_PARAMETERS);

/// The same with every matrix transposed: r[m] holds the elements (rows 2 * (lane % 4) and the next, column
/// lane / 4). PTX ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16.
void ldmatrix_x4_trans(uint32_t (&r)[4], const half* row, SIMULATOR_SITE_PARAMETERS);

}  // namespace simulated
