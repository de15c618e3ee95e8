/// @file
/// One small kernel for each wrapper of hardware/ that needs Hopper, for both machines. test_hopper.cpp knows what they must
/// give. All take words in and give words out.
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/stmatrix.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>
#include <hardware/wgmma.h>

#include <cstring>

#include "tests/run_kernels.h"

namespace {

// A matrix of halves or bfloat16 [rows][columns] in global memory, in boxes of 64 columns.
template <int box_rows>
TensorMap matrix_map(const void* base, int rows, int columns) {
  const auto pitch = static_cast<uint64_t>(2 * columns);
  return tensor_map<4>(base, {64, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns / 64), 1},
                       {pitch, 128, pitch * rows}, {64, box_rows, static_cast<uint32_t>(columns / 64), 1});
}

// One barrier, ready for all threads.
__device__ void begin(Mbarrier& barrier, int arrivals) {
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, arrivals);
    fence_mbarrier_init();
  }
  __syncthreads();
}

// --- wgmma ---------------------------------------------------------------------------------------------------

// C = A B^T, or C + A B^T if in[0] is not 0: A [64][d] and B [N][d] by the copy engine, K-major, both in shared memory.
// in: 4 words, C by thread and register, A, B. out: C by thread and register.
template <int N, int d, typename T>
__global__ void __launch_bounds__(128, 1)
    product_ss(const __grid_constant__ TensorMap A_map, const __grid_constant__ TensorMap B_map, const uint32_t* in,
               uint32_t* out) {
  struct Shared {
    half A[d / 64][64][64], B[d / 64][N][64];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  begin(shared.full, 1);
  if (thread == 0) {
    mbarrier_expect(shared.full, sizeof shared.A + sizeof shared.B);
    tma_load(shared.A, A_map, shared.full, 0, 0, 0, 0);
    tma_load(shared.B, B_map, shared.full, 0, 0, 0, 0);
  }
  const bool accumulate = in[0] != 0;
  float c[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) c[i] = __uint_as_float(in[4 + thread * (N / 2) + i]);
  const Descriptor A = descriptor(shared.A, 1, 1024), B = descriptor(shared.B, 1, 1024);
  mbarrier_wait(shared.full, 0);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < d; k += 16)
    wgmma<Major::k, T>(c, advance(A, k / 64 * 64 * 128 + k % 64 * 2), advance(B, k / 64 * N * 128 + k % 64 * 2),
                    accumulate || k > 0);
  wgmma_commit();
  wgmma_wait<0>(c);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) out[thread * (N / 2) + i] = __float_as_uint(c[i]);
}

// C = A B: A [64][keys] in registers, B [keys][columns] by the copy engine, MN-major, of which N columns count.
// in: A by thread, step and register, B. out: C by thread and register.
template <int N, int keys, typename T>
__global__ void __launch_bounds__(128, 1)
    product_rs(const __grid_constant__ TensorMap B_map, const uint32_t* in, uint32_t* out) {
  struct Shared {
    half B[(N + 63) / 64][keys][64];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  begin(shared.full, 1);
  if (thread == 0) {
    mbarrier_expect(shared.full, sizeof shared.B);
    tma_load(shared.B, B_map, shared.full, 0, 0, 0, 0);
  }
  uint32_t a[keys / 16][4];
#pragma unroll
  for (int i = 0; i < keys / 4; ++i) a[i / 4][i % 4] = in[thread * (keys / 4) + i];
  float c[N / 2];
  const Descriptor B = descriptor(shared.B, keys * 128, 1024);
  mbarrier_wait(shared.full, 0);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) c[i] = 0;
  wgmma_fence(c, a);
#pragma unroll
  for (int k = 0; k < keys; k += 16) wgmma<Major::mn, T>(c, a[k / 16], advance(B, k * 128), k > 0);
  wgmma_commit();
  wgmma_wait<0>(c, a);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) out[thread * (N / 2) + i] = __float_as_uint(c[i]);
}

