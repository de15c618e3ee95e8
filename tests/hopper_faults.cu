/// @file
/// Kernels for test_hopper_faults.cpp, each with a deliberate fault in the use of what Hopper brought. Each has two
/// instances, the wrong and the right one. A line that ends in "// in report: NAME" must be named in the report of kernel
/// NAME.
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/stmatrix.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>
#include <hardware/wgmma.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/simulator_kernels.h"

namespace {

constexpr unsigned all_lanes = 0xFFFFFFFFu;
constexpr int tile_bytes = 64 * 64 * 2;

// Both tensors are matrices of 64 columns of halves in boxes of 64 rows: `in` is the first 128 rows of the data, `out` the
// next 128. `narrow` has three dimensions, `beyond` more rows than the data, `host` is not on the GPU.
struct Maps {
  TensorMap in, out, narrow, beyond, host;
};

struct Shared {
  Mbarrier full[2], empty[2];
  uint32_t words[256];
  alignas(1024) half A[64][64], B[64][64];
};

#define KERNEL          \
  template <bool right> \
  __global__ void
#define ARGUMENTS [[maybe_unused]] const __grid_constant__ Maps maps, [[maybe_unused]] uint32_t *data
// Every kernel starts with these.
#define BEGIN                                                   \
  [[maybe_unused]] const int t = static_cast<int>(threadIdx.x); \
  [[maybe_unused]] auto& shared = *dynamic_shared<Shared>()

// All barriers, ready for all threads: full for one arrival, empty for all threads.
__device__ void ready(Shared& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i)
      mbarrier_init(shared.full[i], 1), mbarrier_init(shared.empty[i], static_cast<int>(blockDim.x));
    fence_mbarrier_init();
  }
  __syncthreads();
}

// One word a thread, so that a kernel's result depends on its accumulators.
template <int count>
__device__ void show(uint32_t* data, const float (&c)[count]) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += c[i];
  data[8192 + threadIdx.x] = __float_as_uint(sum);
}

// --- mbarriers -------------------------------------------------------------------------------------------------

