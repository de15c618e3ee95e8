// The kernel of 36_persistent, which rescales O only when it must, and not while the tensor core waits.
//
// What 36 left: after each block O is multiplied by 2^((m_old - m_new) c), mostly by 1, and the next products cannot start
// before that is done. The idea has two halves. First, m need not be the newest maximum: where scores exceed it by at most 8
// in log2 units, the weights are at most 2^8, which FP16 and the sums hold well, and the division by l at the end makes up
// for it exactly. So m stays unless it would rise by more, and a warp whose rows all keep theirs multiplies nothing. Second,
// where it must rescale, it does so after the next Q K^T has been started: that product does not touch O.
//
// Registers: producer 32 / 40 / 24 a thread (d = 64 / 128 / 256), consumers 160 / 232 / 240. Shared memory: K and V twice
// 16 / 32 / 40 KB each, Q 24 / 32 / 64 KB, O as much again, but at d = 256 in Q's place: 112 / 192 / 224 KB.
// Workspace: 4 bytes, the counter.
//
// Q, K, V and O are FP16 or BF16. Both are copied and stored alike; T, half or bfloat16, is what wgmma takes its factors for
// and what P and O are packed as.

#include <hardware/bfloat16.h>
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/math.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/stmatrix.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>
#include <hardware/wgmma.h>

#include "reference_cpu/attention.h"

namespace step_40 {
namespace {

using attention::Dtype;
using attention::Problem;
using attention::Tensors;

template <int d>
constexpr int consumers = d == 64 ? 3 : 2;       // consumer warpgroups: each owns 64 rows of the query block
template <int d>
constexpr int Br = 64 * consumers<d>;            // rows of a query block
template <int d>
constexpr int Bc = d == 256 ? 80 : 128;          // rows of a key block
template <int d>
constexpr int threads = 128 * (1 + consumers<d>);
constexpr int stages = 2;                        // tiles of K and of V
template <int d>
constexpr int producer_registers = d == 64 ? 32 : d == 128 ? 40 : 24;
template <int d>
constexpr int consumer_registers = d == 64 ? 160 : d == 128 ? 232 : 240;
template <int d>
constexpr bool pingpong = d == 64;               // above 64 the softmax is short beside the products
template <int d>
constexpr bool O_over_Q = d == 256;              // there is no room for O beside Q
constexpr float slack = 8;                       // how far scores may exceed the maximum, in log2 units
constexpr float log2_e = 1.44269504f;
constexpr float lowest = -3e38f;                 // the maximum of nothing: below every score, and lowest - lowest is 0
constexpr unsigned all_lanes = 0xFFFFFFFF;

// The sizes, the causal mask's offset and the scale as sign and magnitude. Scale 0 is sign 0 and magnitude 1: then c is
// positive, and c times the -infinity of a hidden key never NaN.
struct Shape {
  int Nq, Nk;
  bool causal;
  float sign, magnitude;
  int heads, section;  // all heads; heads that are worked on together

  // Query i sees keys 0 .. visible_keys(i) - 1.
  __device__ int visible_keys(int i) const { return causal ? min(Nk, max(0, i + Nk - Nq + 1)) : Nk; }
  // Query block i needs key blocks 0 .. key_blocks(i) - 1: those that its last row sees.
  template <int d>
  __device__ int key_blocks(int i) const {
    return (visible_keys(min(Nq, (i + 1) * Br<d>) - 1) + Bc<d> - 1) / Bc<d>;
  }
};

//! [work]
// A piece of work: query block i of a head. Within a section of heads the last query blocks, which see the most keys, come
// first.
struct Work {
  int head, i;
};
template <int d>
__device__ Work work_number(unsigned number, Shape shape) {
  const unsigned Tr = (shape.Nq + Br<d> - 1) / Br<d>;
  const unsigned first = number / (shape.section * Tr) * shape.section, within = number % (shape.section * Tr);
  const unsigned heads = min(shape.section, shape.heads - static_cast<int>(first));  // the last section may have fewer
  return {static_cast<int>(first + within % heads), static_cast<int>(Tr - 1 - within / heads)};
}
//! [work]

// A tile of `rows` rows and d columns, as [d / 64][rows][64]; the pieces of 8 halves in a row are swizzled. So the copy
// engine writes it and wgmma reads it. A "half" here may be a bfloat16.
template <int rows, int d>
struct Tile {
  half data[d / 64][rows][64];

