// The kernel of 40_late_rescale in two sizes, and a launcher that picks.
//
// What 40 left: at d = 128 the tensor core is busy for 87 % of the cycles. Two consumers cannot always feed it: while one
// waits for its scores, the other is in its softmax. The idea: three consumers, as d = 64 has had since 36. Their registers,
// 160 a thread, hold 80 columns of scores instead of 128. But 192 rows fill the last wave worse. So both sizes are compiled,
// and the launcher picks by d, mask and length.
//
// With more rows in a query block, a causal mask hides more of its last keys from its first rows. So a consumer passes on the
// blocks of which its own rows see nothing. And what made the tensor core wait between two pieces of work is gone: K is
// loaded before Q, Q is given back behind its last product, and at d = 256 O leaves through V's place, not Q's. Where all
// query blocks are equally long, nobody counts: a CTA's next piece of work is gridDim.x further.
//
// Registers: producer 32 a thread with three consumers, 40 with two (d = 256: 24), consumers 160, 232 (240). Shared memory:
// K and V twice 16 / 20 or 32 / 40 KB each (d = 64 / 128 / 256), Q 8 / 16 / 32 KB a consumer, O as much again, but at
// d = 256 in V's place: 112 / 176 or 192 / 224 KB. Workspace: 4 bytes, the counter. T, half or bfloat16, is as in 40.

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

