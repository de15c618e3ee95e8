/// @file
/// One small kernel for each wrapper of hardware/ that knows FP8, for both machines. test_fp8.cpp knows what they must give.
/// All take words in and give words out.
#include <hardware/fp8.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/stmatrix.h>
#include <hardware/tma.h>
#include <hardware/wgmma.h>

#include "tests/run_kernels.h"

namespace {

template <int span>
constexpr Swizzle swizzle_of = span == 128  ? Swizzle::bytes_128
                               : span == 64 ? Swizzle::bytes_64
                                            : Swizzle::bytes_32;

// A matrix of bytes [rows][columns] in global memory as [columns / span][rows][span] in shared memory.
template <int rows, int columns, int span>
TensorMap matrix_map(const void* base) {
  return tensor_map<4>(base, {span, rows, columns / span, 1}, {columns, span, columns * rows},
                       {span, rows, columns / span, 1}, Element::byte, swizzle_of<span>);
}

// Of a tile [columns / span][rows][span]: how far behind its first byte column k begins.
template <int rows, int span>
__device__ constexpr int offset_of(int k) {
  return k / span * rows * span + k % span;
}

// One barrier, ready for all threads.
__device__ void begin(Mbarrier& barrier) {
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
}

// --- numbers -----------------------------------------------------------------------------------------------------

// in: four floats for each of 128 threads. out: they in e4m3, they in e5m2.
__global__ void conversions(const uint32_t* in, uint32_t* out) {
  const int thread = static_cast<int>(threadIdx.x);
  float x[4];
  for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(in[4 * thread + i]);
  out[2 * thread] = pack_e4m3(x[0], x[1], x[2], x[3]);
  out[2 * thread + 1] = pack_e5m2(x[0], x[1], x[2], x[3]);
}

// out: the values of the 256 codes of e4m3, then of e5m2.
__global__ void values(const uint32_t*, uint32_t* out) {
  for (int code = static_cast<int>(threadIdx.x); code < 256; code += 128) {
    out[code] = __float_as_uint(to_float(e4m3{static_cast<uint8_t>(code)}));
    out[256 + code] = __float_as_uint(to_float(e5m2{static_cast<uint8_t>(code)}));
  }
}

// in: two words and a selector for each of 128 threads.
__global__ void permutations(const uint32_t* in, uint32_t* out) {
  out[threadIdx.x] = byte_permute(in[3 * threadIdx.x], in[3 * threadIdx.x + 1], in[3 * threadIdx.x + 2]);
}

// --- wgmma -------------------------------------------------------------------------------------------------------

// C = A B^T, or C + A B^T if in[0] is not 0: A [64][d] and B [N][d] by the copy engine, both in shared memory.
// in: 4 words, C by thread and register, A, B. out: C by thread and register.
template <int N, int d, int span, typename Left, typename Right>
__global__ void __launch_bounds__(128, 1)
    product_ss(const __grid_constant__ TensorMap A_map, const __grid_constant__ TensorMap B_map, const uint32_t* in,
               uint32_t* out) {
  struct Shared {
    Left A[64 * d];
    Right B[N * d];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  begin(shared.full);
  if (thread == 0) {
    mbarrier_expect(shared.full, sizeof shared.A + sizeof shared.B);
    tma_load(shared.A, A_map, shared.full, 0, 0, 0, 0);
    tma_load(shared.B, B_map, shared.full, 0, 0, 0, 0);
  }
  const bool accumulate = in[0] != 0;
  float c[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) c[i] = __uint_as_float(in[4 + thread * (N / 2) + i]);
  const Descriptor A = descriptor(shared.A, 0, 8 * span, swizzle_of<span>),
                   B = descriptor(shared.B, 0, 8 * span, swizzle_of<span>);
  mbarrier_wait(shared.full, 0);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < d; k += 32)
    wgmma_fp8<Left, Right>(c, advance(A, offset_of<64, span>(k)), advance(B, offset_of<N, span>(k)), accumulate || k > 0);
  wgmma_commit();
  wgmma_wait<0>(c);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) out[thread * (N / 2) + i] = __float_as_uint(c[i]);
}

