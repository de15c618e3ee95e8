/// @file
/// Fragments of a matrix instruction to shared memory, PTX stmatrix (ISA "Warp-level matrix store instruction").
#pragma once

#include "half.h"

inline namespace simulated {

/// Four 8x8 matrices of halves, the inverse of ldmatrix_x4: lane i passes the address of row i % 8 of matrix i / 8, and in
/// r[m] the elements (row lane / 4, columns 2 * (lane % 4) and the next) of matrix m.
/// PTX stmatrix.sync.aligned.m8n8.x4.shared.b16.
void stmatrix_x4(half* row, const uint32_t (&r)[4], SIMULATOR_SITE_PARAMETERS);

}  // namespace simulated
