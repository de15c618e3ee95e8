/// @file
/// What the tensor cores of a warpgroup do with one wgmma. wgmma.cpp says when.
#pragma once

#include "machine.h"

namespace simulator {

/// The factors of `op` that lie in shared memory: descriptors, bounds, races, proxies. The tensor cores of `group` read for
/// all four warps.
void check_factors(const Multiplication& op, Warpgroup& group);

/// The product, added to op.chain->matrix or put there.
void execute(Multiplication& op);

/// How many columns the left factor has: an instruction takes 32 bytes of each row.
inline int depth_of(Number number) { return number == Number::half || number == Number::bfloat16 ? 16 : 32; }

}  // namespace simulator