// C = A B^T: A [64][keys] in registers, B [N][keys] by the copy engine.
// in: A by thread, step and register, B. out: C by thread and register.
template <int N, int keys, int span, typename Left, typename Right>
__global__ void __launch_bounds__(128, 1)
    product_rs(const __grid_constant__ TensorMap B_map, const uint32_t* in, uint32_t* out) {
  struct Shared {
    Right B[N * keys];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  begin(shared.full);
  if (thread == 0) {
    mbarrier_expect(shared.full, sizeof shared.B);
    tma_load(shared.B, B_map, shared.full, 0, 0, 0, 0);
  }
  uint32_t a[keys / 32][4];
#pragma unroll
  for (int i = 0; i < keys / 8; ++i) a[i / 4][i % 4] = in[thread * (keys / 8) + i];
  float c[N / 2];
  const Descriptor B = descriptor(shared.B, 0, 8 * span, swizzle_of<span>);
  mbarrier_wait(shared.full, 0);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) c[i] = 0;
  wgmma_fence(c, a);
#pragma unroll
  for (int k = 0; k < keys; k += 32) wgmma_fp8<Left, Right>(c, a[k / 32], advance(B, offset_of<N, span>(k)), k > 0);
  wgmma_commit();
  wgmma_wait<0>(c, a);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) out[thread * (N / 2) + i] = __float_as_uint(c[i]);
}

// Sums of rows: A [64][keys] in registers times ones, each `level` keys in an accumulator of their own.
// in: keys, level, A by step, thread and register. out: the sums by thread and register of 64 equal columns.
__global__ void __launch_bounds__(128, 1) row_sums(const uint32_t* in, uint32_t* out) {
  auto* ones = dynamic_shared<uint32_t>();  // [64][32] of e4m3
  const int thread = static_cast<int>(threadIdx.x), keys = static_cast<int>(in[0]), level = static_cast<int>(in[1]);
  for (int i = thread; i < 64 * 8; i += 128) ones[i] = pack_e4m3(1, 1, 1, 1);
  fence_proxy_async();
  __syncthreads();
  float sum[32], c[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) sum[i] = c[i] = 0;
  for (int first = 0; first < keys; first += level) {
    for (int k = first; k < first + level && k < keys; k += 32) {
      uint32_t a[4];
      for (int r = 0; r < 4; ++r) a[r] = in[2 + (k / 32 * 128 + thread) * 4 + r];
      wgmma_fence(c, a);
      wgmma_fp8<e4m3>(c, a, descriptor(ones, 0, 256, Swizzle::bytes_32), k > first);
      wgmma_commit();
      wgmma_wait<0>(c, a);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] += c[i];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) out[thread * 32 + i] = __float_as_uint(sum[i]);
}

// C + 0 * 0. in, out: C by thread and register, 64 columns.
__global__ void __launch_bounds__(128, 1) add_nothing(const uint32_t* in, uint32_t* out) {
  auto* zeros = dynamic_shared<uint32_t>();  // [64][32] of e4m3
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * 8; i += 128) zeros[i] = 0;
  fence_proxy_async();
  __syncthreads();
  float c[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) c[i] = __uint_as_float(in[thread * 32 + i]);
  const Descriptor both = descriptor(zeros, 0, 256, Swizzle::bytes_32);
  wgmma_fence(c);
  wgmma_fp8<e4m3>(c, both, both, true);
  wgmma_commit();
  wgmma_wait<0>(c);
#pragma unroll
  for (int i = 0; i < 32; ++i) out[thread * 32 + i] = __float_as_uint(c[i]);
}

// --- from one product to the next ----------------------------------------------------------------------------------