// The two other pairs of operands, from tiles that threads wrote: C = A B with A [64][16] K-major in shared memory and
// B [16][64] MN-major; D = A B^T with A in registers, B [64][16] K-major. Then, without a wait between, C += D's factors.
// in: A by thread and register, A [64][64], B [16][64], B [64][64] (of which 16 columns count). out: C and D by thread and
// register.
__global__ void __launch_bounds__(128, 1) products_of_stores(const uint32_t* in, uint32_t* out) {
  struct Shared {
    half A[64][64], mn[16][64], k[64][64];
  };
  auto& shared = *dynamic_shared<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  auto* tile = reinterpret_cast<uint32_t*>(&shared);
  for (int i = thread; i < (64 + 16 + 64) * 32; i += 128)
    tile[i / 32 * 32 + (i % 32 / 4 ^ i / 32 % 8) * 4 + i % 4] = in[512 + i];
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = in[4 * thread + i];
  fence_proxy_async();
  __syncthreads();
  float c[32], d[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) c[i] = d[i] = 0;
  wgmma_fence(c, d, a);
  wgmma<Major::mn>(c, descriptor(shared.A, 1, 1024), descriptor(shared.mn, 1, 1024), false);
  wgmma_commit();
  wgmma<Major::k>(d, a, descriptor(shared.k, 1, 1024), false);
  wgmma_commit();
  wgmma_wait<1>(c);
#pragma unroll
  for (int i = 0; i < 32; ++i) out[thread * 64 + i] = __float_as_uint(c[i]);
  wgmma_wait<0>(d, a);
#pragma unroll
  for (int i = 0; i < 32; ++i) out[thread * 64 + 32 + i] = __float_as_uint(d[i]);
}

// --- the copy engine -------------------------------------------------------------------------------------------

constexpr int box_rows = 24, box_chunks = 2, box_words = box_chunks * box_rows * 32;

// in: four coordinates, then a tensor of halves [2][2][50][64]. out: the box, as it lies in shared memory.
__global__ void load_box(const __grid_constant__ TensorMap map, const uint32_t* in, uint32_t* out) {
  struct Shared {
    uint32_t box[box_words];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  begin(shared.full, 1);
  if (threadIdx.x == 32) {
    mbarrier_expect(shared.full, box_words * 4);
    tma_load(shared.box, map, shared.full, static_cast<int>(in[0]), static_cast<int>(in[1]), static_cast<int>(in[2]),
             static_cast<int>(in[3]));
  }
  mbarrier_wait(shared.full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < box_words; i += 64) out[i] = shared.box[i];
}

// in: four coordinates, then a box as it lies in shared memory. out: the tensor, with the box stored twice, the second time
// one row further in the next of four heads.
__global__ void store_box(const __grid_constant__ TensorMap map, const uint32_t* in, uint32_t*) {
  auto* box = dynamic_shared<uint32_t>();
  for (int i = static_cast<int>(threadIdx.x); i < box_words; i += 64) box[i] = in[4 + i];
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 32) {
    const int x[] = {static_cast<int>(in[0]), static_cast<int>(in[1]), static_cast<int>(in[2]), static_cast<int>(in[3])};
    tma_store(map, box, x[0], x[1], x[2], x[3]);
    tma_commit();
    tma_store(map, box, x[0], x[1] + 1, x[2], x[3] + 1);
    tma_commit();
    tma_wait_read<1>();
    tma_wait_read<0>();
  }
}

// --- barriers ----------------------------------------------------------------------------------------------------

// in: 40 words. A thread hands them on through one word of shared memory, one a phase, to 32 others. out: [word][lane].
__global__ void phases(const uint32_t* in, uint32_t* out) {
  struct Shared {
    Mbarrier full, empty;
    uint32_t word;
  };
  auto& shared = *dynamic_shared<Shared>();
  if (threadIdx.x == 0) {
    mbarrier_init(shared.full, 1);
    mbarrier_init(shared.empty, 32);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < 40; ++i) {
      mbarrier_wait(shared.empty, i % 2 ^ 1);
      shared.word = in[i];
      mbarrier_arrive(shared.full);
    }
  if (threadIdx.x >= 32)
    for (int i = 0; i < 40; ++i) {
      mbarrier_wait(shared.full, i % 2);
      out[i * 32 + static_cast<int>(threadIdx.x) % 32] = shared.word;
      mbarrier_arrive(shared.empty);
    }
}

