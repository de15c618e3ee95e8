/// @file
/// The CUDA language, simulated: keywords, built-in variables, vector types, barriers, shuffles, votes, atomics.
/// The names and meanings are CUDA's own (CUDA C++ Programming Guide, "C++ Language Extensions").
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "../core.h"

#define __global__
/// Inlined, as nvcc does: the hooks do not see a store of a struct that a call returns straight into memory.
#define __device__ __attribute__((always_inline))
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
/// A variable of the CTA. Thread-local storage keeps all of a module's in one block that the simulator can find,
/// poison at the start of every CTA and check.
#define __shared__ static thread_local

extern simulator::Index3 threadIdx, blockIdx, blockDim, gridDim;

inline namespace simulated {

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
__forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
__forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__forceinline__ uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
__forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename T> __forceinline__ T min(T a, T b) { return b < a ? b : a; }
template <typename T> __forceinline__ T max(T a, T b) { return a < b ? b : a; }
__forceinline__ float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
__forceinline__ unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
__forceinline__ int __popc(unsigned bits) { return std::popcount(bits); }

// --- barriers --------------------------------------------------------------------------------------------------

/// Waits until every thread of the CTA that has not returned is here; all see each other's memory accesses.
__forceinline__ void __syncthreads(SIMULATOR_SITE_PARAMETERS) {
  simulator::barrier_sync("__syncthreads", 0, 0, SIMULATOR_SITE);
}

/// The same for the lanes of `mask` within a warp.
__forceinline__ void __syncwarp(unsigned mask = 0xFFFFFFFFu, SIMULATOR_SITE_PARAMETERS) {
  simulator::warp_sync(mask, SIMULATOR_SITE);
}

// --- shuffles and votes: registers only, they order no memory access ---------------------------------------------

/// What one lane brings to a shuffle: a value of 4 bytes, and the lane that it wants to read.
struct ShuffleArgument {
  unsigned value;
  int source;
  unsigned result;
};
void shuffle(const char* instruction, unsigned mask, ShuffleArgument& argument, simulator::Site site);

template <typename T>
__forceinline__ T shuffle_from(const char* instruction, unsigned mask, T value, int source, simulator::Site site) {
  static_assert(sizeof(T) == 4, "a shuffle moves 4 bytes");
  ShuffleArgument argument{std::bit_cast<unsigned>(value), source, 0};
  shuffle(instruction, mask, argument, site);
  return std::bit_cast<T>(argument.result);
}

/// The value of lane `source` (within segments of `width` lanes).
template <typename T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMULATOR_SITE_PARAMETERS) {
  const int segment = simulator::lane_index() & ~(width - 1);
  return shuffle_from("__shfl_sync", mask, value, segment + (source & (width - 1)), SIMULATOR_SITE);
}
/// The value of the lane whose index differs by exclusive or with `lanes`.
template <typename T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SIMULATOR_SITE_PARAMETERS) {
  const int self = simulator::lane_index(), source = self ^ lanes;
  const bool inside = source < (self & ~(width - 1)) + width;
  return shuffle_from("__shfl_xor_sync", mask, value, inside ? source : self, SIMULATOR_SITE);
}
/// The value of the lane `delta` above; its own where that lane lies outside the segment.
template <typename T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMULATOR_SITE_PARAMETERS) {
  const int self = simulator::lane_index(), source = self + static_cast<int>(delta);
  const bool inside = source < (self & ~(width - 1)) + width;
  return shuffle_from("__shfl_down_sync", mask, value, inside ? source : self, SIMULATOR_SITE);
}
/// The value of the lane `delta` below; its own where that lane lies outside the segment.
template <typename T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMULATOR_SITE_PARAMETERS) {
  const int self = simulator::lane_index(), source = self - static_cast<int>(delta);
  const bool inside = source >= (self & ~(width - 1));
  return shuffle_from("__shfl_up_sync", mask, value, inside ? source : self, SIMULATOR_SITE);
}

/// Bit i of the result is set iff lane i of the mask brings a non-zero predicate.
unsigned ballot(const char* instruction, unsigned mask, int predicate, simulator::Site site);
__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, SIMULATOR_SITE_PARAMETERS) {
  return ballot("__ballot_sync", mask, predicate, SIMULATOR_SITE);
}
__forceinline__ int __any_sync(unsigned mask, int predicate, SIMULATOR_SITE_PARAMETERS) {
  return ballot("__any_sync", mask, predicate, SIMULATOR_SITE) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate, SIMULATOR_SITE_PARAMETERS) {
  return ballot("__all_sync", mask, predicate, SIMULATOR_SITE) == mask;
}

// --- atomics -----------------------------------------------------------------------------------------------------

/// Adds to memory and returns what was there before. Another thread's access never comes between.
unsigned atomicAdd(unsigned* address, unsigned value, SIMULATOR_SITE_PARAMETERS);
int atomicAdd(int* address, int value, SIMULATOR_SITE_PARAMETERS);
float atomicAdd(float* address, float value, SIMULATOR_SITE_PARAMETERS);

}  // namespace simulated