KERNEL never_initialized(ARGUMENTS) {
  BEGIN;
  if (right) ready(shared);
  if (t == 5) mbarrier_arrive(shared.full[0]);  // in report: never_initialized
}
// The lanes meet in the shuffle, but that orders no memory.
KERNEL initialized_without_barrier(ARGUMENTS) {
  BEGIN;
  if (t == 0) mbarrier_init(shared.full[0], 1);  // in report: initialized_without_barrier
  __shfl_sync(all_lanes, t, 0);
  if (right) __syncwarp();
  if (t == 5) mbarrier_arrive(shared.full[0]);  // in report: initialized_without_barrier
}
KERNEL initialized_without_fence(ARGUMENTS) {
  BEGIN;
  if (t == 0) {
    mbarrier_init(shared.full[0], 1);  // in report: initialized_without_fence
    if (right) fence_mbarrier_init();
  }
  __syncthreads();
  if (t == 32) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);  // in report: initialized_without_fence
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL initialized_twice(ARGUMENTS) {
  BEGIN;
  if (t != 0) return;
  mbarrier_init(shared.full[0], 1);              // in report: initialized_twice
  if (!right) mbarrier_init(shared.full[0], 1);  // in report: initialized_twice
}
KERNEL no_arrivals(ARGUMENTS) {
  BEGIN;
  if (t == 0) mbarrier_init(shared.full[0], right ? 1 : 0);  // in report: no_arrivals
}
KERNEL mbarrier_in_global_memory(ARGUMENTS) {
  BEGIN;
  if (t == 0)
    mbarrier_init(right ? shared.full[0] : *reinterpret_cast<Mbarrier*>(data), 1);  // in report: mbarrier_in_global_memory
}
KERNEL mbarrier_overwritten(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (!right && t == 0) reinterpret_cast<uint32_t*>(shared.empty)[0] = 7;
  __syncthreads();
  mbarrier_arrive(shared.empty[0]);  // in report: mbarrier_overwritten
}
KERNEL arrival_too_many(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    if (!right) mbarrier_arrive(shared.full[0]);  // in report: arrival_too_many
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL arrival_missing(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (right || t != 70) mbarrier_arrive(shared.empty[0]);
  mbarrier_wait(shared.empty[0], 0);  // in report: arrival_missing
}
KERNEL bytes_too_few(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes - (right ? 0 : 16));  // in report: bytes_too_few
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);         // in report: bytes_too_few
  }
  mbarrier_wait(shared.full[0], 0);
}
// Two boxes, of which only the bytes of one are announced.
KERNEL bytes_of_one_box(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], right ? 2 * tile_bytes : tile_bytes);
    for (int i = 0; i < 2; ++i)
      tma_load(i == 0 ? shared.A : shared.B, maps.in, shared.full[0], 0, 64 * i, 0, 0);  // in report: bytes_of_one_box
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL bytes_too_many(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes + (right ? 0 : 16));
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);
  }
  mbarrier_wait(shared.full[0], 0);  // in report: bytes_too_many
}
KERNEL load_names_the_wrong_barrier(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[right ? 0 : 1], 0, 0, 0, 0);
  }
  mbarrier_wait(shared.full[0], 0);  // in report: load_names_the_wrong_barrier
}
// The producer waits for "empty" with the parity that has not been, before the first tile.
KERNEL parity_of_the_producer(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_wait(shared.empty[0], right ? 1 : 0);  // in report: parity_of_the_producer
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);
  }
  mbarrier_wait(shared.full[0], 0);  // in report: parity_of_the_producer
}
KERNEL parity_of_the_consumer(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);
  }
  __syncthreads();
  // Whether the tile has landed when it asks, decides between a deadlock and a tile read too early.
  const half& element = shared.A[t % 64][1];
  const int parity = right ? 0 : 1;
  if (right || t == 40) mbarrier_wait(shared.full[0], parity), data[t] = element.bits;  // in report: parity_of_the_consumer
  __syncthreads();
  mbarrier_wait(shared.full[0], 0);
}
// Two phases have passed when the others ask for the first: of the same parity is now the third, which never ends.
KERNEL waiter_lags(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_arrive(shared.full[0]);
    if (!right) mbarrier_arrive(shared.full[0]);
  }
  __syncthreads();
  mbarrier_wait(shared.full[0], 0);  // in report: waiter_lags
}
// Warp 1 sleeps at the first phase; before it can look, the second is over too.
KERNEL waiter_overtaken(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_arrive(shared.full[0]);
    if (!right) mbarrier_arrive(shared.full[0]);
  }
  if (t >= 32) mbarrier_wait(shared.full[0], 0);  // in report: waiter_overtaken
}
KERNEL parity_of_two(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 9) mbarrier_wait(shared.full[0], right ? 1 : 2);  // in report: parity_of_two
}

// --- loads -----------------------------------------------------------------------------------------------------

__device__ void load_tile(Shared& shared, const Maps& maps, int phase) {
  if (threadIdx.x == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 64 * (phase % 2), 0, 0);
  }
}

KERNEL tile_read_before_it_landed(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);  // in report: tile_read_before_it_landed
  }
  __syncthreads();
  if (right) mbarrier_wait(shared.full[0], 0);
  data[8192 + t] = shared.A[t % 64][1].bits;  // in report: tile_read_before_it_landed
  mbarrier_wait(shared.full[0], 0);
}
// One thread waits, and no barrier tells the others.
KERNEL tile_waited_for_by_one(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);  // in report: tile_waited_for_by_one
  }
  __syncthreads();
  if (t == 0) mbarrier_wait(shared.full[0], 0);
  if (right) __syncthreads();
  data[8192 + t] = shared.A[t % 64][1].bits;  // in report: tile_waited_for_by_one
}
KERNEL tile_never_waited_for(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);  // in report: tile_never_waited_for
  }
  if (right) mbarrier_wait(shared.full[0], 0);
}
// The next tile is loaded over one that others have read: the shuffle comes between, but orders no memory.
KERNEL tile_overwritten(ARGUMENTS) {
  BEGIN;
  ready(shared);
  load_tile(shared, maps, 0);
  mbarrier_wait(shared.full[0], 0);
  data[8192 + t] = shared.A[t % 64][1].bits;  // in report: tile_overwritten
  __shfl_sync(all_lanes, t, 0);
  if (right) mbarrier_arrive(shared.empty[0]);
  if (t == 0) {
    if (right) mbarrier_wait(shared.empty[0], 0);
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 64, 0, 0);  // in report: tile_overwritten
  }
  mbarrier_wait(shared.full[0], 1);
}
KERNEL load_over_a_store(ARGUMENTS) {
  BEGIN;
  ready(shared);
  shared.A[t % 64][t / 64] = to_half(1);  // in report: load_over_a_store
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);  // in report: load_over_a_store
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL load_misaligned(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(&shared.A[0][right ? 0 : 32], maps.in, shared.full[0], 0, 0, 0, 0);  // in report: load_misaligned
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL load_from_an_odd_column(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], right ? 8 : 4, 0, 0, 0);  // in report: load_from_an_odd_column
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL load_past_shared_memory(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(&shared.B[right ? 0 : 32], maps.in, shared.full[0], 0, 0, 0, 0);  // in report: load_past_shared_memory
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL load_with_three_dimensions(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, right ? maps.in : maps.narrow, shared.full[0], 0, 0, 0, 0);  // in report: load_with_three_dimensions
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL load_without_a_map(ARGUMENTS) {
  BEGIN;
  ready(shared);
  const TensorMap none = {};
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, right ? maps.in : none, shared.full[0], 0, 0, 0, 0);  // in report: load_without_a_map
  }
  mbarrier_wait(shared.full[0], 0);
}
KERNEL map_beyond_the_tensor(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.beyond, shared.full[0], 0, right ? 0 : 100000, 0, 0);  // in report: map_beyond_the_tensor
  }
  mbarrier_wait(shared.full[0], 0);
}