// V [keys][d] to V^T [keys / 128][d][128], both swizzled: 32 keys and 16 columns a warp and time. Of each 16 rows of V^T,
// row r holds column 2 (r % 8) + r / 8; of each 16 keys, place s holds key 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15.
template <int keys, int d>
__device__ void transpose(e4m3* transposed, const e4m3* V) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int unit = warp; unit < keys / 32 * (d / 16); unit += 4) {
    const int key = unit / (d / 16) * 32 + lane, piece = unit % (d / 16);  // this lane names one row of 16 bytes
    uint32_t r[4];
    // d = 128: the 128-byte swizzle; d = 64: the 64-byte swizzle, two rows a line.
    const int line = key * d / 128, place = d == 128 ? piece ^ key % 8 : piece ^ line % 4;
    ldmatrix_x4_trans(r, reinterpret_cast<const half*>(V + key * d + place * 16));
    const uint32_t columns[4] = {byte_permute(r[0], r[1], 0x6420), byte_permute(r[0], r[1], 0x7531),
                                 byte_permute(r[2], r[3], 0x6420), byte_permute(r[2], r[3], 0x7531)};
    const int row = piece * 16 + lane % 16, group = (key - lane) / 16 + lane / 16;  // 16 keys
    e4m3* chunk = transposed + group / 8 * d * 128;
    stmatrix_x4(reinterpret_cast<half*>(chunk + row * 128 + (group % 8 ^ row % 8) * 16), columns);
  }
}

// O = (Q K^T) V, all exact: Q [64][d], K and V [128][d], by the copy engine.
// in: Q, K, V. out: V^T as it lies in shared memory, then O [64][d].
template <int d>
__global__ void __launch_bounds__(128, 1)
    two_products(const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
                 const __grid_constant__ TensorMap V_map, const uint32_t*, uint32_t* out) {
  constexpr int keys = 128;
  struct Shared {
    e4m3 Q[64 * d], K[keys * d], V[keys * d], transposed[keys * d];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  begin(shared.full);
  if (thread == 0) {
    mbarrier_expect(shared.full, sizeof shared.Q + sizeof shared.K + sizeof shared.V);
    tma_load(shared.Q, Q_map, shared.full, 0, 0, 0, 0);
    tma_load(shared.K, K_map, shared.full, 0, 0, 0, 0);
    tma_load(shared.V, V_map, shared.full, 0, 0, 0, 0);
  }
  mbarrier_wait(shared.full, 0);
  transpose<keys, d>(shared.transposed, shared.V);
  fence_proxy_async();
  __syncthreads();
  for (int i = thread; i < keys * d / 4; i += 128) out[i] = reinterpret_cast<const uint32_t*>(shared.transposed)[i];

  float S[keys / 2], O[d / 2];
  uint32_t P[keys / 32][4];
  constexpr Swizzle swizzle = swizzle_of<d>;
  const Descriptor Q = descriptor(shared.Q, 0, 8 * d, swizzle), K = descriptor(shared.K, 0, 8 * d, swizzle),
                   V = descriptor(shared.transposed, 0, 1024);
#pragma unroll
  for (int i = 0; i < keys / 2; ++i) S[i] = 0;
  wgmma_fence(S);
#pragma unroll
  for (int k = 0; k < d; k += 32) wgmma_fp8<e4m3>(S, advance(Q, k), advance(K, k), k > 0);
  wgmma_commit();
  wgmma_wait<0>(S);
#pragma unroll
  for (int i = 0; i < keys / 32; ++i) {
    const float* c = S + 16 * i;
    P[i][0] = pack_e4m3(c[0], c[1], c[4], c[5]);
    P[i][1] = pack_e4m3(c[2], c[3], c[6], c[7]);
    P[i][2] = pack_e4m3(c[8], c[9], c[12], c[13]);
    P[i][3] = pack_e4m3(c[10], c[11], c[14], c[15]);
  }
#pragma unroll
  for (int i = 0; i < d / 2; ++i) O[i] = 0;
  wgmma_fence(O, P);
#pragma unroll
  for (int i = 0; i < keys / 32; ++i) wgmma_fp8<e4m3>(O, P[i], advance(V, offset_of<d, 128>(32 * i)), i > 0);
  wgmma_commit();
  wgmma_wait<0>(O, P);

  // Of 16 columns a thread has four neighbours, in two rows.
  auto* result = out + keys * d / 4;
  const int row = thread / 32 * 16 + thread % 32 / 4, column = 4 * (thread % 4);
#pragma unroll
  for (int j = 0; j < d / 16; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* c = O + 8 * j + 2 * half;
      uint32_t* to = result + (row + 8 * half) * d + 16 * j + column;
      to[0] = __float_as_uint(c[0]);
      to[1] = __float_as_uint(c[4]);
      to[2] = __float_as_uint(c[1]);
      to[3] = __float_as_uint(c[5]);
    }
}

// --- the copy engine -------------------------------------------------------------------------------------------------

// in: four coordinates, a tensor of bytes [2][40][64]. out: the box [24][span] as it lies in shared memory.
template <int span>
__global__ void load_box(const __grid_constant__ TensorMap map, const uint32_t* in, uint32_t* out) {
  struct Shared {
    uint32_t box[24 * span / 4];
    Mbarrier full;
  };
  auto& shared = *dynamic_shared<Shared>();
  begin(shared.full);
  if (threadIdx.x == 0) {
    mbarrier_expect(shared.full, sizeof shared.box);
    tma_load(shared.box, map, shared.full, static_cast<int>(in[0]), static_cast<int>(in[1]), static_cast<int>(in[2]),
             static_cast<int>(in[3]));
  }
  mbarrier_wait(shared.full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < 24 * span / 4; i += 32) out[i] = shared.box[i];
}

// in: four coordinates, a box as it lies in shared memory. out: the tensor.
template <int span>
__global__ void store_box(const __grid_constant__ TensorMap map, const uint32_t* in, uint32_t*) {
  auto* box = dynamic_shared<uint32_t>();
  for (int i = static_cast<int>(threadIdx.x); i < 24 * span / 4; i += 32) box[i] = in[4 + i];
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store(map, box, static_cast<int>(in[0]), static_cast<int>(in[1]), static_cast<int>(in[2]), static_cast<int>(in[3]));
    tma_commit();
    tma_wait_read<0>();
  }
}

