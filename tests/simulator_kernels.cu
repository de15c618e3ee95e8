/// @file
/// Kernels for test_simulator.cpp: some with a deliberate fault, some whose traffic is known. Each has two
/// instances, the wrong and the right one. A line that ends in "// in report: NAME" must be named in the
/// report of kernel NAME.
#include <hardware/cp_async.h>
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mma.h>
#include <hardware/simt.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/simulator_kernels.h"

namespace {

constexpr unsigned all_lanes = 0xFFFFFFFFu;

/// The barrier that a few warps share, PTX bar.sync.
__forceinline__ void named_barrier(int id, int threads, SIMULATOR_SITE_PARAMETERS) {
  simulator::barrier_sync("named_barrier", id, threads, SIMULATOR_SITE);
}

#define KERNEL          \
  template <bool right> \
  __global__ void
// Every kernel starts with these.
#define THREAD const int t = static_cast<int>(threadIdx.x)

// --- missing barriers --------------------------------------------------------------------------------------

KERNEL syncthreads_raw(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  tile[t] = data[t];  // in report: syncthreads_raw
  if (right) __syncthreads();
  data[t] = tile[63 - t];  // in report: syncthreads_raw
}

KERNEL syncthreads_war(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  for (uint32_t i = 0; i < 2; ++i) {
    tile[t] = data[t] + i;  // in report: syncthreads_war
    __syncthreads();
    data[t] += tile[63 - t];  // in report: syncthreads_war
    if (right) __syncthreads();
  }
}

KERNEL syncwarp_raw(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  tile[t] = data[t];  // in report: syncwarp_raw
  if (right) __syncwarp();
  data[t] = tile[t ^ 1];  // in report: syncwarp_raw
}

KERNEL syncwarp_war(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  tile[t] = data[t];
  __syncwarp();
  const uint32_t other = tile[t ^ 1];  // in report: syncwarp_war
  if (right) __syncwarp();
  tile[t] = other;  // in report: syncwarp_war
}

// A shuffle makes the lanes meet, but orders no memory access.
KERNEL shuffle_is_no_barrier(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[32];
  tile[t] = data[t];  // in report: shuffle_is_no_barrier
  const uint32_t one = __shfl_sync(all_lanes, 1u, 0);
  if (right) __syncwarp();
  data[t] = tile[t ^ 1] + one;  // in report: shuffle_is_no_barrier
}

// A barrier of one warp does not help the other.
KERNEL syncwarp_across_warps(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  tile[t] = data[t];  // in report: syncwarp_across_warps
  if (right)
    __syncthreads();
  else
    __syncwarp();
  data[t] = tile[t ^ 32];  // in report: syncwarp_across_warps
}

KERNEL global_raw_in_a_cta(uint32_t* data, int) {
  THREAD;
  data[t] = static_cast<uint32_t>(t);  // in report: global_raw_in_a_cta
  if (right) __syncthreads();
  data[64 + t] = data[63 - t];  // in report: global_raw_in_a_cta
}

// --- races of CTAs -----------------------------------------------------------------------------------------

KERNEL ctas_write_the_same(uint32_t* data, int) {
  if (threadIdx.x == 0) data[right ? blockIdx.x : 0] = 7;  // in report: ctas_write_the_same
}

KERNEL cta_reads_what_another_writes(uint32_t* data, int) {
  THREAD;
  const int cta = static_cast<int>(right ? blockIdx.x : 1 - blockIdx.x);
  const uint32_t x = data[64 * cta + t];  // in report: cta_reads_what_another_writes
  data[64 * blockIdx.x + t] = x + 1;      // in report: cta_reads_what_another_writes
}

// Both read it, and the one that writes it has read it last.
KERNEL cta_writes_what_all_read(uint32_t* data, int) {
  const uint32_t x = data[0];  // in report: cta_writes_what_all_read
  data[2 + blockIdx.x] = x;
  if (blockIdx.x == 1) data[right ? 1 : 0] = x + 1;  // in report: cta_writes_what_all_read
}

KERNEL atomic_and_plain_global(uint32_t* data, int) {
  if (blockIdx.x == 0) {
    atomicAdd(data, 1u);  // in report: atomic_and_plain_global
  } else if (threadIdx.x == 0) {
    data[right ? 1 : 0] = 5;  // in report: atomic_and_plain_global
  }
}

KERNEL atomic_and_plain_shared(uint32_t* data, int) {
  THREAD;
  __shared__ unsigned sum;
  if (t == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1u);  // in report: atomic_and_plain_shared
  if (right) __syncthreads();
  data[t] = sum;  // in report: atomic_and_plain_shared
}

// --- out of bounds -----------------------------------------------------------------------------------------

KERNEL global_just_past_the_end(uint32_t* data, int words) {
  THREAD;
  data[words - (right ? 64 : 63) + t] = 1;  // in report: global_just_past_the_end
}
KERNEL global_before_the_begin(uint32_t* data, int) {
  if (threadIdx.x == 1) data[2] = data[right ? 0 : -1];  // in report: global_before_the_begin
}
KERNEL global_far_away(uint32_t* data, int words) {
  if (threadIdx.x == 5) data[right ? 0 : words + 5000] = 1;  // in report: global_far_away
}
KERNEL vector_half_past_the_end(uint32_t* data, int words) {
  const uint4* vector = reinterpret_cast<const uint4*>(data + words / 4 * 4 - (right ? 4 : 0));
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(data) = *vector;  // in report: vector_half_past_the_end
}
KERNEL shared_past_the_end(uint32_t*, int) {
  THREAD;
  dynamic_shared<uint32_t>()[right ? t : t + 1] = 1;  // in report: shared_past_the_end
}
KERNEL shared_before_the_begin(uint32_t*, int) {
  THREAD;
  dynamic_shared<uint32_t>()[right ? t : t - 1] = 1;  // in report: shared_before_the_begin
}
KERNEL shared_far_away(uint32_t*, int) {
  THREAD;
  dynamic_shared<uint32_t>()[right ? t : t + 70000] = 1;  // in report: shared_far_away
}
KERNEL static_index(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  tile[t] = 0;
  __syncthreads();
  tile[right ? t : t + 1] = data[t];  // in report: static_index
  __syncthreads();
  data[t] = tile[t];
}
KERNEL register_index(uint32_t* data, int) {
  THREAD;
  uint32_t registers[4] = {1, 2, 3, 4};
  data[t] = registers[right ? t % 4 : t % 5];  // in report: register_index
}
KERNEL copy_source_past_the_end(uint32_t* data, int words) {
  THREAD;
  __shared__ uint4 tile[64];
  const uint32_t* source = data + words / 4 * 4 - 4 * (right ? 64 : 63);
  cp_async_16(&tile[t], source + 4 * t);  // in report: copy_source_past_the_end
}
KERNEL copy_destination_past_the_end(uint32_t* data, int) {
  THREAD;
  uint32_t* tile = dynamic_shared<uint32_t>() + (right ? 0 : 64 - 16);
  cp_async_16(tile + 4 * t, data + 4 * t);  // in report: copy_destination_past_the_end
}
KERNEL null_pointer(uint32_t* data, int) {
  if (threadIdx.x == 3) *(right ? data : nullptr) = 1;  // in report: null_pointer
}
KERNEL wild_pointer(uint32_t* data, int) {
  const uint32_t* pointer = right ? data : reinterpret_cast<uint32_t*>(uint64_t{1} << 45);
  if (threadIdx.x == 3) data[0] = *pointer;  // in report: wild_pointer
}
KERNEL too_much_local_memory(uint32_t* data, int) {
  if (right) return;
  volatile uint32_t local[100000];
  for (int i = 0; i < 100000; ++i) local[i] = data[i % 4];
  data[4] = local[data[0] % 100000];
}

// --- other misuse of memory --------------------------------------------------------------------------------

KERNEL misaligned_vector(uint32_t* data, int) {
  const uint4* vector = reinterpret_cast<const uint4*>(data + (right ? 4 : 1));
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(data + 8) = *vector;  // in report: misaligned_vector
}
KERNEL misaligned_copy_source(uint32_t* data, int) {
  __shared__ uint4 tile[1];
  if (threadIdx.x == 0) cp_async_16(tile, data + (right ? 4 : 1), 4);  // in report: misaligned_copy_source
}
KERNEL misaligned_copy_destination(uint32_t* data, int) {
  __shared__ __align__(16) uint32_t tile[8];
  if (threadIdx.x == 0) cp_async_16(tile + (right ? 4 : 1), data);  // in report: misaligned_copy_destination
}
KERNEL misaligned_ldmatrix(uint32_t*, int) {
  THREAD;
  half* tile = dynamic_shared<half>();
  for (int i = t; i < 33 * 8; i += 32) tile[i] = to_half(0);
  __syncwarp();
  uint32_t r[4];
  ldmatrix_x4(r, tile + 8 * t + (right ? 0 : 4));  // in report: misaligned_ldmatrix
}
KERNEL ldmatrix_of_global_memory(uint32_t* data, int) {
  THREAD;
  __shared__ __align__(16) uint32_t tile[32][4];
  for (int i = 0; i < 4; ++i) tile[t][i] = 0;
  __syncwarp();
  uint32_t r[4];
  const uint32_t* row = right ? tile[t] : data + 4 * t;
  ldmatrix_x4(r, reinterpret_cast<const half*>(row));  // in report: ldmatrix_of_global_memory
}
// Two floats with the alignment of one, four bytes with that of two: the GPU takes them in pieces, so this is
// right.
struct Pair {
  float m, l;
};
KERNEL small_alignment(uint32_t* data, int) {
  if (threadIdx.x != 0) return;
  *reinterpret_cast<Pair*>(data + 1) = *reinterpret_cast<const Pair*>(data + 3);
  uint32_t halves;
  std::memcpy(&halves, reinterpret_cast<const half*>(data) + 1, 4);
  data[5] = halves;
}
KERNEL static_read_before_write(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  if (right || t != 9) tile[t] = 1;
  data[t] = tile[t];  // in report: static_read_before_write
}
// CTA 0 does write: its memory is not CTA 1's.
KERNEL dynamic_read_before_write(uint32_t* data, int) {
  THREAD;
  uint32_t* tile = dynamic_shared<uint32_t>();
  if (right || blockIdx.x == 0) tile[t] = 1;
  data[64 * blockIdx.x + t] = tile[t];  // in report: dynamic_read_before_write
}

// --- cp.async ----------------------------------------------------------------------------------------------

KERNEL copy_read_before_wait(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[32];
  cp_async_16(&tile[t], data + 4 * t);  // in report: copy_read_before_wait
  cp_async_commit();
  if (right) cp_async_wait<0>();
  data[4 * t] = tile[t].y;  // in report: copy_read_before_wait
  cp_async_wait<0>();
}
// A barrier is no wait.
KERNEL copy_without_wait(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[64];
  cp_async_16(&tile[t], data + 4 * t);  // in report: copy_without_wait
  cp_async_commit();
  if (right) cp_async_wait<0>();
  __syncthreads();
  data[4 * t] = tile[63 - t].y;  // in report: copy_without_wait
}
KERNEL copy_without_commit(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[32];
  cp_async_16(&tile[t], data + 4 * t);  // in report: copy_without_commit
  if (right) cp_async_commit();
  cp_async_wait<0>();
  data[4 * t] = tile[t].y;  // in report: copy_without_commit
}
KERNEL wait_one_group_too_few(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[2][32];
  cp_async_16(&tile[0][t], data + 4 * t);
  cp_async_commit();
  cp_async_16(&tile[1][t], data + 128 + 4 * t);  // in report: wait_one_group_too_few
  cp_async_commit();
  cp_async_wait<1>();
  data[4 * t] = tile[0][t].y;
  cp_async_wait<right ? 0 : 1>();
  data[128 + 4 * t] = tile[1][t].y;  // in report: wait_one_group_too_few
}
KERNEL no_barrier_after_the_wait(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[64];
  cp_async_16(&tile[t], data + 4 * t);  // in report: no_barrier_after_the_wait
  cp_async_commit();
  cp_async_wait<0>();
  if (right) __syncthreads();
  data[256 + t] = tile[63 - t].y;  // in report: no_barrier_after_the_wait
}
KERNEL store_into_a_copy(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[32];
  cp_async_16(&tile[t], data + 4 * t);  // in report: store_into_a_copy
  cp_async_commit();
  if (right) cp_async_wait<0>();
  tile[t].z = 1;  // in report: store_into_a_copy
}
KERNEL copy_into_a_copy(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[2][32];
  for (int i = 0; i < 2; ++i) {
    cp_async_16(&tile[right ? i : 0][t], data + 4 * t);  // in report: copy_into_a_copy
    cp_async_commit();
  }
}
// The next tile is fetched into the stage that other warps still read.
KERNEL refill_without_barrier(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[64];
  for (int i = 0; i < 2; ++i) {
    cp_async_16(&tile[t], data + 4 * t);  // in report: refill_without_barrier
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    data[256 + 64 * i + t] = tile[63 - t].x;  // in report: refill_without_barrier
    if (right) __syncthreads();
  }
}
KERNEL swapped_stage(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[2][64];
  cp_async_16(&tile[0][t], data + 4 * t);
  cp_async_commit();
  for (int i = 0; i < 3; ++i) {
    if (i < 2) cp_async_16(&tile[(i + 1) % 2][t], data + 4 * t);  // in report: swapped_stage
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    data[256 + t] = tile[(right ? i : i + 1) % 2][t].x;  // in report: swapped_stage
    __syncthreads();
  }
}
KERNEL copy_into_global_memory(uint32_t* data, int) {
  __shared__ uint4 tile[1];
  void* destination = right ? static_cast<void*>(tile) : data;
  if (threadIdx.x == 0) cp_async_16(destination, data + 4);  // in report: copy_into_global_memory
}
KERNEL too_many_valid_bytes(uint32_t* data, int) {
  __shared__ uint4 tile[1];
  if (threadIdx.x == 0) cp_async_16(tile, data, right ? 16 : 17);  // in report: too_many_valid_bytes
}

// --- barriers and warps that do not come together ----------------------------------------------------------

KERNEL divergent_barrier(uint32_t*, int) {
  if (right) {
    __syncthreads();
  } else if (threadIdx.x % 32 < 16) {
    __syncthreads();  // in report: divergent_barrier
  } else {
    __syncthreads();  // in report: divergent_barrier
  }
}
KERNEL lane_missing_at_shuffle(uint32_t* data, int) {
  THREAD;
  if (right || t != 30)
    data[t] = __shfl_xor_sync(all_lanes, data[t], 1);  // in report: lane_missing_at_shuffle
}
KERNEL lane_missing_at_syncwarp(uint32_t*, int) {
  if (right || threadIdx.x % 32 < 31) __syncwarp();  // in report: lane_missing_at_syncwarp
}
KERNEL lanes_at_different_shuffles(uint32_t* data, int) {
  THREAD;
  const unsigned mask = !right ? all_lanes : t < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  if (t < 16) {
    data[t] = __shfl_xor_sync(mask, data[t], 1);  // in report: lanes_at_different_shuffles
  } else {
    data[t] = __shfl_xor_sync(mask, data[t], 2);  // in report: lanes_at_different_shuffles
  }
}
KERNEL lane_missing_at_mma(uint32_t*, int) {
  float c[4] = {};
  const uint32_t a[4] = {};
  if (right || threadIdx.x != 0) mma_m16n8k16(c, a, 0, 0);  // in report: lane_missing_at_mma
}
KERNEL mask_without_the_lane(uint32_t* data, int) {
  THREAD;
  data[t] = __ballot_sync(right ? all_lanes : 0xFFFFFFFEu, 1);  // in report: mask_without_the_lane
}
KERNEL returned_before_the_barrier(uint32_t*, int) {
  if (!right && threadIdx.x >= 32) return;
  named_barrier(1, 64);  // in report: returned_before_the_barrier
}
KERNEL different_barriers(uint32_t*, int) {
  if (right || threadIdx.x < 32)
    __syncthreads();  // in report: different_barriers
  else
    named_barrier(1, 64);  // in report: different_barriers
}
KERNEL different_counts(uint32_t*, int) {
  if (right || threadIdx.x < 32)
    named_barrier(1, 64);  // in report: different_counts
  else
    named_barrier(1, 96);  // in report: different_counts
}
KERNEL count_too_small(uint32_t* data, int) {
  THREAD;
  __shared__ uint32_t tile[64];
  tile[t] = 1;  // in report: count_too_small
  named_barrier(1, right ? 64 : 32);
  data[t] = tile[63 - t];  // in report: count_too_small
}
KERNEL count_of_no_whole_warps(uint32_t*, int) {
  named_barrier(1, right ? 64 : 48);  // in report: count_of_no_whole_warps
}
KERNEL deadlock_with_copies_in_flight(uint32_t* data, int) {
  THREAD;
  cp_async_16(dynamic_shared<uint4>() + t, data + 4 * t);
  cp_async_commit();
  if (right || t >= 32) named_barrier(2, 64);  // in report: deadlock_with_copies_in_flight
}

KERNEL nothing(uint32_t*, int) {}

// --- known traffic -----------------------------------------------------------------------------------------

// A thread reads 16 bytes that every CTA reads, and 4 of its CTA; writes 4 bytes twice and 2 once.
KERNEL traffic(uint32_t* data, int) {
  THREAD;
  const uint4 shared_by_all = reinterpret_cast<const uint4*>(data)[t];
  const uint32_t own = data[256 + 64 * blockIdx.x + t];
  uint32_t* out = data + 512 + 64 * blockIdx.x + t;
  *out = own;
  __syncthreads();
  *out = own + shared_by_all.x + shared_by_all.y + shared_by_all.z + shared_by_all.w;
  reinterpret_cast<half*>(data + 768)[64 * blockIdx.x + t] = to_half(1.0f);
}
// Through shared memory: 4 bytes written and 16 read a thread, two barriers a CTA.
KERNEL traffic_shared(uint32_t* data, int) {
  THREAD;
  __shared__ __align__(16) uint32_t tile[64];
  tile[t] = 1;
  __syncthreads();
  const uint4 four = *reinterpret_cast<const uint4*>(tile + t / 4 * 4);
  named_barrier(1, 64);
  data[64 * blockIdx.x + t] = four.x + four.y + four.z + four.w;
}
// Lane t asks for t bytes, the last for 16.
KERNEL traffic_copies(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[17];
  if (t < 17) cp_async_16(&tile[t], data + 4 * t, t);
  cp_async_commit();
  cp_async_wait<0>();
}
KERNEL instructions(uint32_t* data, int) {
  THREAD;
  float x = multiply_add(1.0f, 2.0f, 3.0f);
  for (int i = 0; i < 3; ++i) x += exp2_approx(x);
  for (int i = 0; i < 5; ++i) x += reciprocal(x);
  for (int i = 0; i < 7; ++i) x += rescale(x, 2.0f);
  float c[4] = {x, 0, 0, 0};
  const uint32_t a[4] = {};
  mma_m16n8k16(c, a, 0, 0);
  const uint32_t other =
      __shfl_sync(all_lanes, static_cast<uint32_t>(t), 0) + __ballot_sync(all_lanes, t == 3);
  if (t % 32 == 0) atomicAdd(data, other);
  if (c[1] != 0) data[1] = 0;
}
// One ldmatrix.x4 whose rows of 16 bytes lie `pitch` bytes apart; 0: all lanes name one row; 1: 128 bytes,
// swizzled.
template <int pitch>
__device__ void ldmatrix_at() {
  THREAD;
  unsigned char* tile = dynamic_shared<unsigned char>();
  for (int i = 16 * t; i < 32 * 128 + 16; i += 16 * 32)
    *reinterpret_cast<uint4*>(tile + i) = make_uint4(0, 0, 0, 0);
  __syncwarp();
  const int offset = pitch == 1 ? 128 * t + (t % 8 ^ 3) * 16 : pitch * t;
  uint32_t r[4];
  ldmatrix_x4(r, reinterpret_cast<const half*>(tile + offset));
}
KERNEL rows_of_16(uint32_t*, int) { ldmatrix_at<16>(); }
KERNEL rows_of_64(uint32_t*, int) { ldmatrix_at<64>(); }
KERNEL rows_of_128(uint32_t*, int) { ldmatrix_at<128>(); }
KERNEL rows_swizzled(uint32_t*, int) { ldmatrix_at<1>(); }
KERNEL rows_the_same(uint32_t*, int) { ldmatrix_at<0>(); }

// --- stores of every form ----------------------------------------------------------------------------------

struct Twelve {
  float x[12];
};
__device__ half twice(float x) { return to_half(x * 2); }
__device__ float2 pair_of(float x) { return {x, x + 1}; }
__device__ float4 four_of(float x) { return make_float4(x, x, x, x); }
__device__ Twelve twelve_of(float x) {
  Twelve all;
  for (float& y : all.x) y = x;
  return all;
}
struct Scaled {
  float factor;
  __device__ half operator()(float x) const { return to_half(x * factor); }
};

// `count` objects of one form in global memory.
#define STORES(name, type, ...)                                \
  KERNEL store_##name(uint32_t* data, int) {                   \
    auto* p = reinterpret_cast<type*>(data);                   \
    const auto* q = reinterpret_cast<const type*>(data + 512); \
    const float x = static_cast<float>(threadIdx.x);           \
    (void)q, (void)x;                                          \
    __VA_ARGS__;                                               \
  }
