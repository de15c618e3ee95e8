// The kernel of 31_wgmma, with a warpgroup that only loads.
//
// What 31 left: loading is part of everybody's timeline. A tile is refilled at a barrier of the whole CTA, so the warps wait
// for each other twice a block, and a load begins only when the slowest has come. The idea: one warpgroup, the producer,
// does nothing but start copies; the others, the consumers, nothing but compute. K and V have two tiles each, a ring: the
// producer fills one while the consumers read the other. Two mbarriers a tile say where it stands: full, it has landed;
// empty, all consumers have read it. Nobody waits for anything else.
//
// The producer needs few registers, the consumers many: setmaxnreg moves them, and a consumer waits until they are free. The
// kernel starts with 65,536 / 384 = 168 a thread (d = 64: 512 threads, 128). Shared memory: Q 32 KB (24), K and V twice 32 KB
// (16) each: 160 KB (88). Workspace: none.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/math.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>
#include <hardware/wgmma.h>

#include "reference_cpu/attention.h"

namespace step_32 {
namespace {

using attention::Problem;
using attention::Tensors;

template <int d>
constexpr int consumers = d == 64 ? 3 : 2;       // consumer warpgroups: each owns 64 rows of the query block
template <int d>
constexpr int Br = 64 * consumers<d>;            // rows of a query block
constexpr int Bc = 128;                          // rows of a key block
template <int d>
constexpr int threads = 128 * (1 + consumers<d>);
constexpr int stages = 2;                        // tiles of K and of V
template <int d>
constexpr int producer_registers = d == 64 ? 32 : 24;
template <int d>
constexpr int consumer_registers = d == 64 ? 160 : 240;
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
  Tile<Bc, d> K[stages], V[stages];
  Tile<64, d> Q[consumers<d>];
  Mbarrier Q_full[consumers<d>];
  Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
};

// Block j lies in stage j % stages, in the phase of this parity.
__device__ __forceinline__ int parity(int j) { return j / stages % 2; }

// Over the four lanes that share a row of the accumulators.
__device__ __forceinline__ float quad_max(float x) {
  for (int other = 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  return x;
}
__device__ __forceinline__ float quad_sum(float x) {
  for (int other = 2; other > 0; other /= 2) x += __shfl_xor_sync(all_lanes, x, other);
  return x;
}

// Starts S = Q K^T: 64 rows x Bc keys.
template <int d>
__device__ __forceinline__ void start_QK(float (&S)[Bc / 2], Descriptor Q, Descriptor K) {
  wgmma_fence(S);  // what softmax read and wrote is done before the tensor core writes
#pragma unroll
  for (int x = 0; x < d; x += 16)
    wgmma<Major::k>(S, advance(Q, x / 64 * 64 * 128 + x % 64 * 2), advance(K, x / 64 * Bc * 128 + x % 64 * 2), x > 0);
  wgmma_commit();  // one group: it can be waited for apart from PV's
}

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

//! [producer]
// One thread loads all that the consumers need for a query block, as soon as there is room.
template <int d>
__device__ __forceinline__ void produce(SharedMemory<d>& shared, const TensorMap& Q, const TensorMap& K,
                                        const TensorMap& V, Shape shape, int head, int i) {
  const int Tc = shape.key_blocks<d>(i);
  for (int w = 0; Tc > 0 && w < consumers<d>; ++w) {
    mbarrier_expect(shared.Q_full[w], sizeof shared.Q[w]);
    tma_load(&shared.Q[w], Q, shared.Q_full[w], 0, i * Br<d> + 64 * w, 0, head);
  }
  for (int j = 0; j < Tc; ++j) {
    const int stage = j % stages;
    mbarrier_wait(shared.K_empty[stage], parity(j) ^ 1);  // all consumers have multiplied by what lay there
    mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);
    tma_load(&shared.K[stage], K, shared.K_full[stage], 0, j * Bc, 0, head);
    mbarrier_wait(shared.V_empty[stage], parity(j) ^ 1);  // the same of V
    mbarrier_expect(shared.V_full[stage], sizeof shared.V[stage]);
    tma_load(&shared.V[stage], V, shared.V_full[stage], 0, j * Bc, 0, head);
  }
}
//! [producer]

// A warpgroup computes 64 rows of a query block, from its first key block to its last.
template <int d>
__device__ __forceinline__ void consume(SharedMemory<d>& shared, half* O_global, float* LSE, Shape shape, int head,
                                        int i) {
  const int w = __shfl_sync(all_lanes, threadIdx.x / 128, 0) - 1;  // the shuffle tells the compiler: the same in all lanes
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an 8 x 8 part of the accumulators
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)
  const Descriptor Q = descriptor(&shared.Q[w], 0, 1024), K = descriptor(&shared.K, 0, 1024),
                   V = descriptor(&shared.V, Bc * 128, 1024);
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
  auto release = [&](Mbarrier& empty) {
    if (lane == 0) mbarrier_arrive(empty);  // this warp no longer reads the tile
  };

  if (Tc > 0) mbarrier_wait(shared.Q_full[w], 0);  // this warpgroup's rows of Q have landed
  //! [block]
  for (int j = 0; j < Tc; ++j) {
    const int stage = j % stages;
    mbarrier_wait(shared.K_full[stage], parity(j));  // K_j has landed
    start_QK<d>(S, Q, advance(K, stage * sizeof shared.K[0]));
    wgmma_wait<0>(S);  // it is done
    release(shared.K_empty[stage]);
    if (hides(j)) hide(j);
    softmax(S, m, l, keep, c);
    pack_P();
    rescale_O();
    mbarrier_wait(shared.V_full[stage], parity(j));  // V_j has landed
    start_PV<d>(O, P, advance(V, stage * sizeof shared.V[0]));
    wgmma_wait<0>(O, P);  // it is done
    release(shared.V_empty[stage]);
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
    for (int w = 0; w < consumers<d>; ++w) mbarrier_init(shared.Q_full[w], 1);
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(shared.K_full[s], 1), mbarrier_init(shared.K_empty[s], 4 * consumers<d>);
      mbarrier_init(shared.V_full[s], 1), mbarrier_init(shared.V_empty[s], 4 * consumers<d>);
    }
    fence_mbarrier_init();  // the copy engine sees them
  }
  __syncthreads();  // and so do all threads
  //! [roles]
  const int Tr = (shape.Nq + Br<d> - 1) / Br<d>;
  const int head = blockIdx.x / Tr, i = Tr - 1 - blockIdx.x % Tr;  // the longest first
  if (threadIdx.x < 128) {
    setmaxnreg_dec<producer_registers<d>>();
    if (threadIdx.x < 32 && elect_one()) produce<d>(shared, Q, K, V, shape, head, i);
  } else {
    setmaxnreg_inc<consumer_registers<d>>();
    consume<d>(shared, O, LSE, shape, head, i);
  }
  //! [roles]
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

}  // namespace step_32