namespace step_41 {
namespace {

using attention::Dtype;
using attention::Problem;
using attention::Tensors;

template <int consumers>                         // consumer warpgroups: each owns 64 rows of the query block
constexpr int Br = 64 * consumers;               // rows of a query block
template <int d, int consumers>
constexpr int Bc = d == 64 || (d == 128 && consumers == 2) ? 128 : 80;  // rows of a key block
template <int consumers>
constexpr int threads = 128 * (1 + consumers);
constexpr int stages = 2;                        // tiles of K and of V
//! [registers]
template <int d, int consumers>
constexpr int producer_registers = consumers == 3 ? 32 : d == 256 ? 24 : 40;
template <int d, int consumers>
constexpr int consumer_registers = consumers == 3 ? 160 : d == 256 ? 240 : 232;
//! [registers]
template <int d>
constexpr bool pingpong = d == 64;               // above 64 the softmax is short beside the products
template <int d>
constexpr bool O_over_V = d == 256;              // there is no room for O beside Q, K and V
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
  // `rows` queries from `first` on need key blocks 0 .. key_blocks(first, rows) - 1: those that the last of them sees.
  template <int d, int consumers>
  __device__ int key_blocks(int first, int rows) const {
    return first < Nq ? (visible_keys(min(Nq, first + rows) - 1) + Bc<d, consumers> - 1) / Bc<d, consumers> : 0;
  }
};

//! [work]
// A piece of work: query block i of a head. Within a section of heads the last query blocks, which see the most keys, come
// first.
struct Work {
  int head, i;
};
template <int consumers>
__device__ Work work_number(unsigned number, Shape shape) {
  const unsigned Tr = (shape.Nq + Br<consumers> - 1) / Br<consumers>;
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

template <int d, int consumers>
struct SharedMemory {
  Tile<Bc<d, consumers>, d> K[stages], V[stages];
  Tile<64, d> Q[consumers * (O_over_V<d> ? 1 : 2)];  // and behind them O
  Mbarrier Q_full[consumers], Q_empty[consumers];
  Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
  Mbarrier O_stored;  // for V: O has left its place
  Mbarrier work_full, work_empty;
  unsigned work;

  __device__ Tile<64, d>& O(int w) { return O_over_V<d> ? reinterpret_cast<Tile<64, d>*>(V)[w] : Q[consumers + w]; }
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
template <typename T, int d, int consumers>
__device__ __forceinline__ void start_QK(float (&S)[Bc<d, consumers> / 2], Descriptor Q, Descriptor K) {
  wgmma_fence(S);  // what softmax read and wrote is done before the tensor core writes
#pragma unroll
  for (int x = 0; x < d; x += 16)
    wgmma<Major::k, T>(S, advance(Q, x / 64 * 64 * 128 + x % 64 * 2),
                       advance(K, x / 64 * Bc<d, consumers> * 128 + x % 64 * 2), x > 0);
  wgmma_commit();  // one group: it can be waited for apart from PV's
}

// Starts O += P V: 64 rows x d columns.
template <typename T, int d, int consumers>
__device__ __forceinline__ void start_PV(float (&O)[d / 2], uint32_t (&P)[Bc<d, consumers> / 16][4], Descriptor V) {
  wgmma_fence(O, P);  // O is rescaled and P packed before the tensor core reads them
#pragma unroll
  for (int key = 0; key < Bc<d, consumers>; key += 16) wgmma<Major::mn, T>(O, P[key / 16], advance(V, key * 128), true);
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
template <int d, int consumers>
__device__ __forceinline__ void produce(SharedMemory<d, consumers>& shared, const TensorMap& Q, const TensorMap& K,
                                        const TensorMap& V, Shape shape, int head, int i, int turn, unsigned& n) {
  auto load_Q = [&] {
    for (int w = 0; w < consumers; ++w) {
      mbarrier_wait(shared.Q_empty[w], turn % 2 ^ 1);  // the consumer no longer needs the last Q
      mbarrier_expect(shared.Q_full[w], sizeof shared.Q[w]);
      tma_load(&shared.Q[w], Q, shared.Q_full[w], 0, i * Br<consumers> + 64 * w, 0, head);
    }
    if (O_over_V<d>) mbarrier_wait(shared.O_stored, turn % 2 ^ 1);  // the last O has left V's place
  };
  const int Tc = shape.key_blocks<d, consumers>(i * Br<consumers>, Br<consumers>);
  for (int j = Tc - 1; j >= 0; --j, ++n) {
    const unsigned stage = n % stages;
    mbarrier_wait(shared.K_empty[stage], parity(n) ^ 1);  // all consumers have multiplied by what lay there
    mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);
    tma_load(&shared.K[stage], K, shared.K_full[stage], 0, j * Bc<d, consumers>, 0, head);
    if (j == Tc - 1) load_Q();                            // behind K, for whose tile there is room earlier
    mbarrier_wait(shared.V_empty[stage], parity(n) ^ 1);  // the same of V
    mbarrier_expect(shared.V_full[stage], sizeof shared.V[stage]);
    tma_load(&shared.V[stage], V, shared.V_full[stage], 0, j * Bc<d, consumers>, 0, head);
  }
  if (Tc == 0) load_Q();
}
//! [producer]

// A warpgroup computes 64 rows of a query block, from its last key block to its first.
template <typename T, int d, int consumers>
__device__ __forceinline__ void consume(SharedMemory<d, consumers>& shared, const TensorMap& O_map, float* LSE, Shape shape,
                                        int head, int i, int turn, unsigned& n) {
  const int w = __shfl_sync(all_lanes, threadIdx.x / 128, 0) - 1;  // the shuffle tells the compiler: the same in all lanes
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an 8 x 8 part of the accumulators
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)
  const Descriptor Q = descriptor(&shared.Q[w], 0, 1024), K = descriptor(&shared.K, 0, 1024),
                   V = descriptor(&shared.V, Bc<d, consumers> * 128, 1024);
  const int own_turn = 1 + w, next_turn = 1 + (w + 1) % consumers, own_rows = 1 + consumers + w;  // named barriers,
  const int all_rows = 1 + 2 * consumers;                                                        // and that of all consumers
  const int first_row = i * Br<consumers> + 64 * w;
  const int q0 = first_row + 16 * warp + g;  // the lane's rows are queries q0 and q0 + 8
  const int all = shape.key_blocks<d, consumers>(i * Br<consumers>, Br<consumers>);  // key blocks that come,
  const int Tc = shape.key_blocks<d, consumers>(first_row, 64);                      // and that these rows need
  float m[2] = {lowest, lowest}, l[2] = {}, keep[2];  // of the two rows; l is the lane's part: its own columns
  float S[Bc<d, consumers> / 2], O[d / 2] = {};
  bool raised = false, small = false;
  uint32_t P[Bc<d, consumers> / 16][4];  // the weights, packed as the left factor of PV

  // Hides what a row does not see, and gives the scores the scale's sign.
  auto hide = [&](int j) {
#pragma unroll
    for (int x = 0; x < Bc<d, consumers> / 2; ++x) {
      const int visible = shape.visible_keys(q0 + x / 2 % 2 * 8) - j * Bc<d, consumers> - 2 * q;
      S[x] = x / 4 * 8 + x % 2 < visible ? S[x] * shape.sign : -INFINITY;
    }
  };
  auto pack_P = [&] {
#pragma unroll
    for (int x = 0; x < Bc<d, consumers> / 4; ++x) P[x / 4][x % 4] = pack<T>(S[2 * x], S[2 * x + 1]);
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
    start_QK<T, d, consumers>(S, Q, advance(K, n % stages * sizeof shared.K[0]));
    if (raised) rescale_O();
    mbarrier_wait(shared.V_full[last % stages], parity(last));  // V of the block before has landed
    start_PV<T, d, consumers>(O, P, advance(V, last % stages * sizeof shared.V[0]));
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

  //! [pass]
  // The last key blocks, if these rows see nothing of them, are passed on; with a turn for each, but for the first block.
  for (int j = all - 1; j >= Tc; --j, ++n) {
    if (pingpong<d> && j > 0) {
      named_barrier_sync(own_turn, 256);     // the consumer before has started its products
      named_barrier_arrive(next_turn, 256);  // the next consumer's turn
    }
    mbarrier_wait(shared.K_full[n % stages], parity(n));  // the phase has begun whose release this is,
    mbarrier_wait(shared.V_full[n % stages], parity(n));  // and V's too,
    __syncwarp();                                         // and all lanes know
    release(shared.K_empty[n % stages]);
    release(shared.V_empty[n % stages]);
  }
  //! [pass]

  mbarrier_wait(shared.Q_full[w], turn % 2);  // this warpgroup's rows of Q have landed
  if (Tc > 0) {
    mbarrier_wait(shared.K_full[n % stages], parity(n));  // the last K block has landed
    start_QK<T, d, consumers>(S, Q, advance(K, n % stages * sizeof shared.K[0]));
    wgmma_wait<0>(S);  // it is done
    release(shared.K_empty[n % stages]);
    const int plain = shape.sign == 1 ? shape.visible_keys(first_row) / Bc<d, consumers> : 0;  // blocks that all rows see
    if (Tc > plain) hide(Tc - 1);
    raised = softmax(S, m, l, keep, small, c);
    pack_P();
    int j = Tc - 2;
    for (; j >= plain; --j) block(j, true);
    for (; j >= 0; --j) block(j, false);
    release(shared.Q_empty[w]);  // the last Q K^T is done
    if (raised) rescale_O();
    mbarrier_wait(shared.V_full[n % stages], parity(n));  // the first V block has landed
    start_PV<T, d, consumers>(O, P, advance(V, n % stages * sizeof shared.V[0]));
    wgmma_wait<0>(O, P);  // it is done
    release(shared.V_empty[n++ % stages]);
  }
  if (Tc == 0) {
    __syncwarp();  // all lanes have waited for Q; where there are keys, their products have made sure of that
    release(shared.Q_empty[w]);
  }

  //! [store]
  if (O_over_V<d>) {
    named_barrier_sync(all_rows, 128 * consumers);  // no consumer reads V any more
  } else {
    if (threadIdx.x % 128 == 0) tma_wait_read<0>();  // the last O has left shared memory,
    named_barrier_sync(own_rows, 128);               // and the warpgroup knows
  }
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
    if (O_over_V<d>) {
      tma_wait_read<0>();                // O has left shared memory,
      mbarrier_arrive(shared.O_stored);  // so the next V may come
    }
  }
  //! [store]
}

template <typename T, int d, int consumers>
__global__ void __launch_bounds__(threads<consumers>, 1)
    attention_kernel(const __grid_constant__ TensorMap Q,  // [heads, Nq, d], in boxes of 64 rows
                     const __grid_constant__ TensorMap K,  // [heads, Nk, d], in boxes of Bc rows
                     const __grid_constant__ TensorMap V,  // [heads, Nk, d], in boxes of Bc rows
                     const __grid_constant__ TensorMap O,  // [heads, Nq, d], in boxes of 64 rows
                     float* LSE,                           // [heads, Nq]
                     unsigned* counter,                    // how often a CTA has asked for another piece of work
                     Shape shape) {
  auto& shared = *dynamic_shared<SharedMemory<d, consumers>>();
  //! [barriers]
  if (threadIdx.x == 0) {
    for (int w = 0; w < consumers; ++w) {
      mbarrier_init(shared.Q_full[w], 1);
      mbarrier_init(shared.Q_empty[w], 4);
    }
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(shared.K_full[s], 1), mbarrier_init(shared.K_empty[s], 4 * consumers);
      mbarrier_init(shared.V_full[s], 1), mbarrier_init(shared.V_empty[s], 4 * consumers);
    }
    mbarrier_init(shared.O_stored, consumers);
    mbarrier_init(shared.work_full, 1), mbarrier_init(shared.work_empty, 128 * consumers);
    fence_mbarrier_init();  // the copy engine sees them
  }
  //! [barriers]
  __syncthreads();  // and so do all threads
  //! [roles]
  const unsigned all = shape.heads * ((shape.Nq + Br<consumers> - 1) / Br<consumers>);  // pieces of work
  unsigned number = blockIdx.x, n = 0;  // of this CTA's piece of work; the blocks of K and V that it has had
  if (threadIdx.x < 128) {
    setmaxnreg_dec<producer_registers<d, consumers>>();
    if (threadIdx.x < 32 && elect_one())
      for (int turn = 0; number < all; ++turn) {
        const auto [head, i] = work_number<consumers>(number, shape);
        produce<d, consumers>(shared, Q, K, V, shape, head, i, turn, n);
        //! [take]
        // Causal pieces differ: the next is whichever nobody has asked for. The first gridDim.x are taken already.
        number = shape.causal ? gridDim.x + atomicAdd(counter, 1u) : number + gridDim.x;
        mbarrier_wait(shared.work_empty, turn % 2 ^ 1);  // all consumers have read the last number
        shared.work = number;
        mbarrier_arrive(shared.work_full);  // the number is there
        //! [take]
      }
  } else {
    setmaxnreg_inc<consumer_registers<d, consumers>>();
    if (pingpong<d> && threadIdx.x / 128 == consumers) named_barrier_arrive(1, 256);  // the first turn is consumer 0's
    for (int turn = 0; number < all; ++turn) {
      const auto [head, i] = work_number<consumers>(number, shape);
      consume<T, d, consumers>(shared, O, LSE, shape, head, i, turn, n);
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

template <typename T, int d, int consumers>
void start(const Tensors& t, const Device& device, Shape shape) {
  auto* counter = static_cast<unsigned*>(t.workspace);
  if (shape.causal) launch("clear_kernel", clear_kernel, 1, 1, 0, device, counter);
  const int all = shape.heads * ((shape.Nq + Br<consumers> - 1) / Br<consumers>);
  launch("attention_kernel", attention_kernel<T, d, consumers>, min(all, device.sm_count), threads<consumers>,
         sizeof(SharedMemory<d, consumers>), device, tile_map<d>(t.Q, shape.heads, shape.Nq, 64),
         tile_map<d>(t.K, shape.heads, shape.Nk, Bc<d, consumers>),
         tile_map<d>(t.V, shape.heads, shape.Nk, Bc<d, consumers>), tile_map<d>(t.O, shape.heads, shape.Nq, 64), t.LSE,
         counter, shape);
}

//! [pick]
template <typename T>
void pick(const Problem& p, const Tensors& t, const Device& device, Shape shape) {
  const bool three = p.causal && p.seq_q >= 2048;
  if (p.dim == 64) start<T, 64, 3>(t, device, shape);
  if (p.dim == 128) three ? start<T, 128, 3>(t, device, shape) : start<T, 128, 2>(t, device, shape);
  if (p.dim == 256) start<T, 256, 2>(t, device, shape);
}
//! [pick]

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
  p.dtype == Dtype::bf16 ? pick<bfloat16>(p, t, device, shape) : pick<half>(p, t, device, shape);
}

}  // namespace step_41