  // Where the piece that begins at (row, column) lies; column is a multiple of 8.
  __device__ half* at(int row, int column) { return &data[column / 64][row][(column % 64 / 8 ^ row % 8) * 8]; }
};

template <int d>
struct SharedMemory {
  Tile<Bc<d>, d> K[stages], V[stages];
  Tile<64, d> Q[consumers<d> * (O_over_Q<d> ? 1 : 2)];  // and behind them O
  Mbarrier Q_full[consumers<d>], Q_empty[consumers<d>];
  Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
  Mbarrier work_full, work_empty;
  unsigned work;

  __device__ Tile<64, d>& O(int w) { return Q[w + (O_over_Q<d> ? 0 : consumers<d>)]; }
};

// The n-th block that is loaded lies in stage n % stages, in the phase of this parity.
__device__ __forceinline__ int parity(unsigned n) { return n / stages % 2; }

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
template <typename T, int d>
__device__ __forceinline__ void start_QK(float (&S)[Bc<d> / 2], Descriptor Q, Descriptor K) {
  wgmma_fence(S);  // what softmax read and wrote is done before the tensor core writes
#pragma unroll
  for (int x = 0; x < d; x += 16)
    wgmma<Major::k, T>(S, advance(Q, x / 64 * 64 * 128 + x % 64 * 2), advance(K, x / 64 * Bc<d> * 128 + x % 64 * 2), x > 0);
  wgmma_commit();  // one group: it can be waited for apart from PV's
}

// Starts O += P V: 64 rows x d columns.
template <typename T, int d>
__device__ __forceinline__ void start_PV(float (&O)[d / 2], uint32_t (&P)[Bc<d> / 16][4], Descriptor V) {
  wgmma_fence(O, P);  // O is rescaled and P packed before the tensor core reads them
#pragma unroll
  for (int key = 0; key < Bc<d>; key += 16) wgmma<Major::mn, T>(O, P[key / 16], advance(V, key * 128), true);
  wgmma_commit();  // one group
}

// Turns the scores of a block into weights. Element x of S is in row x / 2 % 2 of the lane's two, in column 2q + x / 4 * 8 +
// x % 2. If a row's maximum is replaced, in any row of the warp, the result is true, `keep` is what O is to be multiplied by,
// and `small` is decided anew.
//! [softmax]
template <int count>
__device__ __forceinline__ bool softmax(float (&S)[count], float (&m)[2], float (&l)[2], float (&keep)[2], bool& small,
                                        float c) {
  float m_new[2] = {m[0], m[1]};
#pragma unroll
  for (int x = 0; x < count; ++x) m_new[x / 2 % 2] = fmaxf(m_new[x / 2 % 2], S[x]);
  bool raised = false;  // does the maximum of any of the warp's rows rise by more than the slack?
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m_new[r] = quad_max(m_new[r]);
    raised = raised || (m_new[r] - m[r]) * c > slack;
  }
  raised = __any_sync(all_lanes, raised);
  if (raised) {
    small = true;  // is m * c small in all of the warp's rows?
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      keep[r] = exp2_approx((m[r] - m_new[r]) * c);
      m[r] = m_new[r];
      l[r] *= keep[r];
      small = small && fabsf(m[r]) * c < 32768;
    }
    small = __all_sync(all_lanes, small);
  }
  // exp(scale * (S - m)) takes one FFMA for its exponent, S * c - m * c. The two terms are rounded apart, so that is only
  // right while m * c is small; where it is not, subtract first.
  float offset[2] = {-m[0] * c, -m[1] * c};
  if (!small) {
#pragma unroll
    for (int x = 0; x < count; ++x) S[x] -= m[x / 2 % 2];
    offset[0] = offset[1] = 0;
  }
#pragma unroll
  for (int x = 0; x < count; ++x) {
    S[x] = exp2_approx(multiply_add(S[x], c, offset[x / 2 % 2]));
    l[x / 2 % 2] += S[x];
  }
  return raised;
}
//! [softmax]

