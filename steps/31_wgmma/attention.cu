// The kernel of 30_tma, which multiplies with the warpgroup's matrix instruction.
//
// What 30 left: mma.sync takes its factors from registers, so every warp reads all of K and V from shared memory with
// ldmatrix, waits for that, and issues a product of 16 x 8 x 16; even without a pause it would not reach two thirds of the
// tensor core's speed. The idea: wgmma multiplies 64 rows by up to 256 columns with one instruction of four warps, a
// warpgroup. It reads its factors from shared memory itself, in the swizzled layout that the copy engine wrote; a descriptor
// says where. And it runs by itself: start it, go on, wait when the result is needed.
//
// The accumulators of S hold the elements that the factor P of the next product wants, as with mma.sync, so P stays in
// registers. O, S and P take d / 2 + 64 + 32 registers. A warpgroup owns 64 rows; two share the tiles of K and V, at d = 64
// three, since there O takes half as many registers.
//
// Registers: 2 x 128 threads may have 255 each, 3 x 128 threads 168. Shared memory: Q 32 KB (d = 64: 24), K and V 32 KB (16)
// each: 96 KB (56). Workspace: none.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/math.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>
#include <hardware/wgmma.h>

#include "reference_cpu/attention.h"

namespace step_31 {
namespace {

using attention::Problem;
using attention::Tensors;

template <int d>
constexpr int warpgroups = d == 64 ? 3 : 2;      // each owns 64 rows of the query block
template <int d>
constexpr int Br = 64 * warpgroups<d>;           // rows of a query block
constexpr int Bc = 128;                          // rows of a key block
template <int d>
constexpr int threads = 128 * warpgroups<d>;
constexpr float log2_e = 1.44269504f;
constexpr float lowest = -3e38f;                 // the maximum of nothing: below every score, and lowest - lowest is 0
constexpr unsigned all_lanes = 0xFFFFFFFF;

// The sizes, the causal mask's offset and the scale as sign and magnitude. Scale 0 is sign 0 and magnitude 1: then c is
// positive, and c times the -infinity of a hidden key never NaN.
struct Shape {
  int Nq, Nk;
  bool causal;
  float sign, magnitude;

  // Query i sees keys 0 .. visible_keys(i) - 1.
  __device__ int visible_keys(int i) const { return causal ? min(Nk, max(0, i + Nk - Nq + 1)) : Nk; }
  // Query block i needs key blocks 0 .. key_blocks(i) - 1: those that its last row sees.
  template <int d>
  __device__ int key_blocks(int i) const {
    return (visible_keys(min(Nq, (i + 1) * Br<d>) - 1) + Bc - 1) / Bc;
  }
};

// A tile of `rows` rows and d columns, as [d / 64][rows][64]; the pieces of 8 halves in a row are swizzled. So the copy
// engine writes it and wgmma reads it.
template <int rows, int d>
struct Tile {
  half data[d / 64][rows][64];