KERNEL map_of_host_memory(ARGUMENTS) {
  BEGIN;
  ready(shared);
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, right ? maps.in : maps.host, shared.full[0], 0, 0, 0, 0);  // in report: map_of_host_memory
  }
  mbarrier_wait(shared.full[0], 0);
}

// --- stores ----------------------------------------------------------------------------------------------------

__device__ void fill(half (&tile)[64][64]) {
  for (int i = 0; i < 32; ++i) tile[threadIdx.x % 64][threadIdx.x / 64 * 32 + i] = to_half(static_cast<float>(threadIdx.x));
}

KERNEL store_without_fence(ARGUMENTS) {
  BEGIN;
  for (int i = 0; i < 32; ++i) shared.A[t % 64][t / 64 * 32 + i] = to_half(1);  // in report: store_without_fence
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store(maps.out, shared.A, 0, 0, 0, 0);  // in report: store_without_fence
    tma_commit();
    tma_wait_read<0>();
  }
}
// The fence stands behind the barrier, where it is not the writers'.
KERNEL store_with_a_late_fence(ARGUMENTS) {
  BEGIN;
  for (int i = 0; i < 32; ++i) shared.A[t % 64][t / 64 * 32 + i] = to_half(1);  // in report: store_with_a_late_fence
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    fence_proxy_async();
    tma_store(maps.out, shared.A, 0, 0, 0, 0);  // in report: store_with_a_late_fence
    tma_commit();
    tma_wait_read<0>();
  }
}
KERNEL store_without_barrier(ARGUMENTS) {
  BEGIN;
  const uint32_t r[4] = {1, 2, 3, 4};
  for (int x = 0; x < 64; x += 16)
    stmatrix_x4(&shared.A[t / 32 * 16 + t % 16][x + t / 16 % 2 * 8], r);  // in report: store_without_barrier
  fence_proxy_async();
  __shfl_sync(all_lanes, 1, 0);
  if (right) __syncthreads();
  if (t == 127) {
    tma_store(maps.out, shared.A, 0, 0, 0, 0);  // in report: store_without_barrier
    tma_commit();
    tma_wait_read<0>();
  }
}
KERNEL store_not_waited_for(ARGUMENTS) {
  BEGIN;
  fill(shared.A);
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store(maps.out, shared.A, 0, 0, 0, 0);  // in report: store_not_waited_for
    tma_commit();
    if (right) tma_wait_read<0>();
  }
}
KERNEL store_not_committed(ARGUMENTS) {
  BEGIN;
  fill(shared.A);
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store(maps.out, shared.A, 0, 0, 0, 0);  // in report: store_not_committed
    if (right) tma_commit();
    tma_wait_read<0>();
  }
}
KERNEL stored_tile_overwritten(ARGUMENTS) {
  BEGIN;
  fill(shared.A);
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store(maps.out, shared.A, 0, 0, 0, 0);  // in report: stored_tile_overwritten
    tma_commit();
    if (right) tma_wait_read<0>();
  }
  __syncthreads();
  shared.A[t % 64][t / 64] = to_half(5);  // in report: stored_tile_overwritten
  if (t == 0) tma_wait_read<0>();
}
KERNEL store_before_the_tensor(ARGUMENTS) {
  BEGIN;
  fill(shared.A);
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store(maps.out, shared.A, 0, right ? 0 : -1, 0, 0);  // in report: store_before_the_tensor
    tma_commit();
    tma_wait_read<0>();
  }
}

