/// @file
/// One small kernel for each wrapper of hardware/ and each part of CUDA that a step may use.
/// test_hardware.cpp knows what they must give. All take words in and give words out.
#include <hardware/bfloat16.h>
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
#include <vector>

#include "tests/hardware_kernels.h"

namespace {

constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ int first_index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
__device__ int stride() { return static_cast<int>(gridDim.x * blockDim.x); }

// --- matrices ----------------------------------------------------------------------------------------------

// in: ten words a lane: four of A, two of B, four of C. out: the four of C.
__global__ void mma(const uint32_t* in, uint32_t* out, int) {
  const int lane = static_cast<int>(threadIdx.x);
  in += 10 * lane;
  const uint32_t a[4] = {in[0], in[1], in[2], in[3]};
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = __uint_as_float(in[6 + i]);
  mma_m16n8k16(c, a, in[4], in[5]);
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = __float_as_uint(c[i]);
}

// in: 64 rows of eight halves, then for each lane the row whose address it passes. out: the lane's four
// words.
template <bool transposed>
__global__ void ldmatrix(const uint32_t* in, uint32_t* out, int) {
  __shared__ __align__(16) uint32_t tile[64 * 4];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 64 * 4; i += 32) tile[i] = in[i];
  __syncthreads();
  const half* row = reinterpret_cast<const half*>(tile + 4 * in[64 * 4 + lane]);
  uint32_t r[4];
  if constexpr (transposed)
    ldmatrix_x4_trans(r, row);
  else
    ldmatrix_x4(r, row);
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = r[i];
}

// --- asynchronous copies -----------------------------------------------------------------------------------

// in: four words a lane. Lane i copies i bytes of its own, lanes 17..31 all 16; lane 0 names the end of the
// array.
__global__ void cp_async_valid(const uint32_t* in, uint32_t* out, int words) {
  __shared__ uint4 tile[32];
  const int lane = static_cast<int>(threadIdx.x);
  tile[lane] = make_uint4(~0u, ~0u, ~0u, ~0u);
  __syncthreads();
  cp_async_16(&tile[lane], lane == 0 ? in + words : in + 4 * lane, min(lane, 16));
  cp_async_commit();
  cp_async_wait<0>();
  reinterpret_cast<uint4*>(out)[lane] = tile[lane];
}

// in: three groups of 32 times four words. Each is read as soon as wait_group says so, and the last one,
// after a barrier, from the neighbour.
__global__ void cp_async_groups(const uint32_t* in, uint32_t* out, int) {
  __shared__ uint4 tile[3][32];
  const int lane = static_cast<int>(threadIdx.x);
  const uint4* source = reinterpret_cast<const uint4*>(in);
  uint4* target = reinterpret_cast<uint4*>(out);
  for (int group = 0; group < 3; ++group) {
    cp_async_16(&tile[group][lane], source + 32 * group + lane);
    cp_async_commit();
  }
  cp_async_wait<2>();
  target[lane] = tile[0][lane];
  cp_async_wait<1>();
  target[32 + lane] = tile[1][lane];
  cp_async_wait<0>();
  __syncthreads();
  target[64 + lane] = tile[2][(lane + 1) % 32];
}

// --- numbers -----------------------------------------------------------------------------------------------

// The low half of each word.
__global__ void half_to_float(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words; i += stride())
    out[i] = __float_as_uint(to_float(reinterpret_cast<const half*>(in)[2 * i]));
}
__global__ void float_to_half(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words; i += stride())
    reinterpret_cast<half*>(out)[2 * i] = to_half(__uint_as_float(in[i]));
}
// Word i with the word behind it (after the last: the first).
template <typename T>
__global__ void packed(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words; i += stride())
    out[i] = pack<T>(__uint_as_float(in[i]), __uint_as_float(in[(i + 1) % words]));
}
__global__ void unpack(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words; i += stride()) {
    const float2 both = unpack_halves(in[i]);
    out[2 * i] = __float_as_uint(both.x);
    out[2 * i + 1] = __float_as_uint(both.y);
  }
}
__global__ void exponentials(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words; i += stride())
    out[i] = __float_as_uint(exp2_approx(__uint_as_float(in[i])));
}
__global__ void reciprocals(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words; i += stride())
    out[i] = __float_as_uint(reciprocal(__uint_as_float(in[i])));
}
// Triples a, b, c: multiply_add(a, b, c) and rescale(a, b).
__global__ void products(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words / 3; i += stride()) {
    const float a = __uint_as_float(in[3 * i]), b = __uint_as_float(in[3 * i + 1]),
                c = __uint_as_float(in[3 * i + 2]);
    out[2 * i] = __float_as_uint(multiply_add(a, b, c));
    out[2 * i + 1] = __float_as_uint(rescale(a, b));
  }
}
// Pairs of words: the smaller and the larger as int, unsigned and float; the bits set in the first.
__global__ void integers(const uint32_t* in, uint32_t* out, int words) {
  for (int i = first_index(); i < words / 2; i += stride()) {
    const uint32_t a = in[2 * i], b = in[2 * i + 1];
    out[7 * i] = static_cast<uint32_t>(min(static_cast<int>(a), static_cast<int>(b)));
    out[7 * i + 1] = static_cast<uint32_t>(max(static_cast<int>(a), static_cast<int>(b)));
    out[7 * i + 2] = min(a, b);
    out[7 * i + 3] = max(a, b);
    out[7 * i + 4] = __float_as_uint(fminf(__uint_as_float(a), __uint_as_float(b)));
    out[7 * i + 5] = __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    out[7 * i + 6] = static_cast<uint32_t>(__popc(a));
  }
}