STORES(half_of_wrapper, half, p[0] = to_half(x), p[1] = to_half(x + 1))
STORES(half_of_function, half, p[0] = twice(x), p[1] = twice(x + 1))
STORES(half_of_member, half, const Scaled f{x}; p[0] = f(x), p[1] = f(x + 1))
STORES(
    half_of_lambda, half, auto f = [](float y) { return to_half(y * 3); }; p[0] = f(x), p[1] = f(x + 1))
STORES(half_copied, half, p[0] = q[1], p[1] = q[0])
STORES(half_chosen, half, p[0] = x > 0 ? q[1] : twice(x), p[1] = x > 0 ? twice(x) : q[0])
STORES(float2_of_function, float2, p[0] = pair_of(x), p[1] = pair_of(x + 1))
STORES(float2_of_wrapper, float2, p[0] = unpack_halves(data[512]), p[1] = unpack_halves(data[513]))
STORES(float4_of_maker, float4, p[0] = make_float4(x, x, x, x), p[1] = make_float4(x, 0, 0, 0))
STORES(float4_of_function, float4, p[0] = four_of(x), p[1] = four_of(x + 1))
STORES(uint4_copied, uint4, p[0] = q[1], p[1] = q[0])
STORES(uint4_through_registers, uint4, const uint4 a = q[0], b = q[1]; p[0] = b, p[1] = a)
STORES(struct_copied, Pair, p[0] = q[1], p[1] = q[0])
STORES(struct_braced, Pair, p[0] = {x, x}, p[1] = {})
STORES(long_struct_copied, Twelve, p[0] = q[1], p[1] = q[0])
STORES(long_struct_of_function, Twelve, p[0] = twelve_of(x), p[1] = twelve_of(x + 1))
STORES(long_struct_cleared, Twelve, p[0] = {}, p[1] = {})
STORES(memcpy_of_16, uint4, std::memcpy(p, q, 16), std::memcpy(p + 1, q, 16))
STORES(compound, float, p[0] += x, p[1] *= x)