  // Where the piece that begins at (row, column) lies; column is a multiple of 8.
  __device__ half* at(int row, int column) { return &data[column / 64][row][(column % 64 / 8 ^ row % 8) * 8]; }
};

template <int d>
struct SharedMemory {
  Tile<64, d> Q[warpgroups<d>];
  Tile<Bc, d> K, V;
  Mbarrier Q_full, K_full, V_full;
};

// Over the four lanes that share a row of the accumulators.
__device__ __forceinline__ float quad_max(float x) {
  for (int other = 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  return x;
}
__device__ __forceinline__ float quad_sum(float x) {
  for (int other = 2; other > 0; other /= 2) x += __shfl_xor_sync(all_lanes, x, other);
  return x;
}

//! [QK]
// Starts S = Q K^T: 64 rows x Bc keys.
template <int d>
__device__ __forceinline__ void start_QK(float (&S)[Bc / 2], Descriptor Q, Descriptor K) {
  wgmma_fence(S);  // what softmax read and wrote is done before the tensor core writes
#pragma unroll
  for (int x = 0; x < d; x += 16)
    wgmma<Major::k>(S, advance(Q, x / 64 * 64 * 128 + x % 64 * 2), advance(K, x / 64 * Bc * 128 + x % 64 * 2), x > 0);
  wgmma_commit();  // one group: it can be waited for apart from PV's
}
//! [QK]

// Starts O += P V: 64 rows x d columns.
template <int d>
__device__ __forceinline__ void start_PV(float (&O)[d / 2], uint32_t (&P)[Bc / 16][4], Descriptor V) {
  wgmma_fence(O, P);  // O is rescaled and P packed before the tensor core reads them
#pragma unroll
  for (int key = 0; key < Bc; key += 16) wgmma<Major::mn>(O, P[key / 16], advance(V, key * 128), true);
  wgmma_commit();  // one group
}

// Turns the scores of a block into weights. Element x of S is in row x / 2 % 2 of the lane's two, in column 2q + x / 4 * 8 +
// x % 2. `keep` is what O is to be multiplied by.
//! [softmax]
template <int count>
__device__ __forceinline__ void softmax(float (&S)[count], float (&m)[2], float (&l)[2], float (&keep)[2], float c) {
  float m_new[2] = {m[0], m[1]}, offset[2];
#pragma unroll
  for (int x = 0; x < count; ++x) m_new[x / 2 % 2] = fmaxf(m_new[x / 2 % 2], S[x]);
  bool small = true;  // is m * c small in all of the warp's rows?
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m_new[r] = quad_max(m_new[r]);
    keep[r] = exp2_approx((m[r] - m_new[r]) * c);
    m[r] = m_new[r];
    l[r] *= keep[r];
    offset[r] = -m[r] * c;
    small = small && fabsf(m[r]) * c < 32768;
  }
  // exp(scale * (S - m)) takes one FFMA for its exponent, S * c - m * c. The two terms are rounded apart, so that is only
  // right while m * c is small; where it is not, subtract first.
  if (!__all_sync(all_lanes, small)) {
#pragma unroll
    for (int x = 0; x < count; ++x) S[x] -= m[x / 2 % 2];
    offset[0] = offset[1] = 0;
  }
#pragma unroll
  for (int x = 0; x < count; ++x) {
    S[x] = exp2_approx(multiply_add(S[x], c, offset[x / 2 % 2]));
    l[x / 2 % 2] += S[x];
  }
}
//! [softmax]

// A warpgroup computes 64 rows of a query block, from its first key block to its last.
template <int d>
__device__ __forceinline__ void query_block(SharedMemory<d>& shared, const TensorMap& Q_map, const TensorMap& K_map,
                                            const TensorMap& V_map, half* O_global, float* LSE, Shape shape, int head,
                                            int i) {
  const int w = __shfl_sync(all_lanes, threadIdx.x / 128, 0);  // the shuffle tells the compiler: the same in all lanes
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an 8 x 8 part of the accumulators
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)
  //! [descriptors]
  const Descriptor Q = descriptor(&shared.Q[w], 0, 1024), K = descriptor(&shared.K, 0, 1024),
                   V = descriptor(&shared.V, Bc * 128, 1024);
  //! [descriptors]
  const int first_row = i * Br<d> + 64 * w, q0 = first_row + 16 * warp + g;  // the lane's rows are queries q0 and q0 + 8
  const int Tc = shape.key_blocks<d>(i);
  float m[2] = {lowest, lowest}, l[2] = {}, keep[2];  // of the two rows; l is the lane's part: its own columns
  float S[Bc / 2], O[d / 2] = {};
  uint32_t P[Bc / 16][4];  // the weights, packed as the left factor of PV

  // Hides what a row does not see, and gives the scores the scale's sign. Most blocks need neither.
  auto hides = [&](int j) { return (j + 1) * Bc > shape.visible_keys(first_row) || shape.sign != 1; };
  auto hide = [&](int j) {
#pragma unroll
    for (int x = 0; x < Bc / 2; ++x) {
      const int visible = shape.visible_keys(q0 + x / 2 % 2 * 8) - j * Bc - 2 * q;
      S[x] = x / 4 * 8 + x % 2 < visible ? S[x] * shape.sign : -INFINITY;
    }
  };
  auto pack_P = [&] {
#pragma unroll
    for (int x = 0; x < Bc / 4; ++x) P[x / 4][x % 4] = pack_halves(S[2 * x], S[2 * x + 1]);
  };
  auto rescale_O = [&] {
#pragma unroll
    for (int x = 0; x < d / 2; ++x) O[x] = rescale(O[x], keep[x / 2 % 2]);
  };
  // One thread starts the copies.
  const bool leader = threadIdx.x < 32 && elect_one();
  auto load_K = [&](int j) {
    mbarrier_expect(shared.K_full, sizeof shared.K);  // the phase ends when so many bytes have landed
    tma_load(&shared.K, K_map, shared.K_full, 0, j * Bc, 0, head);
  };
  auto load_V = [&](int j) {
    mbarrier_expect(shared.V_full, sizeof shared.V);  // the same of V
    tma_load(&shared.V, V_map, shared.V_full, 0, j * Bc, 0, head);
  };
  if (leader && Tc > 0) {
    mbarrier_expect(shared.Q_full, sizeof shared.Q);  // all boxes of Q together
    for (int x = 0; x < warpgroups<d>; ++x) tma_load(&shared.Q[x], Q_map, shared.Q_full, 0, i * Br<d> + 64 * x, 0, head);
    load_K(0);
  }
  if (Tc > 0) mbarrier_wait(shared.Q_full, 0);  // Q has landed
  //! [block]
  for (int j = 0; j < Tc; ++j) {
    mbarrier_wait(shared.K_full, j % 2);  // K_j has landed
    __syncthreads();                      // all warps have multiplied by V_{j-1}
    if (leader) load_V(j);
    start_QK<d>(S, Q, K);
    wgmma_wait<0>(S);  // it is done
    __syncthreads();   // all warps have multiplied by K_j
    if (leader && j + 1 < Tc) load_K(j + 1);
    if (hides(j)) hide(j);
    softmax(S, m, l, keep, c);
    pack_P();
    rescale_O();
    mbarrier_wait(shared.V_full, j % 2);  // V_j has landed
    start_PV<d>(O, P, V);
    wgmma_wait<0>(O, P);  // it is done
  }
  //! [block]