// --- lanes -------------------------------------------------------------------------------------------------

// in: 32 values. out: [operation: idx, xor, up, down][width 1, 2, .. 32][argument 0..31][lane].
template <typename T>
__global__ void shuffles(const uint32_t* in, uint32_t* out, int) {
  const int lane = static_cast<int>(threadIdx.x);
  T value;
  memcpy(&value, in + lane, 4);
  for (int log = 0, width = 1; width <= 32; ++log, width *= 2)
    for (int x = 0; x < 32; ++x) {
      const T results[4] = {__shfl_sync(all_lanes, value, x, width),
                            __shfl_xor_sync(all_lanes, value, x, width),
                            __shfl_up_sync(all_lanes, value, static_cast<unsigned>(x), width),
                            __shfl_down_sync(all_lanes, value, static_cast<unsigned>(x), width)};
      for (int operation = 0; operation < 4; ++operation) {
        uint32_t bits;
        memcpy(&bits, &results[operation], 4);
        out[((operation * 6 + log) * 32 + x) * 32 + lane] = bits;
      }
    }
}

// Each half of the warp for itself, and one of them alone. out: [2][lane].
__global__ void shuffles_of_some_lanes(const uint32_t* in, uint32_t* out, int) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned mask = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  out[lane] = __shfl_xor_sync(mask, in[lane], 5);
  out[32 + lane] = 0;
  if (lane >= 16) out[32 + lane] = __shfl_sync(mask, in[lane], 16 + (lane + 3) % 16);
}

// in: one word a vote, whose bits are the lanes' predicates. out: [vote][ballot, any, all of the warp,
// ballot, any, all of the lanes of the same parity][lane].
__global__ void votes(const uint32_t* in, uint32_t* out, int words) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned some = lane % 2 ? 0xAAAAAAAAu : 0x55555555u;
  for (int i = 0; i < words; ++i) {
    const int predicate = static_cast<int>(in[i] >> lane & 1) * 4;  // any number but 0 counts
    const uint32_t results[6] = {__ballot_sync(all_lanes, predicate),   __any_sync(all_lanes, predicate) != 0,
                                 __all_sync(all_lanes, predicate) != 0, __ballot_sync(some, predicate),
                                 __any_sync(some, predicate) != 0,      __all_sync(some, predicate) != 0};
    for (int k = 0; k < 6; ++k) out[(i * 6 + k) * 32 + lane] = results[k];
  }
}

// Through shared memory: from the next lane, then from the next lane of the same parity.
__global__ void syncwarp(const uint32_t* in, uint32_t* out, int) {
  __shared__ uint32_t tile[64];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32 * 32, lane = thread % 32;
  tile[thread] = in[thread];
  __syncwarp();
  const uint32_t next = tile[warp + (lane + 1) % 32];
  __syncwarp();
  tile[thread] = 2 * next;
  __syncwarp(lane % 2 ? 0xAAAAAAAAu : 0x55555555u);
  out[thread] = tile[warp + (lane + 2) % 32];
}

// out[0..2]: sums of 1, -2 and 0.5 over all threads; out[3]: a CTA's own sum in shared memory, added up;
// out[4 ...]: what each thread found in out[0].
__global__ void atomics(const uint32_t*, uint32_t* out, int) {
  __shared__ unsigned own;
  if (threadIdx.x == 0) own = 0;
  __syncthreads();
  out[4 + first_index()] = atomicAdd(reinterpret_cast<unsigned*>(out), 1u);
  atomicAdd(reinterpret_cast<int*>(out) + 1, -2);
  atomicAdd(reinterpret_cast<float*>(out) + 2, 0.5f);
  atomicAdd(&own, 3u);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned*>(out) + 3, own);
}