//! [producer]
// One thread loads all that the consumers need for a query block, as soon as there is room.
template <int d>
__device__ __forceinline__ void produce(SharedMemory<d>& shared, const TensorMap& Q, const TensorMap& K,
                                        const TensorMap& V, Shape shape, int head, int i, int turn, unsigned& n) {
  for (int w = 0; w < consumers<d>; ++w) {
    mbarrier_wait(shared.Q_empty[w], turn % 2 ^ 1);  // the consumer no longer needs the last Q
    mbarrier_expect(shared.Q_full[w], sizeof shared.Q[w]);
    tma_load(&shared.Q[w], Q, shared.Q_full[w], 0, i * Br<d> + 64 * w, 0, head);
  }
  for (int j = shape.key_blocks<d>(i) - 1; j >= 0; --j, ++n) {
    const unsigned stage = n % stages;
    mbarrier_wait(shared.K_empty[stage], parity(n) ^ 1);  // all consumers have multiplied by what lay there
    mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);
    tma_load(&shared.K[stage], K, shared.K_full[stage], 0, j * Bc<d>, 0, head);
    mbarrier_wait(shared.V_empty[stage], parity(n) ^ 1);  // the same of V
    mbarrier_expect(shared.V_full[stage], sizeof shared.V[stage]);
    tma_load(&shared.V[stage], V, shared.V_full[stage], 0, j * Bc<d>, 0, head);
  }
}
//! [producer]

// A warpgroup computes 64 rows of a query block, from its last key block to its first.
template <typename T, int d>
__device__ __forceinline__ void consume(SharedMemory<d>& shared, const TensorMap& O_map, float* LSE, Shape shape,
                                        int head, int i, int turn, unsigned& n) {
  const int w = __shfl_sync(all_lanes, threadIdx.x / 128, 0) - 1;  // the shuffle tells the compiler: the same in all lanes
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an 8 x 8 part of the accumulators
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)
  const Descriptor Q = descriptor(&shared.Q[w], 0, 1024), K = descriptor(&shared.K, 0, 1024),
                   V = descriptor(&shared.V, Bc<d> * 128, 1024);
  const int own_turn = 1 + w, next_turn = 1 + (w + 1) % consumers<d>, own_rows = 1 + consumers<d> + w;  // named barriers
  const int first_row = i * Br<d> + 64 * w, q0 = first_row + 16 * warp + g;  // the lane's rows are queries q0 and q0 + 8
  const int Tc = shape.key_blocks<d>(i);
  float m[2] = {lowest, lowest}, l[2] = {}, keep[2];  // of the two rows; l is the lane's part: its own columns
  float S[Bc<d> / 2], O[d / 2] = {};
  bool raised = false, small = false;
  uint32_t P[Bc<d> / 16][4];  // the weights, packed as the left factor of PV

  // Hides what a row does not see, and gives the scores the scale's sign.
  auto hide = [&](int j) {
#pragma unroll
    for (int x = 0; x < Bc<d> / 2; ++x) {
      const int visible = shape.visible_keys(q0 + x / 2 % 2 * 8) - j * Bc<d> - 2 * q;
      S[x] = x / 4 * 8 + x % 2 < visible ? S[x] * shape.sign : -INFINITY;
    }
  };
  auto pack_P = [&] {
#pragma unroll
    for (int x = 0; x < Bc<d> / 4; ++x) P[x / 4][x % 4] = pack<T>(S[2 * x], S[2 * x + 1]);
  };
  auto rescale_O = [&] {
#pragma unroll
    for (int x = 0; x < d / 2; ++x) O[x] = rescale(O[x], keep[x / 2 % 2]);
  };
  auto release = [&](Mbarrier& empty) {
    if (lane == 0) mbarrier_arrive(empty);  // this warp no longer reads the tile
  };
  //! [block]
  // S = Q K_j^T runs on the tensor core together with O += P V of the block before; the softmax of S runs beside PV.
  auto block = [&](int j, bool hides) {
    const unsigned last = n++;
    mbarrier_wait(shared.K_full[n % stages], parity(n));  // K_j has landed
    if (pingpong<d>) named_barrier_sync(own_turn, 256);  // the consumer before has started its products
    start_QK<T, d>(S, Q, advance(K, n % stages * sizeof shared.K[0]));
    if (raised) rescale_O();
    mbarrier_wait(shared.V_full[last % stages], parity(last));  // V of the block before has landed
    start_PV<T, d>(O, P, advance(V, last % stages * sizeof shared.V[0]));
    if (pingpong<d>) named_barrier_arrive(next_turn, 256);  // the next consumer's turn
    wgmma_wait<1>(S);  // QK is done, PV goes on
    release(shared.K_empty[n % stages]);
    if (hides) hide(j);
    raised = softmax(S, m, l, keep, small, c);
    wgmma_wait<0>(O, P);  // PV is done
    release(shared.V_empty[last % stages]);
    pack_P();
  };
  //! [block]

  mbarrier_wait(shared.Q_full[w], turn % 2);  // this warpgroup's rows of Q have landed
  if (Tc > 0) {
    mbarrier_wait(shared.K_full[n % stages], parity(n));  // the last K block has landed
    start_QK<T, d>(S, Q, advance(K, n % stages * sizeof shared.K[0]));
    wgmma_wait<0>(S);  // it is done
    release(shared.K_empty[n % stages]);
    hide(Tc - 1);
    raised = softmax(S, m, l, keep, small, c);
    pack_P();
    int j = Tc - 2;
    const int plain = shape.sign == 1 ? shape.visible_keys(first_row) / Bc<d> : 0;  // blocks that all rows see
    for (; j >= plain; --j) block(j, true);
    for (; j >= 0; --j) block(j, false);
    if (raised) rescale_O();
    mbarrier_wait(shared.V_full[n % stages], parity(n));  // the first V block has landed
    start_PV<T, d>(O, P, advance(V, n % stages * sizeof shared.V[0]));
    wgmma_wait<0>(O, P);  // it is done
    release(shared.V_empty[n++ % stages]);
  }
  if (!O_over_Q<d>) {
    __syncwarp();  // all lanes have waited for Q; where there are keys, their products have made sure of that
    release(shared.Q_empty[w]);
  }

  //! [store]
  if (threadIdx.x % 128 == 0) tma_wait_read<0>();  // the last O has left shared memory,
  named_barrier_sync(own_rows, 128);               // and the warpgroup knows
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] = quad_sum(l[r]);
    inverse[r] = l[r] == 0 ? 0 : reciprocal(l[r]);
    if (q == 0 && q0 + 8 * r < shape.Nq)
      LSE[int64_t{head} * shape.Nq + q0 + 8 * r] = l[r] == 0 ? -INFINITY : m[r] * shape.magnitude + logf(l[r]);
  }
