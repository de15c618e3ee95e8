/// @file
/// The arithmetic that the ledger counts: one instruction each on the GPU.
#pragma once

#include "simt.h"

inline namespace simulated {

/// a * b + c with one rounding. SASS FFMA; 2 FLOP. PTX fma.rn.f32.
float multiply_add(float a, float b, float c);

/// 2^x, to about 2 units in the last place, subnormal results flushed to zero. PTX ex2.approx.ftz.f32; SASS MUFU.EX2.
float exp2_approx(float x);

/// 1 / x, to about 1 unit in the last place, subnormals flushed to zero. PTX rcp.approx.ftz.f32; SASS MUFU.RCP.
float reciprocal(float x);

/// x * factor: a multiplication that carries an unfinished result (an element of O) to a new maximum. PTX mul.f32.
float rescale(float x, float factor);

}  // namespace simulated