// --- wgmma -----------------------------------------------------------------------------------------------------

// Both tiles, landed and waited for.
__device__ void load_both(Shared& shared, const Maps& maps) {
  ready(shared);
  if (threadIdx.x == 0) {
    mbarrier_expect(shared.full[0], 2 * tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);
    tma_load(shared.B, maps.in, shared.full[0], 0, 64, 0, 0);
  }
  mbarrier_wait(shared.full[0], 0);
}
#define TILES                                                          \
  [[maybe_unused]] const Descriptor A = descriptor(shared.A, 1, 1024); \
  [[maybe_unused]] const Descriptor B = descriptor(shared.B, 1, 1024)

KERNEL accumulators_read_in_flight(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: accumulators_read_in_flight
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
  data[8192 + t] = __float_as_uint(c[3]);  // in report: accumulators_read_in_flight
  wgmma_wait<0>(c);
}
KERNEL accumulators_written_in_flight(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: accumulators_written_in_flight
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
  c[7] = 0;  // in report: accumulators_written_in_flight
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL one_group_too_few(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32], d[32];
  wgmma_fence(c, d);
  wgmma<Major::k>(c, A, B, false);
  wgmma_commit();
  wgmma<Major::k>(d, A, B, false);  // in report: one_group_too_few
  wgmma_commit();
  wgmma_wait<1>(c);
  show(data, c);
  if (right) wgmma_wait<0>(d);
  data[8192 + t] = __float_as_uint(d[3]);  // in report: one_group_too_few
  wgmma_wait<0>(d);
}
KERNEL group_not_committed(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: group_not_committed
  if (right) {
    wgmma_commit();
    wgmma_wait<0>(c);
  } else {
    wgmma_wait<0>();
  }
}
KERNEL fence_missing(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  for (float& x : c) x = 1;
  if (right) wgmma_fence(c);
  wgmma<Major::k>(c, A, B, true);  // in report: fence_missing
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL accumulators_written_after_the_fence(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  for (float& x : c) x = 1;
  wgmma_fence(c);
  if (!right) c[0] = 2;
  wgmma<Major::k>(c, A, B, true);  // in report: accumulators_written_after_the_fence
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL fence_without_the_factor(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  uint32_t a[4] = {1, 2, 3, 4};
  if (right) wgmma_fence(c, a);
  else wgmma_fence(c);
  wgmma<Major::mn>(c, a, B, false);  // in report: fence_without_the_factor
  wgmma_commit();
  wgmma_wait<0>(c, a);
  show(data, c);
}
KERNEL fence_names_what_is_in_flight(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32], d[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: fence_names_what_is_in_flight
  wgmma_commit();
  if (right) wgmma_fence(d);
  else wgmma_fence(c, d);  // in report: fence_names_what_is_in_flight
  wgmma<Major::k>(d, A, B, false);
  wgmma_commit();
  wgmma_wait<0>(c, d);
  show(data, d);
}
KERNEL wait_without_the_accumulators(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: wait_without_the_accumulators
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
  else wgmma_wait<0>();  // in report: wait_without_the_accumulators
  show(data, c);
}
KERNEL factor_overwritten_in_flight(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  uint32_t a[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  wgmma_fence(c, a);
  wgmma<Major::mn>(c, a[0], B, false);  // in report: factor_overwritten_in_flight
  wgmma<Major::mn>(c, a[1], advance(B, 2048), true);
  wgmma_commit();
  if (right) wgmma_wait<0>(c, a);
  a[1][2] = 9;  // in report: factor_overwritten_in_flight
  wgmma_wait<0>(c, a);
  show(data, c);
}
KERNEL wgmma_not_waited_for(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: wgmma_not_waited_for
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
}
KERNEL tile_multiplied_before_it_landed(ARGUMENTS) {
  BEGIN;
  ready(shared);
  TILES;
  if (t == 0) {
    mbarrier_expect(shared.full[0], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[0], 0, 0, 0, 0);  // in report: tile_multiplied_before_it_landed
  }
  if (right) mbarrier_wait(shared.full[0], 0);
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, A, false);  // in report: tile_multiplied_before_it_landed
  wgmma_commit();
  wgmma_wait<0>(c);
  mbarrier_wait(shared.full[0], 0);
  if (right) show(data, c);
}
// The stage is released before the wgmma that reads it are complete.
KERNEL stage_released_too_early(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: stage_released_too_early
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
  mbarrier_arrive(shared.empty[0]);
  if (t == 0) {
    mbarrier_wait(shared.empty[0], 0);
    mbarrier_expect(shared.full[1], tile_bytes);
    tma_load(shared.A, maps.in, shared.full[1], 0, 64, 0, 0);  // in report: stage_released_too_early
  }
  if (!right) wgmma_wait<0>(c);
  mbarrier_wait(shared.full[1], 0);
  if (right) show(data, c);
}
KERNEL tile_stored_over_in_flight(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, B, false);  // in report: tile_stored_over_in_flight
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
  if (right) __syncthreads();
  if (t == 64) shared.A[0][0] = to_half(1);  // in report: tile_stored_over_in_flight
  if (!right) wgmma_wait<0>(c);
  if (right) show(data, c);
}
KERNEL tile_written_without_fence(ARGUMENTS) {
  BEGIN;
  TILES;
  for (int i = 0; i < 32; ++i) shared.A[t % 64][t / 64 * 32 + i] = to_half(1);  // in report: tile_written_without_fence
  if (right) fence_proxy_async();
  __syncthreads();
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, A, false);  // in report: tile_written_without_fence
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL tile_inside_a_pattern(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, advance(B, right ? 0 : -128), false);  // in report: tile_inside_a_pattern
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL tile_beyond_shared_memory(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, A, advance(B, right ? 0 : 4096), false);  // in report: tile_beyond_shared_memory
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}