// Six copies at one barrier, in three phases, each announced by another thread than the one that issues them.
// in: [6][64][64] halves. out: the sum of word i of the six boxes.
__global__ void phases_of_copies(const __grid_constant__ TensorMap map, const uint32_t*, uint32_t* out) {
  struct Shared {
    uint32_t box[2][64 * 32];
    Mbarrier full, empty;
  };
  auto& shared = *dynamic_shared<Shared>();
  if (threadIdx.x == 0) {
    mbarrier_init(shared.full, 2);
    mbarrier_init(shared.empty, 128);
    fence_mbarrier_init();
  }
  __syncthreads();
  uint32_t sum[16] = {};
  for (int phase = 0; phase < 3; ++phase) {
    if (threadIdx.x % 64 == 0) {
      const int which = static_cast<int>(threadIdx.x) / 64;
      mbarrier_wait(shared.empty, phase % 2 ^ 1);
      mbarrier_expect(shared.full, sizeof shared.box[0]);
      tma_load(shared.box[which], map, shared.full, 0, 64 * (2 * phase + which), 0, 0);
    }
    __syncwarp();
    mbarrier_wait(shared.full, phase % 2);
    for (int i = 0; i < 16; ++i)
      sum[i] +=
          shared.box[0][static_cast<int>(threadIdx.x) + 128 * i] + shared.box[1][static_cast<int>(threadIdx.x) + 128 * i];
    mbarrier_arrive(shared.empty);
  }
  for (int i = 0; i < 16; ++i) out[static_cast<int>(threadIdx.x) + 128 * i] = sum[i];
}

// Two warps take turns, as pingpong does: warp w may append its number when the other one has. out: 32 turns.
__global__ void turns(const uint32_t*, uint32_t* out) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  auto* count = dynamic_shared<int>();
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  if (warp == 1) named_barrier_arrive(1, 64);
  for (int i = 0; i < 16; ++i) {
    named_barrier_sync(1 + warp, 64);
    if (threadIdx.x % 32 == 0) {
      out[*count] = static_cast<uint32_t>(warp);
      ++*count;
    }
    if (warp == 0 || i < 15) named_barrier_arrive(2 - warp, 64);
  }
}

// --- lanes and registers -----------------------------------------------------------------------------------------

// out: for each of 64 threads, whether it is elected, twice.
__global__ void elections(const uint32_t*, uint32_t* out) {
  const bool first = elect_one();
  out[2 * threadIdx.x] = first;
  out[2 * threadIdx.x + 1] = elect_one();
}

// in: for each lane its row (of 40), then its four words. out: the 40 rows of eight halves; no lane names rows 32 .. 39.
__global__ void stmatrix(const uint32_t* in, uint32_t* out) {
  auto* tile = dynamic_shared<uint32_t>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 40 * 4; i += 32) tile[i] = 0x12345678;
  __syncwarp();
  uint32_t r[4];
  for (int i = 0; i < 4; ++i) r[i] = in[32 + 4 * lane + i];
  stmatrix_x4(reinterpret_cast<half*>(tile + 4 * in[lane]), r);
  __syncwarp();
  for (int i = lane; i < 40 * 4; i += 32) out[i] = tile[i];
}

// One warpgroup gives registers to the two others, who keep 100 values each in them. out: a sum for each thread.
__global__ void __launch_bounds__(384, 1) registers(const uint32_t* in, uint32_t* out) {
  if (threadIdx.x < 128) {
    setmaxnreg_dec<24>();
    out[threadIdx.x] = in[0];
  } else {
    setmaxnreg_inc<240>();
    uint32_t x[100];
#pragma unroll
    for (int i = 0; i < 100; ++i) x[i] = in[i] * (threadIdx.x + i);
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 100; ++i) sum = sum * 3 + x[99 - i];
    out[threadIdx.x] = sum;
  }
}

// --- running -----------------------------------------------------------------------------------------------------