#pragma unroll
  for (int x = 0; x < d; x += 16) {
    uint32_t halves[4];
#pragma unroll
    for (int y = 0; y < 4; ++y)
      halves[y] = pack<T>(O[x / 2 + 2 * y] * inverse[y % 2], O[x / 2 + 2 * y + 1] * inverse[y % 2]);
    stmatrix_x4(shared.O(w).at(16 * warp + lane % 16, x + lane / 16 * 8), halves);
  }
  fence_proxy_async();                // the copy engine will see this thread's part,
  named_barrier_sync(own_rows, 128);  // and all parts are there
  if (threadIdx.x % 128 == 0) {
    tma_store(O_map, &shared.O(w), 0, first_row, 0, head);
    tma_commit();  // one group
    if (O_over_Q<d>) {
      tma_wait_read<0>();                  // O has left shared memory,
      mbarrier_arrive(shared.Q_empty[w]);  // so the next Q may come
    }
  }
  //! [store]
}

template <typename T, int d>
__global__ void __launch_bounds__(threads<d>, 1)
    attention_kernel(const __grid_constant__ TensorMap Q,  // [heads, Nq, d], in boxes of 64 rows
                     const __grid_constant__ TensorMap K,  // [heads, Nk, d], in boxes of Bc rows
                     const __grid_constant__ TensorMap V,  // [heads, Nk, d], in boxes of Bc rows
                     const __grid_constant__ TensorMap O,  // [heads, Nq, d], in boxes of 64 rows
                     float* LSE,                           // [heads, Nq]
                     unsigned* counter,                    // how often a CTA has asked for another piece of work
                     Shape shape) {
  auto& shared = *dynamic_shared<SharedMemory<d>>();
  if (threadIdx.x == 0) {
    for (int w = 0; w < consumers<d>; ++w) {
      mbarrier_init(shared.Q_full[w], 1);
      mbarrier_init(shared.Q_empty[w], O_over_Q<d> ? 1 : 4);
    }
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(shared.K_full[s], 1), mbarrier_init(shared.K_empty[s], 4 * consumers<d>);
      mbarrier_init(shared.V_full[s], 1), mbarrier_init(shared.V_empty[s], 4 * consumers<d>);
    }
    mbarrier_init(shared.work_full, 1), mbarrier_init(shared.work_empty, 128 * consumers<d>);
    fence_mbarrier_init();  // the copy engine sees them
  }
  __syncthreads();  // and so do all threads
  //! [roles]
  const unsigned all = shape.heads * ((shape.Nq + Br<d> - 1) / Br<d>);  // pieces of work
  unsigned number = blockIdx.x, n = 0;  // of this CTA's piece of work; the blocks of K and V that it has had
  if (threadIdx.x < 128) {
    setmaxnreg_dec<producer_registers<d>>();
    if (threadIdx.x < 32 && elect_one())
      for (int turn = 0; number < all; ++turn) {
        const auto [head, i] = work_number<d>(number, shape);
        produce<d>(shared, Q, K, V, shape, head, i, turn, n);
        //! [take]
        number = gridDim.x + atomicAdd(counter, 1u);     // the first gridDim.x are taken already
        mbarrier_wait(shared.work_empty, turn % 2 ^ 1);  // all consumers have read the last number
        shared.work = number;
        mbarrier_arrive(shared.work_full);  // the number is there
        //! [take]
      }
  } else {
    setmaxnreg_inc<consumer_registers<d>>();
    if (pingpong<d> && threadIdx.x / 128 == consumers<d>) named_barrier_arrive(1, 256);  // the first turn is consumer 0's
    for (int turn = 0; number < all; ++turn) {
      const auto [head, i] = work_number<d>(number, shape);
      consume<T, d>(shared, O, LSE, shape, head, i, turn, n);
      mbarrier_wait(shared.work_full, turn % 2);  // the next number is there
      number = shared.work;
      mbarrier_arrive(shared.work_empty);  // this thread has read it
    }
    if (threadIdx.x % 128 == 0) tma_wait_read<0>();  // O has left shared memory before the CTA gives it back
  }
  //! [roles]
}