// --- the language ------------------------------------------------------------------------------------------

static_assert(sizeof(float2) == 8 && alignof(float2) == 8 && sizeof(uint2) == 8 && alignof(uint2) == 8);
static_assert(sizeof(int2) == 8 && alignof(int2) == 8 && sizeof(int4) == 16 && alignof(int4) == 16);
static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && sizeof(uint4) == 16 && alignof(uint4) == 16);
static_assert(sizeof(half) == 2 && alignof(half) == 2);

// Words in reverse order within each vector, by every type and maker. in and out: 24 words, 16 in fours and 8
// in twos.
__global__ void vectors(const uint32_t* in, uint32_t* out, int) {
  if (threadIdx.x != 0) return;
  const float4 f4 = reinterpret_cast<const float4*>(in)[0];
  const uint4 u4 = reinterpret_cast<const uint4*>(in)[1];
  const int4 i4 = reinterpret_cast<const int4*>(in)[2];
  reinterpret_cast<float4*>(out)[0] = make_float4(f4.w, f4.z, f4.y, f4.x);
  reinterpret_cast<uint4*>(out)[1] = make_uint4(u4.w, u4.z, u4.y, u4.x);
  reinterpret_cast<int4*>(out)[2] = int4{i4.w, i4.z, i4.y, i4.x};
  const float2 f2 = reinterpret_cast<const float2*>(in + 12)[0];
  const uint2 u2 = reinterpret_cast<const uint2*>(in + 12)[1];
  const int2 i2 = reinterpret_cast<const int2*>(in + 12)[2];
  reinterpret_cast<float2*>(out + 12)[0] = make_float2(f2.y, f2.x);
  reinterpret_cast<uint2*>(out + 12)[1] = make_uint2(u2.y, u2.x);
  reinterpret_cast<int2*>(out + 12)[2] = int2{i2.y, i2.x};
}

// out: each thread at its place in grid and CTA writes where it thinks that it is: eight words.
__global__ void places(const uint32_t*, uint32_t* out, int) {
  const unsigned cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint32_t words[8] = {blockIdx.x, blockIdx.y, blockIdx.z,  gridDim.x,
                             gridDim.y,  gridDim.z,  threadIdx.x, blockDim.x};
  for (int i = 0; i < 8; ++i) out[8 * (cta * blockDim.x + threadIdx.x) + i] = words[i];
}

template <int n>
__device__ uint32_t* array_of() {
  __shared__ uint32_t array[n];
  return array;
}

// Every CTA turns around its n words, in a static array; the kernel has two instances, and so has the array
// within one.
template <int n>
__global__ void turn_static(const uint32_t* in, uint32_t* out, int) {
  __shared__ uint32_t array[n];
  const int thread = static_cast<int>(threadIdx.x), begin = static_cast<int>(blockIdx.x) * n;
  array[thread] = in[begin + thread];
  array_of<n>()[thread] = in[begin + thread] + 1;
  array_of<n + 1>()[thread] = in[begin + thread] + 2;
  __syncthreads();
  const int other = n - 1 - thread;
  out[3 * (begin + thread)] = array[other];
  out[3 * (begin + thread) + 1] = array_of<n>()[other];
  out[3 * (begin + thread) + 2] = array_of<n + 1>()[other];
}

// The same in dynamic shared memory, at both of its ends; out[0]: the memory's alignment is as promised.
constexpr size_t much_shared = size_t{96} << 10;
__global__ void turn_dynamic(const uint32_t* in, uint32_t* out, int words) {
  uint32_t* low = dynamic_shared<uint32_t>();
  uint32_t* high = low + much_shared / 4 - words;
  const int thread = static_cast<int>(threadIdx.x);
  low[thread] = in[thread];
  high[thread] = in[thread] + 1;
  __syncthreads();
  if (thread == 0) out[0] = reinterpret_cast<uintptr_t>(low) % 1024 == 0;
  out[1 + 2 * thread] = low[words - 1 - thread];
  out[2 + 2 * thread] = high[words - 1 - thread];
}

// --- running -----------------------------------------------------------------------------------------------

struct Entry {
  const char* name;
  void (*kernel)(const uint32_t*, uint32_t*, int);
  dim3 grid;
  unsigned threads;
  size_t shared;
};