// --- schedules and mutants ---------------------------------------------------------------------------------

// data[1 ...]: the threads in the order in which they came.
KERNEL order(uint32_t* data, int) { data[1 + atomicAdd(data, 1u)] = blockIdx.x * blockDim.x + threadIdx.x; }
KERNEL last_one_wins(uint32_t* data, int) { data[0] = threadIdx.x; }

// One of each synchronization call, all of them needed.
KERNEL every_call(uint32_t* data, int) {
  THREAD;
  __shared__ uint4 tile[2][64];
  __shared__ uint32_t sum[64];
  cp_async_16(&tile[0][t], data + 4 * t);
  cp_async_commit();  // site: cp_async_commit
  cp_async_16(&tile[1][t], data + 4 * t);
  cp_async_commit();   // site: cp_async_commit
  cp_async_wait<1>();  // site: cp_async_wait
  __syncthreads();     // site: __syncthreads
  sum[t] = tile[0][63 - t].x;
  __syncwarp();  // site: __syncwarp
  const uint32_t other = sum[t ^ 1];
  cp_async_wait<0>();    // site: cp_async_wait
  named_barrier(1, 64);  // site: named_barrier
  data[512 + t] = other + tile[1][63 - t].y;
}

// --- running -----------------------------------------------------------------------------------------------