__global__ void clear_kernel(unsigned* counter) { *counter = 0; }

// [heads, N, d] as the copy engine sees it: 64 columns, N rows, d / 64 groups of columns, heads.
template <int d>
TensorMap tile_map(const void* tensor, int heads, int N, int box_rows) {
  const uint64_t rows = max(N, 1);  // a tensor map has at least one; if there is none, it is not read
  return tensor_map<4>(tensor, {64, rows, d / 64, static_cast<uint64_t>(heads)}, {d * 2, 128, rows * d * 2},
                       {64, static_cast<uint32_t>(box_rows), d / 64, 1});
}

template <typename T, int d>
void start(const Tensors& t, const Device& device, Shape shape) {
  auto* counter = static_cast<unsigned*>(t.workspace);
  launch("clear_kernel", clear_kernel, 1, 1, 0, device, counter);
  const int all = shape.heads * ((shape.Nq + Br<d> - 1) / Br<d>);
  launch("attention_kernel", attention_kernel<T, d>, min(all, device.sm_count), threads<d>, sizeof(SharedMemory<d>),
         device, tile_map<d>(t.Q, shape.heads, shape.Nq, 64), tile_map<d>(t.K, shape.heads, shape.Nk, Bc<d>),
         tile_map<d>(t.V, shape.heads, shape.Nk, Bc<d>), tile_map<d>(t.O, shape.heads, shape.Nq, 64), t.LSE, counter, shape);
}

}  // namespace

size_t workspace_bytes(const Problem&, const Device&) { return sizeof(unsigned); }

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, workspace_bytes(p, device), 256, {.bf16 = true});
  if (p.query_rows() == 0) return;
  const int64_t heads = p.batch * p.heads;
  const int64_t fit = (32 << 20) / (4 * p.dim * max(p.seq_k, int64_t{1}));  // heads whose K and V fit 32 MB of L2
  const Shape shape{static_cast<int>(p.seq_q),
                    static_cast<int>(p.seq_k),
                    p.causal,
                    p.scale < 0 ? -1.0f : p.scale > 0 ? 1.0f : 0.0f,
                    p.scale == 0 ? 1.0f : fabsf(p.scale),
                    static_cast<int>(heads),
                    p.causal ? static_cast<int>(min(max(fit, int64_t{1}), heads)) : 1};
  const bool bf16 = p.dtype == Dtype::bf16;
  if (p.dim == 64) bf16 ? start<bfloat16, 64>(t, device, shape) : start<half, 64>(t, device, shape);
  if (p.dim == 128) bf16 ? start<bfloat16, 128>(t, device, shape) : start<half, 128>(t, device, shape);
  if (p.dim == 256) bf16 ? start<bfloat16, 256>(t, device, shape) : start<half, 256>(t, device, shape);
}

}  // namespace step_40
