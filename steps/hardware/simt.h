/// @file
/// The CUDA language on the GPU: nvcc brings all of it. The simulated header of this name defines it in C++.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