// --- running ---------------------------------------------------------------------------------------------------------

template <int N, int d, int span, typename Left, typename Right>
void run_product_ss(const char* name, const Device& device, const Words& w) {
  const uint32_t *A = w.in + 4 + 64 * N, *B = A + 64 * d / 4;
  launch(name, product_ss<N, d, span, Left, Right>, 1, 128, (64 + N) * d + 16, device, matrix_map<64, d, span>(A),
         matrix_map<N, d, span>(B), w.in, w.out);
}
template <int N, int keys, int span, typename Left, typename Right>
void run_product_rs(const char* name, const Device& device, const Words& w) {
  launch(name, product_rs<N, keys, span, Left, Right>, 1, 128, N * keys + 16, device,
         matrix_map<N, keys, span>(w.in + 128 * keys / 8), w.in, w.out);
}
template <int d>
void run_two_products(const char* name, const Device& device, const Words& w) {
  launch(name, two_products<d>, 1, 128, (64 + 3 * 128) * d + 16, device, matrix_map<64, d, d>(w.in),
         matrix_map<128, d, d>(w.in + 64 * d / 4), matrix_map<128, d, d>(w.in + 192 * d / 4), w.in, w.out);
}
template <bool load, int span>
void run_box(const char* name, const Device& device, const Words& w) {
  const void* base = load ? static_cast<const void*>(w.in + 4) : w.out;
  const TensorMap map =
      tensor_map<4>(base, {128, 40, 2, 1}, {128, 128 * 40, 128 * 80}, {span, 24, 1, 1}, Element::byte, swizzle_of<span>);
  launch(name, load ? load_box<span> : store_box<span>, 1, 32, 24 * span + 16, device, map, w.in, w.out);
}
template <void (*kernel)(const uint32_t*, uint32_t*), int shared_bytes>
void run_plain(const char* name, const Device& device, const Words& w) {
  launch(name, kernel, 1, 128, shared_bytes, device, w.in, w.out);
}