  //! [store]
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = q0 + 8 * r;
    const float sum = quad_sum(l[r]);
    const float inverse = sum == 0 ? 0 : reciprocal(sum);
    if (row >= shape.Nq) continue;
    const int64_t to = int64_t{head} * shape.Nq + row;
#pragma unroll
    for (int x = 2 * r; x < d / 2; x += 4)
      *reinterpret_cast<uint32_t*>(O_global + to * d + x / 4 * 8 + 2 * q) = pack_halves(O[x] * inverse, O[x + 1] * inverse);
    if (q == 0) LSE[to] = sum == 0 ? -INFINITY : m[r] * shape.magnitude + logf(sum);
  }
  //! [store]
}

template <int d>
__global__ void __launch_bounds__(threads<d>, 1)
    attention_kernel(const __grid_constant__ TensorMap Q,  // [heads, Nq, d], in boxes of 64 rows
                     const __grid_constant__ TensorMap K,  // [heads, Nk, d], in boxes of Bc rows
                     const __grid_constant__ TensorMap V,  // [heads, Nk, d], in boxes of Bc rows
                     half* O,                              // [heads, Nq, d]
                     float* LSE,                           // [heads, Nq]
                     Shape shape) {
  auto& shared = *dynamic_shared<SharedMemory<d>>();
  if (threadIdx.x == 0) {
    mbarrier_init(shared.Q_full, 1), mbarrier_init(shared.K_full, 1), mbarrier_init(shared.V_full, 1);
    fence_mbarrier_init();  // the copy engine sees them
  }
  __syncthreads();  // and so do all threads
  const int Tr = (shape.Nq + Br<d> - 1) / Br<d>;
  const int head = blockIdx.x / Tr, i = Tr - 1 - blockIdx.x % Tr;  // the longest first
  query_block<d>(shared, Q, K, V, O, LSE, shape, head, i);
}

// [heads, N, d] as the copy engine sees it: 64 columns, N rows, d / 64 groups of columns, heads.
template <int d>
TensorMap tile_map(const void* tensor, int heads, int N, int box_rows) {
  const uint64_t rows = max(N, 1);  // a tensor map has at least one; if there is none, it is not read
  return tensor_map<4>(tensor, {64, rows, d / 64, static_cast<uint64_t>(heads)}, {d * 2, 128, rows * d * 2},
                       {64, static_cast<uint32_t>(box_rows), d / 64, 1});
}

template <int d>
void start(const Tensors& t, const Device& device, Shape shape, int heads) {
  const int Tr = (shape.Nq + Br<d> - 1) / Br<d>;
  launch("attention_kernel", attention_kernel<d>, heads * Tr, threads<d>, sizeof(SharedMemory<d>), device,
         tile_map<d>(t.Q, heads, shape.Nq, 64), tile_map<d>(t.K, heads, shape.Nk, Bc), tile_map<d>(t.V, heads, shape.Nk, Bc),
         static_cast<half*>(t.O), t.LSE, shape);
}

}  // namespace

size_t workspace_bytes(const Problem&, const Device&) { return 0; }

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, 0);
  if (p.query_rows() == 0) return;
  const Shape shape{static_cast<int>(p.seq_q),
                    static_cast<int>(p.seq_k),
                    p.causal,
                    p.scale < 0 ? -1.0f : p.scale > 0 ? 1.0f : 0.0f,
                    p.scale == 0 ? 1.0f : fabsf(p.scale)};
  const int heads = static_cast<int>(p.batch * p.heads);
  if (p.dim == 64) start<64>(t, device, shape, heads);
  if (p.dim == 128) start<128>(t, device, shape, heads);
}

}  // namespace step_31