struct Entry {
  const char* name;
  void (*wrong)(uint32_t*, int);
  void (*right)(uint32_t*, int);
  dim3 grid;
  unsigned threads;
  size_t shared;
};
#define ENTRY(name, ...) \
  { #name, name < false>, name < true>, __VA_ARGS__ }
#define STORE_ENTRY(name) \
  { #name, store_##name < false>, store_##name < true>, 1, 1, 0 }

const Entry entries[] = {
    ENTRY(deadlock_with_copies_in_flight, 1, 64, 1024),
    ENTRY(syncthreads_raw, 1, 64, 0),
    ENTRY(syncthreads_war, 1, 64, 0),
    ENTRY(syncwarp_raw, 1, 64, 0),
    ENTRY(syncwarp_war, 1, 64, 0),
    ENTRY(shuffle_is_no_barrier, 1, 32, 0),
    ENTRY(syncwarp_across_warps, 1, 64, 0),
    ENTRY(global_raw_in_a_cta, 1, 64, 0),
    ENTRY(ctas_write_the_same, 2, 32, 0),
    ENTRY(cta_reads_what_another_writes, 2, 64, 0),
    ENTRY(cta_writes_what_all_read, 2, 1, 0),
    ENTRY(atomic_and_plain_global, 2, 32, 0),
    ENTRY(atomic_and_plain_shared, 1, 64, 0),
    ENTRY(global_just_past_the_end, 1, 64, 0),
    ENTRY(global_before_the_begin, 1, 32, 0),
    ENTRY(global_far_away, 1, 32, 0),
    ENTRY(vector_half_past_the_end, 1, 32, 0),
    ENTRY(shared_past_the_end, 1, 64, 256),
    ENTRY(shared_before_the_begin, 1, 64, 256),
    ENTRY(shared_far_away, 1, 64, 256),
    ENTRY(static_index, 1, 64, 0),
    ENTRY(register_index, 1, 32, 0),
    ENTRY(copy_source_past_the_end, 1, 64, 0),
    ENTRY(copy_destination_past_the_end, 1, 5, 256),
    ENTRY(null_pointer, 1, 32, 0),
    ENTRY(wild_pointer, 1, 32, 0),
    ENTRY(too_much_local_memory, 1, 1, 0),
    ENTRY(misaligned_vector, 1, 32, 0),
    ENTRY(misaligned_copy_source, 1, 32, 0),
    ENTRY(misaligned_copy_destination, 1, 32, 0),
    ENTRY(misaligned_ldmatrix, 1, 32, 33 * 16),
    ENTRY(ldmatrix_of_global_memory, 1, 32, 0),
    ENTRY(small_alignment, 1, 32, 0),
    ENTRY(static_read_before_write, 1, 64, 0),
    ENTRY(dynamic_read_before_write, 2, 64, 256),
    ENTRY(copy_read_before_wait, 1, 32, 0),
    ENTRY(copy_without_wait, 1, 64, 0),
    ENTRY(copy_without_commit, 1, 32, 0),
    ENTRY(wait_one_group_too_few, 1, 32, 0),
    ENTRY(no_barrier_after_the_wait, 1, 64, 0),
    ENTRY(store_into_a_copy, 1, 32, 0),
    ENTRY(copy_into_a_copy, 1, 32, 0),
    ENTRY(refill_without_barrier, 1, 64, 0),
    ENTRY(swapped_stage, 1, 64, 0),
    ENTRY(copy_into_global_memory, 1, 32, 0),
    ENTRY(too_many_valid_bytes, 1, 32, 0),
    ENTRY(divergent_barrier, 1, 64, 0),
    ENTRY(lane_missing_at_shuffle, 1, 32, 0),
    ENTRY(lane_missing_at_syncwarp, 1, 64, 0),
    ENTRY(lanes_at_different_shuffles, 1, 32, 0),
    ENTRY(lane_missing_at_mma, 1, 32, 0),
    ENTRY(mask_without_the_lane, 1, 32, 0),
    ENTRY(returned_before_the_barrier, 1, 64, 0),
    ENTRY(different_barriers, 1, 64, 0),
    ENTRY(different_counts, 1, 64, 0),
    ENTRY(count_too_small, 1, 64, 0),
    ENTRY(count_of_no_whole_warps, 1, 64, 0),
    {"no_threads", nothing<false>, nothing<true>, 1, 0, 0},
    {"1024 threads", nothing<false>, nothing<true>, 1, 1024, 0},
    {"1025 threads", nothing<false>, nothing<true>, 1, 1025, 0},
    {"all shared memory", nothing<false>, nothing<true>, 1, 32, 232448},
    {"too much shared memory", nothing<false>, nothing<true>, 1, 32, 232449},
    {"empty grid", nothing<false>, nothing<true>, dim3(4, 0, 1), 32, 0},
    {"high grid", nothing<false>, nothing<true>, dim3(1, 65536, 1), 32, 0},
    {"deep grid", nothing<false>, nothing<true>, dim3(1, 1, 65536), 32, 0},
    ENTRY(traffic, 3, 64, 0),
    ENTRY(traffic_shared, 3, 64, 0),
    ENTRY(traffic_copies, 1, 32, 0),
    ENTRY(instructions, 2, 64, 0),
    ENTRY(rows_of_16, 1, 32, 4112),
    ENTRY(rows_of_64, 1, 32, 4112),
    ENTRY(rows_of_128, 1, 32, 4112),
    ENTRY(rows_swizzled, 1, 32, 4112),
    ENTRY(rows_the_same, 1, 32, 4112),
    STORE_ENTRY(half_of_wrapper),
    STORE_ENTRY(half_of_function),
    STORE_ENTRY(half_of_member),
    STORE_ENTRY(half_of_lambda),
    STORE_ENTRY(half_copied),
    STORE_ENTRY(half_chosen),
    STORE_ENTRY(float2_of_function),
    STORE_ENTRY(float2_of_wrapper),
    STORE_ENTRY(float4_of_maker),
    STORE_ENTRY(float4_of_function),
    STORE_ENTRY(uint4_copied),
    STORE_ENTRY(uint4_through_registers),
    STORE_ENTRY(struct_copied),
    STORE_ENTRY(struct_braced),
    STORE_ENTRY(long_struct_copied),
    STORE_ENTRY(long_struct_of_function),
    STORE_ENTRY(long_struct_cleared),
    STORE_ENTRY(memcpy_of_16),
    STORE_ENTRY(compound),
    ENTRY(order, 3, 64, 0),
    ENTRY(last_one_wins, 1, 64, 0),
    ENTRY(every_call, 1, 64, 0),
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* flash_test_launch(const char* kernel, int right,
                                                                                uint32_t* data, int words) {
  static std::string sentence;
  sentence = std::string("There is no kernel ") + kernel + ".";
  for (const Entry& e : entries)
    if (std::strcmp(e.name, kernel) == 0) {
      try {
        launch(e.name, right ? e.right : e.wrong, e.grid, e.threads, e.shared, current_device(nullptr), data,
               words);
        return nullptr;
      } catch (const std::exception& error) {
        sentence = error.what();
      }
    }
  return sentence.c_str();
}