// wgmma_fp8 keeps the same rules.
KERNEL fp8_accumulators_read_in_flight(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma_fp8<e4m3>(c, A, B, false);  // in report: fp8_accumulators_read_in_flight
  wgmma_commit();
  if (right) wgmma_wait<0>(c);
  data[8192 + t] = __float_as_uint(c[3]);  // in report: fp8_accumulators_read_in_flight
  wgmma_wait<0>(c);
}
KERNEL fp8_factor_not_named(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  uint32_t a[4] = {1, 2, 3, 4};
  if (right) wgmma_fence(c, a);
  else wgmma_fence(c);
  wgmma_fp8<e5m2, e4m3>(c, a, B, false);  // in report: fp8_factor_not_named
  wgmma_commit();
  wgmma_wait<0>(c, a);
  show(data, c);
}
KERNEL fp8_tile_written_without_fence(ARGUMENTS) {
  BEGIN;
  for (int i = 0; i < 32; ++i) shared.A[t % 64][t / 64 * 32 + i] = to_half(1);  // in report: fp8_tile_written_without_fence
  if (right) fence_proxy_async();
  __syncthreads();
  const Descriptor A = descriptor(shared.A, 0, 512, Swizzle::bytes_64);
  float c[32];
  wgmma_fence(c);
  wgmma_fp8<e4m3>(c, A, A, false);  // in report: fp8_tile_written_without_fence
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL fp8_tile_inside_a_pattern(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  const Descriptor B = descriptor(shared.B, 0, 512, Swizzle::bytes_64);
  float c[32];
  wgmma_fence(c);
  wgmma_fp8<e4m3>(c, B, advance(B, right ? 512 : 256), false);  // in report: fp8_tile_inside_a_pattern
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL fp8_tile_beyond_its_row(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  const Descriptor B = descriptor(shared.B, 0, 256, Swizzle::bytes_32);
  float c[32];
  wgmma_fence(c);
  wgmma_fp8<e4m3>(c, B, advance(B, right ? 256 : 32), false);  // in report: fp8_tile_beyond_its_row
  wgmma_commit();
  wgmma_wait<0>(c);
  show(data, c);
}
KERNEL warps_with_different_descriptors(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  wgmma_fence(c);
  wgmma<Major::k>(c, advance(A, right || t < 96 ? 0 : 32), B, false);  // in report: warps_with_different_descriptors
  wgmma_commit();
  wgmma_wait<0>(c);
}
KERNEL one_warp_missing(ARGUMENTS) {
  BEGIN;
  load_both(shared, maps);
  TILES;
  float c[32];
  if (!right && t >= 96) return;
  wgmma_fence(c);  // in report: one_warp_missing
  wgmma<Major::k>(c, A, B, false);
  wgmma_commit();
  wgmma_wait<0>(c);
}
KERNEL warps_at_different_instructions(ARGUMENTS) {
  BEGIN;
  if (right) wgmma_commit();
  else if (t < 64) wgmma_commit();  // in report: warps_at_different_instructions
  else wgmma_commit();              // in report: warps_at_different_instructions
}
KERNEL half_a_warpgroup(ARGUMENTS) {
  BEGIN;
  if (!right || t < 128) wgmma_commit();  // in report: half_a_warpgroup
}

// --- warpgroups ------------------------------------------------------------------------------------------------

KERNEL too_many_registers(ARGUMENTS) {
  BEGIN;
  if (t < 128) setmaxnreg_dec<right ? 24 : 32>();
  else setmaxnreg_inc<240>();  // in report: too_many_registers
}
KERNEL registers_of_half_a_warpgroup(ARGUMENTS) {
  BEGIN;
  if (t < (right ? 128 : 64)) setmaxnreg_dec<24>();  // in report: registers_of_half_a_warpgroup
  else if (t >= 128) setmaxnreg_inc<240>();
}
KERNEL registers_nobody_takes(ARGUMENTS) {
  BEGIN;
  if (t < 128) setmaxnreg_dec<24>();
  else if (right) setmaxnreg_inc<240>();
}
KERNEL registers_fall_by_inc(ARGUMENTS) {
  BEGIN;
  if (t < 128) setmaxnreg_dec<24>();
  else setmaxnreg_inc<right ? 168 : 160>();  // in report: registers_fall_by_inc
}
KERNEL barrier_zero(ARGUMENTS) {
  BEGIN;
  named_barrier_sync(right ? 15 : 16, 128);  // in report: barrier_zero
}
KERNEL barrier_of_half_warps(ARGUMENTS) {
  BEGIN;
  named_barrier_sync(1, right ? 128 : 112);  // in report: barrier_of_half_warps
}
KERNEL named_barrier_missing(ARGUMENTS) {
  BEGIN;
  shared.words[t] = data[t];  // in report: named_barrier_missing
  if (right) named_barrier_sync(1, 128);
  data[t] = shared.words[127 - t];  // in report: named_barrier_missing
}
// Who only arrives has released what he did before, not after.
KERNEL store_after_the_arrival(ARGUMENTS) {
  BEGIN;
  if (t < 64) {
    if (right) shared.words[t] = data[t];
    named_barrier_arrive(1, 128);
    if (!right) shared.words[t] = data[t];  // in report: store_after_the_arrival
    named_barrier_sync(2, 128);
  } else {
    if (!right) named_barrier_arrive(2, 128);
    named_barrier_sync(1, 128);
    data[t] = shared.words[t - 64];  // in report: store_after_the_arrival
    if (right) named_barrier_arrive(2, 128);
  }
}
KERNEL barrier_without_a_waiter(ARGUMENTS) {
  BEGIN;
  if (right && t >= 64) named_barrier_sync(1, 128);
  else named_barrier_arrive(1, 128);  // in report: barrier_without_a_waiter
}
KERNEL turn_lost(ARGUMENTS) {
  BEGIN;
  const int warp = t / 32;
  if (warp >= 2) return;
  if (right && warp == 1) named_barrier_arrive(1, 64);
  for (int i = 0; i < 3; ++i) {
    named_barrier_sync(1 + warp, 64);  // in report: turn_lost
    named_barrier_arrive(2 - warp, 64);
  }
}
KERNEL election_of_half_a_warp(ARGUMENTS) {
  BEGIN;
  if ((right || t % 32 < 16) && elect_one()) data[t] = 1;  // in report: election_of_half_a_warp
}
KERNEL stmatrix_misaligned(ARGUMENTS) {
  BEGIN;
  const uint32_t r[4] = {};
  stmatrix_x4(&shared.A[t % 64][right ? 0 : 4] + t / 64 * 64 * 64, r);  // in report: stmatrix_misaligned
}
KERNEL stmatrix_to_global_memory(ARGUMENTS) {
  BEGIN;
  const uint32_t r[4] = {};
  half* row = right ? shared.A[t % 32] + t / 32 * 8 : reinterpret_cast<half*>(data);
  stmatrix_x4(row, r);  // in report: stmatrix_to_global_memory
}

// --- everything at once ----------------------------------------------------------------------------------------

// A producer warp and a consumer warpgroup, a ring of two stages, a store at the end, and a warpgroup that only takes
// registers: one of each synchronization call, all of them needed. Out: the sum over i of A_i A_i^T, as halves.
KERNEL every_call(ARGUMENTS) {
  BEGIN;
  if (t == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.full[i], 1);     // site: mbarrier_init
      mbarrier_init(shared.empty[i], 128);  // site: mbarrier_init
    }
    fence_mbarrier_init();  // site: fence_mbarrier_init
  }
  __syncthreads();  // site: __syncthreads
  constexpr int turns = 6;
  auto& stages = *reinterpret_cast<half(*)[2][64][64]>(shared.A);
  if (t >= 256) {
    setmaxnreg_inc<240>();  // site: setmaxnreg_inc
    return;
  }
  if (t >= 128) {
    setmaxnreg_dec<24>();  // site: setmaxnreg_dec
    if (t == 128)
      for (int i = 0; i < turns; ++i) {
        mbarrier_wait(shared.empty[i % 2], i / 2 % 2 ^ 1);  // site: mbarrier_wait
        mbarrier_expect(shared.full[i % 2], tile_bytes);    // site: mbarrier_expect
        tma_load(stages[i % 2], maps.in, shared.full[i % 2], 0, 16 * i, 0, 0);
      }
    return;
  }
  setmaxnreg_inc<240>();  // site: setmaxnreg_inc
  float c[32], d[32];
  for (int i = 0; i < 32; ++i) c[i] = 0;
  uint32_t a[4] = {};
  for (int i = 0; i < turns; ++i) {
    const Descriptor A = descriptor(stages[i % 2], 1, 1024);
    mbarrier_wait(shared.full[i % 2], i / 2 % 2);  // site: mbarrier_wait
    wgmma_fence(c, d, a);                          // site: wgmma_fence
    wgmma<Major::mn>(d, a, A, false);
    wgmma_commit();  // site: wgmma_commit
    for (int k = 0; k < 64; k += 16) wgmma<Major::k>(c, advance(A, 2 * k), advance(A, 2 * k), true);
    wgmma_commit();       // site: wgmma_commit
    wgmma_wait<1>(d, a);  // site: wgmma_wait
    for (int x = 0; x < 4; ++x) a[x] = pack_halves(d[2 * x] + 0.25f, d[2 * x + 1]);
    wgmma_wait<0>(c);                      // site: wgmma_wait
    mbarrier_arrive(shared.empty[i % 2]);  // site: mbarrier_arrive
  }
  // The tile for O lies over the first stage, which nobody loads any more.
  for (int x = 0; x < 4; ++x) {
    uint32_t r[4];
    for (int y = 0; y < 4; ++y) r[y] = pack_halves(c[8 * x + 2 * y], c[8 * x + 2 * y + 1] + d[y]);
    const int lane = t % 32;
    stmatrix_x4(&stages[0][t / 32 * 16 + lane % 16][((2 * x + lane / 16) ^ lane % 8) * 8], r);
  }
  fence_proxy_async();  // site: fence_proxy_async
  if (t >= 96) {
    named_barrier_sync(2, 128);  // site: named_barrier_sync
    if (t == 96) {
      tma_store(maps.out, stages[0], 0, 0, 0, 0);
      tma_commit();        // site: tma_commit
      tma_wait_read<0>();  // site: tma_wait_read
    }
  } else {
    named_barrier_arrive(2, 128);  // site: named_barrier_arrive
  }
}