#define PRODUCTS(N)                                                           \
  {"product_ss " #N " 128 128", run_product_ss<N, 128, 128, e4m3, e4m3>},     \
      {"product_ss " #N " 64 64", run_product_ss<N, 64, 64, e4m3, e4m3>},     \
      {"product_ss " #N " 64 32", run_product_ss<N, 64, 32, e4m3, e4m3>},     \
      {"product_rs " #N " 128 128", run_product_rs<N, 128, 128, e4m3, e4m3>}, \
      {"product_rs " #N " 64 64", run_product_rs<N, 64, 64, e4m3, e4m3>}, {   \
    "product_rs " #N " 96 32", run_product_rs<N, 96, 32, e4m3, e4m3>          \
  }
#define TYPES(left, right)                                                       \
  {"product_ss " #left " " #right, run_product_ss<64, 256, 128, left, right>}, { \
    "product_rs " #left " " #right, run_product_rs<64, 160, 32, left, right>     \
  }

const Entry entries[] = {
    {"conversions", run_plain<conversions, 0>},
    {"values", run_plain<values, 0>},
    {"permutations", run_plain<permutations, 0>},
    PRODUCTS(64),
    PRODUCTS(80),
    PRODUCTS(96),
    PRODUCTS(128),
    PRODUCTS(160),
    PRODUCTS(192),
    PRODUCTS(224),
    PRODUCTS(256),
    TYPES(e4m3, e4m3),
    TYPES(e4m3, e5m2),
    TYPES(e5m2, e4m3),
    TYPES(e5m2, e5m2),
    {"row_sums", run_plain<row_sums, 64 * 32>},
    {"add_nothing", run_plain<add_nothing, 64 * 32>},
    {"two_products 64", run_two_products<64>},
    {"two_products 128", run_two_products<128>},
    {"load_box 128", run_box<true, 128>},
    {"load_box 64", run_box<true, 64>},
    {"load_box 32", run_box<true, 32>},
    {"store_box 128", run_box<false, 128>},
    {"store_box 64", run_box<false, 64>},
    {"store_box 32", run_box<false, 32>},
};

}  // namespace

// Whether a tensor map of bytes is accepted. in: the span, the box's first extent, the first stride. out: 1 or 0.
static uint32_t accepts_map(const uint32_t* in) {
  const Swizzle swizzle = in[0] == 128 ? swizzle_of<128> : in[0] == 64 ? swizzle_of<64> : swizzle_of<32>;
  try {
    tensor_map<4>(reinterpret_cast<const void*>(uint64_t{1} << 33), {256, 64, 1, 1}, {in[2], 64 * 256, 64 * 256},
                  {in[1], 64, 1, 1}, Element::byte, swizzle);
    return 1;
  } catch (const std::exception& refusal) {
    keep(refusal.what());
    return 0;
  }
}

// On the simulated GPU "wide NAME" runs a kernel with sums in float.
TEST_EXPORT const char* flash_test_run(const char* kernel, const uint32_t* in, int in_words, uint32_t* out, int out_words) {
  if (std::strcmp(kernel, "tensor_map") == 0) {
    *out = accepts_map(in);
    return nullptr;
  }
#ifndef __CUDACC__
  narrow_fp8_sums = std::strncmp(kernel, "wide ", 5) != 0;
  if (!narrow_fp8_sums) kernel += 5;
#endif
  return run_named(entries, kernel, in, in_words, out, out_words);
}