const Entry entries[] = {
    {"mma", mma, 1, 32, 0},
    {"ldmatrix", ldmatrix<false>, 1, 32, 0},
    {"ldmatrix_trans", ldmatrix<true>, 1, 32, 0},
    {"cp_async_valid", cp_async_valid, 1, 32, 0},
    {"cp_async_groups", cp_async_groups, 1, 32, 0},
    {"half_to_float", half_to_float, 2, 128, 0},
    {"float_to_half", float_to_half, 2, 128, 0},
    {"pack half", packed<half>, 2, 128, 0},
    {"pack bfloat16", packed<bfloat16>, 2, 128, 0},
    {"unpack", unpack, 2, 128, 0},
    {"exponentials", exponentials, 2, 128, 0},
    {"reciprocals", reciprocals, 2, 128, 0},
    {"products", products, 2, 128, 0},
    {"integers", integers, 2, 128, 0},
    {"shuffles of unsigned", shuffles<unsigned>, 1, 32, 0},
    {"shuffles of float", shuffles<float>, 1, 32, 0},
    {"shuffles_of_some_lanes", shuffles_of_some_lanes, 1, 32, 0},
    {"votes", votes, 1, 32, 0},
    {"syncwarp", syncwarp, 1, 64, 0},
    {"atomics", atomics, 3, 96, 0},
    {"vectors", vectors, 1, 32, 0},
    {"places 1-D", places, 7, 33, 0},
    {"places 3-D", places, dim3(3, 4, 5), 2, 0},
    {"turn_static 32", turn_static<32>, 2, 32, 0},
    {"turn_static 64", turn_static<64>, 2, 64, 0},
    {"turn_dynamic", turn_dynamic, 1, 128, much_shared},
};

#ifdef __CUDACC__
// Runs on the GPU and returns when it is done.
void run(const Entry& e, const std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
  void *device_in = nullptr, *device_out = nullptr;
  check_cuda(cudaMalloc(&device_in, in.size() * 4 + 4), "Allocating");
  check_cuda(cudaMalloc(&device_out, out.size() * 4), "Allocating");
  check_cuda(cudaMemcpy(device_in, in.data(), in.size() * 4, cudaMemcpyHostToDevice), "Copying in");
  check_cuda(cudaMemcpy(device_out, out.data(), out.size() * 4, cudaMemcpyHostToDevice), "Copying in");
  launch(e.name, e.kernel, e.grid, e.threads, e.shared, current_device(nullptr),
         static_cast<const uint32_t*>(device_in), static_cast<uint32_t*>(device_out),
         static_cast<int>(in.size()));
  check_cuda(cudaMemcpy(out.data(), device_out, out.size() * 4, cudaMemcpyDeviceToHost),
             std::string("Running ") + e.name);
  check_cuda(cudaFree(device_in), "Freeing");
  check_cuda(cudaFree(device_out), "Freeing");
}
#else
void run(const Entry& e, const std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
  const std::vector<uint32_t> before = out;
  for (simulator::Schedule schedule :
       {simulator::Schedule::early, simulator::Schedule::late, simulator::Schedule::random}) {
    simulator::free_all();
    simulator::reset({schedule, 1, {}});
    auto* device_in = static_cast<uint32_t*>(simulator::allocate(in.size() * 4, "in"));
    auto* device_out = static_cast<uint32_t*>(simulator::allocate(out.size() * 4, "out"));
    std::copy(in.begin(), in.end(), device_in);
    std::copy(before.begin(), before.end(), device_out);
    launch(e.name, e.kernel, e.grid, e.threads, e.shared, current_device(nullptr), device_in, device_out,
           static_cast<int>(in.size()));
    for (const simulator::Report& r : simulator::reports()) throw std::runtime_error(r.kind + ": " + r.text);
    const std::vector<uint32_t> now(device_out, device_out + out.size());
    if (schedule != simulator::Schedule::early && now != out && e.kernel != atomics)
      throw std::runtime_error(std::string(e.name) + " gives different results in different schedules.");
    out = now;
  }
}
#endif

const char* keep(const std::string& sentence) {
  static std::string kept;
  kept = sentence;
  return kept.c_str();
}

}  // namespace

#define TEST_EXPORT extern "C" __attribute__((visibility("default")))

TEST_EXPORT const char* flash_test_unavailable(void) {
#ifdef __CUDACC__
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return cudaGetErrorString(code);
  if (count == 0) return "there is no GPU";
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (major < 8) return "the GPU is older than compute capability 8.0";
#endif
  return nullptr;
}

TEST_EXPORT const char* flash_test_run(const char* kernel, const uint32_t* in, int in_words, uint32_t* out,
                                       int out_words) {
  for (const Entry& e : entries)
    if (std::strcmp(e.name, kernel) == 0) {
      try {
        std::vector<uint32_t> result(out, out + out_words);
        run(e, std::vector<uint32_t>(in, in + in_words), result);
        std::memcpy(out, result.data(), result.size() * 4);
        return nullptr;
      } catch (const std::exception& error) {
        return keep(error.what());
      }
    }
  return keep(std::string("There is no kernel ") + kernel + ".");
}