// --- running ---------------------------------------------------------------------------------------------------

struct Entry {
  const char* name;
  void (*wrong)(Maps, uint32_t*);
  void (*right)(Maps, uint32_t*);
  unsigned threads;
};
#define ENTRY(name, threads) \
  { #name, name < false>, name < true>, threads }

const Entry entries[] = {
    ENTRY(never_initialized, 128),
    ENTRY(initialized_without_barrier, 32),
    ENTRY(initialized_without_fence, 64),
    ENTRY(initialized_twice, 32),
    ENTRY(no_arrivals, 32),
    ENTRY(mbarrier_in_global_memory, 32),
    ENTRY(mbarrier_overwritten, 32),
    ENTRY(arrival_too_many, 64),
    ENTRY(arrival_missing, 128),
    ENTRY(bytes_too_few, 64),
    ENTRY(bytes_of_one_box, 64),
    ENTRY(bytes_too_many, 64),
    ENTRY(load_names_the_wrong_barrier, 64),
    ENTRY(parity_of_the_producer, 64),
    ENTRY(parity_of_the_consumer, 64),
    ENTRY(waiter_lags, 64),
    ENTRY(waiter_overtaken, 64),
    ENTRY(parity_of_two, 64),
    ENTRY(tile_read_before_it_landed, 64),
    ENTRY(tile_waited_for_by_one, 64),
    ENTRY(tile_never_waited_for, 64),
    ENTRY(tile_overwritten, 32),
    ENTRY(load_over_a_store, 64),
    ENTRY(load_misaligned, 64),
    ENTRY(load_from_an_odd_column, 64),
    ENTRY(load_past_shared_memory, 64),
    ENTRY(load_with_three_dimensions, 64),
    ENTRY(load_without_a_map, 64),
    ENTRY(map_beyond_the_tensor, 64),
    ENTRY(map_of_host_memory, 64),
    ENTRY(store_without_fence, 128),
    ENTRY(store_with_a_late_fence, 128),
    ENTRY(store_without_barrier, 128),
    ENTRY(store_not_waited_for, 128),
    ENTRY(store_not_committed, 128),
    ENTRY(stored_tile_overwritten, 128),
    ENTRY(store_before_the_tensor, 128),
    ENTRY(accumulators_read_in_flight, 128),
    ENTRY(accumulators_written_in_flight, 128),
    ENTRY(one_group_too_few, 128),
    ENTRY(group_not_committed, 128),
    ENTRY(fence_missing, 128),
    ENTRY(accumulators_written_after_the_fence, 128),
    ENTRY(fence_without_the_factor, 128),
    ENTRY(fence_names_what_is_in_flight, 128),
    ENTRY(wait_without_the_accumulators, 128),
    ENTRY(factor_overwritten_in_flight, 128),
    ENTRY(wgmma_not_waited_for, 128),
    ENTRY(tile_multiplied_before_it_landed, 128),
    ENTRY(stage_released_too_early, 128),
    ENTRY(tile_stored_over_in_flight, 128),
    ENTRY(tile_written_without_fence, 128),
    ENTRY(tile_inside_a_pattern, 128),
    ENTRY(tile_beyond_shared_memory, 128),
    ENTRY(fp8_accumulators_read_in_flight, 128),
    ENTRY(fp8_factor_not_named, 128),
    ENTRY(fp8_tile_written_without_fence, 128),
    ENTRY(fp8_tile_inside_a_pattern, 128),
    ENTRY(fp8_tile_beyond_its_row, 128),
    ENTRY(warps_with_different_descriptors, 128),
    ENTRY(one_warp_missing, 128),
    ENTRY(warps_at_different_instructions, 128),
    ENTRY(half_a_warpgroup, 192),
    ENTRY(too_many_registers, 384),
    ENTRY(registers_of_half_a_warpgroup, 384),
    ENTRY(registers_nobody_takes, 384),
    ENTRY(registers_fall_by_inc, 384),
    ENTRY(barrier_zero, 128),
    ENTRY(barrier_of_half_warps, 128),
    ENTRY(named_barrier_missing, 128),
    ENTRY(store_after_the_arrival, 128),
    ENTRY(barrier_without_a_waiter, 128),
    ENTRY(turn_lost, 128),
    ENTRY(election_of_half_a_warp, 64),
    ENTRY(stmatrix_misaligned, 128),
    ENTRY(stmatrix_to_global_memory, 128),
    ENTRY(every_call, 384),
};

TensorMap map_of(uint32_t* data, uint64_t rows) {
  return tensor_map<4>(data, {64, rows, 1, 1}, {128, 128 * rows, 128 * rows}, {64, 64, 1, 1});
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* flash_test_launch(const char* kernel, int right,
                                                                                uint32_t* data, int) {
  static std::string sentence;
  sentence = std::string("There is no kernel ") + kernel + ".";
  for (const Entry& e : entries)
    if (std::strcmp(e.name, kernel) == 0) {
      try {
        alignas(64) static uint32_t host[128 * 32];
        const TensorMap narrow = tensor_map<3>(data, {64, 128, 1}, {128, 128 * 128}, {64, 64, 1});
        const Maps maps = {map_of(data, 128), map_of(data + 128 * 32, 128), narrow, map_of(data, 1000000),
                           map_of(host, 128)};
        launch(e.name, right ? e.right : e.wrong, 1, e.threads, sizeof(Shared), current_device(nullptr), maps, data);
        return nullptr;
      } catch (const std::exception& error) {
        sentence = error.what();
      }
    }
  return sentence.c_str();
}