template <int N, int d, typename T = half>
void run_product_ss(const char* name, const Device& device, const Words& w) {
  const uint32_t *A = w.in + 4 + 64 * N, *B = A + 64 * d / 2;
  launch(name, product_ss<N, d, T>, 1, 128, (64 + N) * d * 2 + 16, device, matrix_map<64>(A, 64, d), matrix_map<N>(B, N, d),
         w.in, w.out);
}
template <int N, int keys, typename T = half>
void run_product_rs(const char* name, const Device& device, const Words& w) {
  constexpr int columns = (N + 63) / 64 * 64;
  launch(name, product_rs<N, keys, T>, 1, 128, columns * keys * 2 + 16, device,
         matrix_map<keys>(w.in + 128 * keys / 4, keys, columns), w.in, w.out);
}
// [2][2][50][64] halves, innermost last: (x, row, half of 64 columns, head), the halves interleaved as d = 128 would have
// it.
template <bool load>
void run_box(const char* name, const Device& device, const Words& w) {
  const void* base = load ? static_cast<const void*>(w.in + 4) : w.out;
  const TensorMap map = tensor_map<4>(base, {64, 50, 2, 2}, {256, 128, 50 * 256}, {64, box_rows, box_chunks, 1});
  launch(name, load ? load_box : store_box, 1, 64, box_words * 4 + 16, device, map, w.in, w.out);
}
void run_phases_of_copies(const char* name, const Device& device, const Words& w) {
  launch(name, phases_of_copies, 1, 128, 2 * 64 * 128 + 16, device, matrix_map<64>(w.in, 6 * 64, 64), w.in, w.out);
}
template <void (*kernel)(const uint32_t*, uint32_t*), int threads, int shared_bytes>
void run_plain(const char* name, const Device& device, const Words& w) {
  launch(name, kernel, 1, threads, shared_bytes, device, w.in, w.out);
}

#define PRODUCTS(N) \
  {"product_ss " #N " 64", run_product_ss<N, 64>}, {"product_ss " #N " 64 bfloat16", run_product_ss<N, 64, bfloat16>}, \
      {"product_rs " #N " 32", run_product_rs<N, 32>}, { "product_rs " #N " 32 bfloat16", run_product_rs<N, 32, bfloat16> }

const Entry entries[] = {
    PRODUCTS(64),
    PRODUCTS(80),
    PRODUCTS(128),
    PRODUCTS(144),
    PRODUCTS(160),
    PRODUCTS(176),
    PRODUCTS(192),
    PRODUCTS(256),
    {"product_ss 80 128", run_product_ss<80, 128>},
    {"product_ss 64 256", run_product_ss<64, 256>},
    {"product_rs 128 80", run_product_rs<128, 80>},
    {"product_rs 256 16", run_product_rs<256, 16>},
    {"products_of_stores", run_plain<products_of_stores, 128, (64 + 16 + 64) * 128>},
    {"load_box", run_box<true>},
    {"store_box", run_box<false>},
    {"phases", run_plain<phases, 64, 32>},
    {"phases_of_copies", run_phases_of_copies},
    {"turns", run_plain<turns, 64, 16>},
    {"elections", run_plain<elections, 64, 0>},
    {"stmatrix", run_plain<stmatrix, 32, 40 * 16>},
    {"registers", run_plain<registers, 384, 0>},
};

}  // namespace

// Whether a tensor map is accepted. in: 12 pairs of words: offset of its base from a multiple of 1024, four sizes, three
// strides, four extents. out: 1 or 0.
static uint32_t accepts_map(const uint32_t* in) {
  uint64_t x[12];
  std::memcpy(x, in, sizeof x);
  try {
    tensor_map<4>(reinterpret_cast<const void*>((uint64_t{1} << 33) + x[0]), {x[1], x[2], x[3], x[4]}, {x[5], x[6], x[7]},
                  {static_cast<uint32_t>(x[8]), static_cast<uint32_t>(x[9]), static_cast<uint32_t>(x[10]),
                   static_cast<uint32_t>(x[11])});
    return 1;
  } catch (const std::exception& refusal) {
    keep(refusal.what());
    return 0;
  }
}

TEST_EXPORT const char* flash_test_run(const char* kernel, const uint32_t* in, int in_words, uint32_t* out, int out_words) {
  if (std::strcmp(kernel, "tensor_map") == 0) {
    *out = accepts_map(in);
    return nullptr;
  }
  return run_named(entries, kernel, in, in_words, out, out_words);
}
