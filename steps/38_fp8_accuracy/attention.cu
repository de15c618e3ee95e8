// The kernel of 37_fp8, as accurate as e4m3 allows.
//
// What 37 left: a large number in a head makes all others of that head coarse; and where V has a mean, O is too small, by
// 10 % at 8192 keys, because the tensor core cuts each product some 13 bits behind the leading bit of the sum. Three
// measures, each of which can be left out (FLASH_MEASURES):
//   1  block scales: 128 rows of Q, K or V have a scale of their own. K's goes into the softmax's factor, V's into the sum.
//   2  rotation: Q and K are multiplied by a random-sign Hadamard matrix, which leaves Q K^T as it is and spreads a large
//      number over its row.
//   4  two levels: P V of each key block has a fresh accumulator, and is added to O in float, where V's scale costs nothing.
// Beside V stand eight rows of ones. So the tensor core sums P as well, as it was rounded: l costs no additions, and what
// rounding did to a weight stands above and below the division. This bears a stale maximum too (22_conditional_rescale,
// 40_late_rescale): m stays until it would rise by 4 in log2 units, and P is 2^4 times as large, 2^8 at most.
//
// One pass over FP16 numbers is enough to quantize a block: it is read, rotated, measured and rounded in registers. V is
// transposed on the way, block by block, so the producer is one thread again. The consumers take turns with Q K^T, as in 37.
//
// Registers: producer 32 a thread (d = 256: 24), consumers 160 (240). Shared memory: K and V twice 8 / 16 / 32 KB each
// (d = 64 / 128 / 256), the ones twice 1 KB, Q 12 / 24 / 32 KB, O 24 / 48 / 64 KB: 70 / 138 / 226 KB.
// Workspace: Q, K and V^T in FP8, what they are to be multiplied by, the counter.

#include <hardware/fp8.h>
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

#ifndef FLASH_MEASURES
#define FLASH_MEASURES 7  // all three
#endif

// The answer is that of tensors that are quantized in this way, and weighed so.
#define FLASH_PRECISION step_38::precision.c_str()

namespace step_38 {
namespace {

using attention::Problem;
using attention::Tensors;

template <int d>
constexpr int consumers = d == 256 ? 2 : 3;      // consumer warpgroups: each owns 64 rows of the query block
template <int d>
constexpr int Br = 64 * consumers<d>;            // rows of a query block
constexpr int Bc = 128;                          // rows of a key block; rows of Q, K or V that have one scale
constexpr bool block_scales = FLASH_MEASURES & 1, rotation = FLASH_MEASURES & 2, two_level = FLASH_MEASURES & 4;
template <int d>
constexpr int threads = 128 * (1 + consumers<d>);
constexpr int stages = 2;                        // tiles of K and of V
template <int d>
constexpr int producer_registers = d == 256 ? 24 : 32;
template <int d>
constexpr int consumer_registers = d == 256 ? 240 : 160;
constexpr float e4m3_max = 448;                  // the largest number of e4m3
constexpr float P_log2 = 4;                      // P is 2^4 times as large,
constexpr float slack = 4;                       // and scores may exceed the maximum by 4 in log2 units: P is 256 at most
constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;
constexpr float lowest = -3e38f;                 // the maximum of nothing: below every score, and lowest - lowest is 0
constexpr float smallest = 1.2e-38f;             // of positive numbers
constexpr unsigned ones = 0x38383838;            // four of e4m3
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
    return (visible_keys(min(Nq, (i + 1) * Br<d>) - 1) + Bc - 1) / Bc;
  }
  // Blocks of 128 rows in a head of Q, and of K or V.
  __host__ __device__ int Q_blocks() const { return (Nq + Bc - 1) / Bc; }
  __host__ __device__ int K_blocks() const { return (Nk + Bc - 1) / Bc; }
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

// A tile of O, of `rows` rows and d columns, as [d / 64][rows][64]; the pieces of 8 halves in a row are swizzled.
template <int rows, int d>
struct Tile {
  half data[d / 64][rows][64];

  // Where the piece that begins at (row, column) lies; column is a multiple of 8.
  __device__ half* at(int row, int column) { return &data[column / 64][row][(column % 64 / 8 ^ row % 8) * 8]; }
};

// A tile of FP8, as [columns / span][rows][span]; a span is 128 bytes of a row, or 64 if there are no more, and its pieces
// of 16 bytes are swizzled as the copy engine does it.
template <int rows, int columns>
struct Tile8 {
  static constexpr int span = columns < 128 ? columns : 128;
  static constexpr Swizzle swizzle = span == 128 ? Swizzle::bytes_128 : Swizzle::bytes_64;
  uint8_t data[columns / span][rows][span];

  // Where the piece that begins at (row, column) lies; column is a multiple of 16.
  __device__ uint8_t* at(int row, int column) {
    const int piece = column % span / 16, turned = span == 128 ? piece ^ row % 8 : piece ^ row / 2 % 4;
    return &data[column / span][row][turned * 16];
  }
};

template <int d>
struct SharedMemory {
  Tile8<Bc, d> K[stages];
  Tile8<d + 8, Bc> V[stages];  // V^T, and eight rows of ones
  Tile8<64, d> Q[consumers<d>];
  Tile<64, d> O[consumers<d>];
  Mbarrier Q_full[consumers<d>], Q_empty[consumers<d>];
  Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
  Mbarrier work_full, work_empty;
  unsigned work;
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
template <int d>
__device__ __forceinline__ void start_QK(float (&S)[Bc / 2], Descriptor Q, Descriptor K) {
  constexpr int span = Tile8<Bc, d>::span;
  wgmma_fence(S);  // what softmax read and wrote is done before the tensor core writes
#pragma unroll
  for (int x = 0; x < d; x += 32)
    wgmma_fp8<e4m3>(S, advance(Q, x / span * 64 * span + x % span), advance(K, x / span * Bc * span + x % span), x > 0);
  wgmma_commit();  // one group
}

// Starts O += P V, or O = P V: 64 rows and as many columns as O has, from `column` on.
template <int d, int count>
__device__ __forceinline__ void start_PV(float (&O)[count], uint32_t (&P)[Bc / 32][4], Descriptor V, int column,
                                         bool accumulate) {
#pragma unroll
  for (int key = 0; key < Bc; key += 32)
    wgmma_fp8<e4m3>(O, P[key / 32], advance(V, column * Bc + key), accumulate || key > 0);
  wgmma_commit();  // one group
}

// Turns the scores of a block into weights. c times a score is in log2 units, as m is. Element x of S is in row x / 2 % 2 of
// the lane's two, in column 2q + x / 4 * 8 + x % 2. If a row's maximum is replaced, in any row of the warp, the result is
// true, and `keep` is what O is to be multiplied by.
//! [softmax]
template <int count>
__device__ __forceinline__ bool softmax(float (&S)[count], float (&m)[2], float (&l)[2], float (&keep)[2], bool& small,
                                        float c) {
  float m_new[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int x = 0; x < count; ++x) m_new[x / 2 % 2] = fmaxf(m_new[x / 2 % 2], S[x]);
  bool raised = false;  // does the maximum of any of the warp's rows rise by more than the slack?
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m_new[r] = quad_max(m_new[r]) * c;
    raised = raised || m_new[r] - m[r] > slack;
  }
  raised = __any_sync(all_lanes, raised);
  if (raised) {
    small = true;  // is m small in all of the warp's rows?
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m_new[r] = fmaxf(m[r], m_new[r]);
      keep[r] = exp2_approx(m[r] - m_new[r]);
      m[r] = m_new[r];
      l[r] *= keep[r];
      small = small && fabsf(m[r]) < 32768;
    }
    small = __all_sync(all_lanes, small);
  }
  // The exponent, S * c - m, takes one FFMA. The product is not rounded then, as m was, so that is only right while m is
  // small; where it is not, multiply first.
  const float offset[2] = {P_log2 - m[0], P_log2 - m[1]};
  if (!small) {
#pragma unroll
    for (int x = 0; x < count; ++x) S[x] *= c;
    c = 1;
  }
#pragma unroll
  for (int x = 0; x < count; ++x) {
    S[x] = exp2_approx(multiply_add(S[x], c, offset[x / 2 % 2]));
    if (!two_level) l[x / 2 % 2] += S[x];
  }
  return raised;
}
//! [softmax]

//! [producer]
// One thread loads all that the consumers need for a query block, as soon as there is room.
template <int d>
__device__ __forceinline__ void produce(SharedMemory<d>& shared, const TensorMap& Q, const TensorMap& K,
                                        const TensorMap& V, Shape shape, int head, int i, int turn, unsigned& n) {
  auto load_Q = [&] {
    for (int w = 0; w < consumers<d>; ++w) {
      mbarrier_wait(shared.Q_empty[w], turn % 2 ^ 1);  // the consumer no longer needs the last Q
      mbarrier_expect(shared.Q_full[w], sizeof shared.Q[w]);
      tma_load(&shared.Q[w], Q, shared.Q_full[w], 0, i * Br<d> + 64 * w, 0, head);
    }
  };
  const int Tc = shape.key_blocks<d>(i);
  for (int j = Tc - 1; j >= 0; --j, ++n) {
    const unsigned stage = n % stages;
    mbarrier_wait(shared.K_empty[stage], parity(n) ^ 1);  // all consumers have multiplied by what lay there
    mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);
    tma_load(&shared.K[stage], K, shared.K_full[stage], 0, j * Bc, 0, head);
    if (j == Tc - 1) load_Q();                            // behind K, for whose tile there is room earlier
    mbarrier_wait(shared.V_empty[stage], parity(n) ^ 1);  // the same of V
    mbarrier_expect(shared.V_full[stage], d * Bc);        // without the ones, which stay
    tma_load(&shared.V[stage], V, shared.V_full[stage], 0, 0, j, head);
  }
  if (Tc == 0) load_Q();
}
//! [producer]

// A warpgroup computes 64 rows of a query block, from its last key block to its first.
template <int d>
__device__ __forceinline__ void consume(SharedMemory<d>& shared, const TensorMap& O_map, const float* descales,
                                        float* LSE, Shape shape, int head, int i, int turn, unsigned& n) {
  const int w = __shfl_sync(all_lanes, threadIdx.x / 128, 0) - 1;  // the shuffle tells the compiler: the same in all lanes
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an 8 x 8 part of the accumulators
  constexpr Swizzle swizzle = Tile8<Bc, d>::swizzle;
  constexpr int eight_rows = 8 * Tile8<Bc, d>::span;
  const Descriptor Q = descriptor(&shared.Q[w], 0, eight_rows, swizzle), K = descriptor(&shared.K, 0, eight_rows, swizzle),
                   V = descriptor(&shared.V, 0, 1024);
  const int own_turn = 1 + w, next_turn = 1 + (w + 1) % consumers<d>, own_rows = 1 + consumers<d> + w;  // named barriers
  const int first_row = i * Br<d> + 64 * w, q0 = first_row + 16 * warp + g;  // the lane's rows are queries q0 and q0 + 8
  const int Tc = shape.key_blocks<d>(i);
  // Scores are products of FP8 numbers; the descales of Q's and K's blocks take them back. exp(scale * s) = 2^(c * s), and
  // c is positive.
  const float* K_descales = descales + shape.heads * shape.Q_blocks() + head * shape.K_blocks();
  const float* V_descales = K_descales + shape.heads * shape.K_blocks();
  const float Q_descale = first_row < shape.Nq ? descales[head * shape.Q_blocks() + first_row / Bc] : 1;
  const float factor = shape.magnitude * log2_e * Q_descale;
  float m[2] = {lowest, lowest}, l[2] = {}, keep[2];  // of the two rows; l of one level is the lane's part: its own columns
  float S[Bc / 2], O[d / 2] = {}, V_descale = 1;      // O of one level is in units of the last V block's descale
  bool small = false;                                 // m is small in all of the warp's rows
  uint32_t P[Bc / 32][4];                             // the weights, packed as the left factor of PV

  // Hides what a row does not see, and gives the scores the scale's sign.
  auto hide = [&](int j) {
#pragma unroll
    for (int x = 0; x < Bc / 2; ++x) {
      const int visible = shape.visible_keys(q0 + x / 2 % 2 * 8) - j * Bc - 2 * q;
      S[x] = x / 4 * 8 + x % 2 < visible ? S[x] * shape.sign : -INFINITY;
    }
  };
  auto pack_P = [&] {
#pragma unroll
    for (int x = 0; x < Bc / 2; x += 8) {  // two 8-key parts of the accumulators
      P[x / 16][x / 8 % 2 * 2] = pack_e4m3(S[x], S[x + 1], S[x + 4], S[x + 5]);
      P[x / 16][x / 8 % 2 * 2 + 1] = pack_e4m3(S[x + 2], S[x + 3], S[x + 6], S[x + 7]);
    }
  };
  auto rescale_O = [&](float by) {
#pragma unroll
    for (int x = 0; x < d / 2; ++x) O[x] = rescale(O[x], keep[x / 2 % 2] * by);
  };
  auto release = [&](Mbarrier& empty) {
    if (lane == 0) mbarrier_arrive(empty);  // this warp no longer reads the tile
  };
  //! [two_level]
  // O += F * descale in columns x * 2 and on, of which F has some.
  auto add = [&](int x, const float* F, int count, float descale) {
#pragma unroll
    for (int y = 0; y < count; ++y) O[x + y] = multiply_add(F[y], descale, O[x + y]);
  };
  auto PV = [&](Descriptor V, Mbarrier& empty, float descale) {
    if constexpr (!two_level) {
      wgmma_fence(O, P);  // O is rescaled and P packed before the tensor core reads them
      start_PV<d>(O, P, V, 0, true);
      wgmma_wait<0>(O, P);  // it is done
      release(empty);
    } else if constexpr (d < 256) {
      float F[d / 2 + 4];  // the last four are the weights' sums, in all columns alike
      wgmma_fence(F, P);   // P is packed before the tensor core reads it
      start_PV<d>(F, P, V, 0, false);
      wgmma_wait<0>(F, P);  // it is done
      release(empty);
      add(0, F, d / 2, descale);
      l[0] += F[d / 2], l[1] += F[d / 2 + 2];
    } else {  // there are registers for two times 64 columns: one is added while the tensor core fills the other
      float F[32], G[32], H[36];
      wgmma_fence(F, G, P);  // P is packed before the tensor core reads it
      start_PV<d>(F, P, V, 0, false);
      start_PV<d>(G, P, V, 64, false);
      wgmma_wait<1>(F);  // the first 64 columns are done
      add(0, F, 32, descale);
      wgmma_fence(F);  // they are added before the tensor core writes there again
      start_PV<d>(F, P, V, 128, false);
      wgmma_wait<1>(G);  // the second
      add(32, G, 32, descale);
      wgmma_fence(H);  // the same of those
      start_PV<d>(H, P, V, 192, false);
      wgmma_wait<1>(F);  // the third
      add(64, F, 32, descale);
      wgmma_wait<0>(H, P);  // and the fourth
      release(empty);
      add(96, H, 32, descale);
      l[0] += H[32], l[1] += H[34];
    }
  };
  //! [two_level]
  //! [block]
  auto block = [&](int j, bool hides) {
    const unsigned stage = n % stages;
    mbarrier_wait(shared.K_full[stage], parity(n));  // K_j has landed
    named_barrier_sync(own_turn, 256);               // the consumer before has its scores
    start_QK<d>(S, Q, advance(K, stage * sizeof shared.K[0]));
    const float c = fmaxf(factor * K_descales[j], smallest), last = V_descale;
    V_descale = V_descales[j];
    wgmma_wait<0>(S);                         // it is done
    named_barrier_arrive(next_turn, 256);     // the next consumer's turn
    release(shared.K_empty[stage]);
    if (j == 0) release(shared.Q_empty[w]);  // the last Q K^T is done
    if (hides) hide(j);
    const bool raised = softmax(S, m, l, keep, small, c);
    pack_P();
    if (!two_level && (raised || last != V_descale)) {
      if (!raised) keep[0] = keep[1] = 1;
      rescale_O(last / V_descale);
    } else if (raised) {
      rescale_O(1);
    }
    mbarrier_wait(shared.V_full[stage], parity(n++));  // V_j has landed
    PV(advance(V, stage * sizeof shared.V[0]), shared.V_empty[stage], V_descale);
  };
  //! [block]

  mbarrier_wait(shared.Q_full[w], turn % 2);  // this warpgroup's rows of Q have landed
  int j = Tc - 1;
  const int plain = shape.sign == 1 ? shape.visible_keys(first_row) / Bc : 0;  // blocks that all rows see
  for (; j >= plain; --j) block(j, true);
  for (; j >= 0; --j) block(j, false);
  if (Tc == 0) {
    __syncwarp();  // all lanes have waited for Q; where there are keys, their products have made sure of that
    release(shared.Q_empty[w]);
  }

  //! [store]
  if (threadIdx.x % 128 == 0) tma_wait_read<0>();  // the last O has left shared memory,
  named_barrier_sync(own_rows, 128);               // and the warpgroup knows
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!two_level) l[r] = quad_sum(l[r]);
    inverse[r] = l[r] == 0 ? 0 : (two_level ? 1 : V_descale) * reciprocal(l[r]);
    if (q == 0 && q0 + 8 * r < shape.Nq)
      LSE[int64_t{head} * shape.Nq + q0 + 8 * r] = l[r] == 0 ? -INFINITY : (m[r] - P_log2) * ln_2 + logf(l[r]);
  }
#pragma unroll
  for (int x = 0; x < d; x += 16) {
    uint32_t halves[4];
#pragma unroll
    for (int y = 0; y < 4; ++y)
      halves[y] = pack_halves(O[x / 2 + 2 * y] * inverse[y % 2], O[x / 2 + 2 * y + 1] * inverse[y % 2]);
    stmatrix_x4(shared.O[w].at(16 * warp + lane % 16, x + lane / 16 * 8), halves);
  }
  fence_proxy_async();                // the copy engine will see this thread's part,
  named_barrier_sync(own_rows, 128);  // and all parts are there
  if (threadIdx.x % 128 == 0) {
    tma_store(O_map, &shared.O[w], 0, first_row, 0, head);
    tma_commit();  // one group
  }
  //! [store]
}

template <int d>
__global__ void __launch_bounds__(threads<d>, 1)
    attention_kernel(const __grid_constant__ TensorMap Q,  // [heads, Nq, d] e4m3, in boxes of 64 rows
                     const __grid_constant__ TensorMap K,  // [heads, Nk, d] e4m3, in boxes of Bc rows
                     const __grid_constant__ TensorMap V,  // [heads, Tc, d, Bc] e4m3: V^T of each key block
                     const __grid_constant__ TensorMap O,  // [heads, Nq, d], in boxes of 64 rows
                     const float* descales,  // of blocks of 128 rows: Q's [heads, ceil(Nq / 128)], K's, V's [heads, Tc]
                     float* LSE,                           // [heads, Nq]
                     unsigned* counter,                    // how many pieces of work have been asked for
                     Shape shape) {
  auto& shared = *dynamic_shared<SharedMemory<d>>();
  if (threadIdx.x == 0) {
    for (int w = 0; w < consumers<d>; ++w) {
      mbarrier_init(shared.Q_full[w], 1);
      mbarrier_init(shared.Q_empty[w], 4);
    }
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(shared.K_full[s], 1), mbarrier_init(shared.K_empty[s], 4 * consumers<d>);
      mbarrier_init(shared.V_full[s], 1), mbarrier_init(shared.V_empty[s], 4 * consumers<d>);
    }
    mbarrier_init(shared.work_full, 1), mbarrier_init(shared.work_empty, 128 * consumers<d>);
  }
  //! [ones]
  for (int x = threadIdx.x; x < stages * 64; x += threads<d>)  // 16 ones each; swizzled or not, they lie alike
    *reinterpret_cast<uint4*>(&shared.V[x / 64].data[0][d + x % 64 / 8][x % 8 * 16]) = {ones, ones, ones, ones};
  fence_proxy_async();  // the tensor core will see the ones, the copy engine the mbarriers
  __syncthreads();      // all threads see the mbarriers, and the ones are there
  //! [ones]
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
    if (threadIdx.x / 128 == consumers<d>) named_barrier_arrive(1, 256);  // the first turn is consumer 0's
    for (int turn = 0; number < all; ++turn) {
      const auto [head, i] = work_number<d>(number, shape);
      consume<d>(shared, O, descales, LSE, shape, head, i, turn, n);
      mbarrier_wait(shared.work_full, turn % 2);  // the next number is there
      number = shared.work;
      mbarrier_arrive(shared.work_empty);  // this thread has read it
    }
    if (threadIdx.x % 128 == 0) tma_wait_read<0>();  // O has left shared memory before the CTA gives it back
  }
  //! [roles]
}

// --- to FP8 ----------------------------------------------------------------------------------------------------------

// Eight columns of eight rows in each thread of a CTA make a block of 128 rows.
template <int d>
constexpr int quantizer_threads = 2 * d;

// The row of the block that a thread's e-th row is. Four at a time are those whose weights a lane holds: 2q, 2q + 1, 2q + 8,
// 2q + 9 of 16.
template <int d>
__device__ __forceinline__ int row_of(int e) {
  const int slot = threadIdx.x / (d / 8);  // 16 slots
  return (slot / 4 + e / 4 * 4) * 16 + slot % 4 * 2 + e % 2 + e % 4 / 2 * 8;
}

//! [rotate]
// Column c's sign: a bit of pi.
__device__ constexpr uint32_t signs[8] = {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344,
                                          0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89};

// Multiplies a row by the signs, and then by the Hadamard matrix, whose element (i, j) is -1 to the number of ones in the
// binary i & j: for each bit of the column's number, a sum and a difference. d / 8 neighbouring lanes hold 8 columns each.
template <int d>
__device__ __forceinline__ void rotate(float (&y)[8]) {
  const int part = threadIdx.x % (d / 8);
#pragma unroll
  for (int c = 0; c < 8; ++c)
    if (signs[part / 4] >> (part % 4 * 8 + c) & 1) y[c] = -y[c];
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
    for (int c = 0; c < 8; ++c)
      if (!(c & bit)) {
        const float a = y[c], b = y[c + bit];
        y[c] = a + b, y[c + bit] = a - b;
      }
#pragma unroll
  for (int bit = 1; bit < d / 8; bit *= 2)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float other = __shfl_xor_sync(all_lanes, y[c], bit);
      y[c] = part & bit ? other - y[c] : y[c] + other;
    }
}
//! [rotate]

// The largest magnitude that all threads of the CTA bring.
template <int threads>
__device__ __forceinline__ float cta_max(float x) {
  __shared__ float of_warp[threads / 32];
  for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();  // the maxima of all warps are there
  for (int w = 0; w < threads / 32; ++w) x = fmaxf(x, of_warp[w]);
  return x;
}

//! [quantize]
enum class Kind { Q_or_K, V };

// Rounds a block of 128 rows of a tensor [heads, N, d] to e4m3, so that its largest magnitude becomes 448. What is not
// finite becomes NaN. Q and K are rotated before, [heads, N, d] again; V becomes V^T, [heads, blocks, d, 128], with keys in
// the order of P, and 0 behind the last. If a head has one scale, there are two passes: the first, without `to`, writes each
// block's largest magnitude to `amax`, and the second takes the largest of those.
template <int d, Kind kind>
__global__ void __launch_bounds__(quantizer_threads<d>)
    quantize_kernel(const half* x, float* amax,  // [heads, blocks]
                    uint8_t* to, float* descales,  // [heads, blocks]
                    int N, int blocks) {
  const int head = blockIdx.x / blocks, first = blockIdx.x % blocks * Bc, column = threadIdx.x % (d / 8) * 8;
  float y[8][8], largest = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int row = first + row_of<d>(e);
    uint4 eight = {};
    if (row < N) eight = *reinterpret_cast<const uint4*>(x + (int64_t{head} * N + row) * d + column);
    const uint32_t twos[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 both = unpack_halves(twos[c / 2]);
      y[e][c] = c % 2 ? both.y : both.x;
    }
    if (kind == Kind::Q_or_K && rotation) rotate<d>(y[e]);
#pragma unroll
    for (int c = 0; c < 8; ++c)
      if (fabsf(y[e][c]) < INFINITY) largest = fmaxf(largest, fabsf(y[e][c]));
  }
  largest = cta_max<quantizer_threads<d>>(largest);
  if (!to) {
    if (threadIdx.x == 0) amax[blockIdx.x] = largest;
    return;
  }
  if (!block_scales)
    for (int block = 0; block < blocks; ++block) largest = fmaxf(largest, amax[head * blocks + block]);
  const float factor = largest > 0 ? e4m3_max / largest : 1;
  const float unrotate = kind == Kind::Q_or_K && rotation ? d == 64 ? 0.125f : d == 128 ? 0.0883883476f : 0.0625f : 1;
  if (threadIdx.x == 0) descales[blockIdx.x] = unrotate / factor;  // rotating made a row sqrt(d) times as long
#pragma unroll
  for (int e = 0; e < 8; ++e)
#pragma unroll
    for (int c = 0; c < 8; ++c) y[e][c] = fabsf(y[e][c]) < INFINITY ? y[e][c] * factor : NAN;
  if constexpr (kind == Kind::Q_or_K) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = first + row_of<d>(e);
      if (row < N)
        *reinterpret_cast<uint2*>(to + (int64_t{head} * N + row) * d + column) = {
            pack_e4m3(y[e][0], y[e][1], y[e][2], y[e][3]), pack_e4m3(y[e][4], y[e][5], y[e][6], y[e][7])};
    }
  } else {
    __shared__ uint32_t transposed[d][Bc / 4 + 4];  // [columns][keys / 4]
#pragma unroll
    for (int e = 0; e < 8; e += 4)
#pragma unroll
      for (int c = 0; c < 8; ++c)
        transposed[column + c][(threadIdx.x / (d / 8) / 4 + e) * 4 + threadIdx.x / (d / 8) % 4] =
            pack_e4m3(y[e][c], y[e + 1][c], y[e + 2][c], y[e + 3][c]);
    __syncthreads();  // the block is there
    for (int piece = threadIdx.x; piece < d * 8; piece += quantizer_threads<d>)  // 16 bytes
      reinterpret_cast<uint4*>(to)[int64_t{blockIdx.x} * d * 8 + piece] =
          *reinterpret_cast<const uint4*>(&transposed[piece / 8][piece % 8 * 4]);
  }
}
//! [quantize]

// --- launching -------------------------------------------------------------------------------------------------------

// What lies in the workspace; each part begins at a multiple of 128 bytes.
struct Workspace {
  uint8_t *Q, *K, *V;  // e4m3: [heads, Nq, d], [heads, Nk, d], [heads, Tc, d, 128]
  float *Q_descales, *K_descales, *V_descales;  // [heads, blocks], without gaps
  float* amax;                                  // [heads, blocks] of one tensor
  unsigned* counter;
  size_t bytes;

  Workspace(const Problem& p, void* memory) {
    uint8_t* next = static_cast<uint8_t*>(memory);
    auto take = [&](int64_t size) {
      uint8_t* here = next;
      next += (size + 127) / 128 * 128;
      return here;
    };
    const int64_t heads = p.batch * p.heads, Q_blocks = heads * ((p.seq_q + Bc - 1) / Bc);
    const int64_t K_blocks = heads * ((p.seq_k + Bc - 1) / Bc);
    Q = take(p.query_rows() * p.dim), K = take(p.key_rows() * p.dim), V = take(K_blocks * Bc * p.dim);
    Q_descales = reinterpret_cast<float*>(take((Q_blocks + 2 * K_blocks) * 4));
    K_descales = Q_descales + Q_blocks, V_descales = K_descales + K_blocks;
    amax = reinterpret_cast<float*>(take(max(Q_blocks, K_blocks) * 4));
    counter = reinterpret_cast<unsigned*>(take(4));
    bytes = next - static_cast<uint8_t*>(memory);
  }
};

__global__ void clear_kernel(unsigned* counter) { *counter = 0; }

// [heads, N, d] of FP8 as the copy engine sees it: up to 128 columns, N rows, groups of columns, heads.
template <int d>
TensorMap tile_map(const void* tensor, int heads, int N, int box_rows) {
  constexpr uint64_t span = Tile8<Bc, d>::span;
  const uint64_t rows = max(N, 1);  // a tensor map has at least one; if there is none, it is not read
  return tensor_map<4>(tensor, {span, rows, d / span, static_cast<uint64_t>(heads)}, {d, span, rows * d},
                       {span, static_cast<uint32_t>(box_rows), d / span, 1}, Element::byte, Tile8<Bc, d>::swizzle);
}

// V^T, [heads, Tc, d, 128].
template <int d>
TensorMap V_map(const void* tensor, int heads, int blocks) {
  const uint64_t count = max(blocks, 1);  // a tensor map has at least one; if there is none, it is not read
  return tensor_map<4>(tensor, {Bc, d, count, static_cast<uint64_t>(heads)}, {Bc, Bc * d, count * Bc * d}, {Bc, d, 1, 1},
                       Element::byte, Swizzle::bytes_128);
}

// The same of O: 64 columns, N rows, d / 64 groups of columns, heads.
template <int d>
TensorMap O_map(void* O, int heads, int N) {
  const uint64_t rows = N;
  return tensor_map<4>(O, {64, rows, d / 64, static_cast<uint64_t>(heads)}, {d * 2, 128, rows * d * 2}, {64, 64, d / 64, 1});
}

template <int d, Kind kind>
void quantize(const void* x, uint8_t* to, float* descales, float* amax, int heads, int N, const Device& device) {
  if (N == 0) return;
  const int blocks = (N + Bc - 1) / Bc;
  if (!block_scales)
    launch("amax_kernel", quantize_kernel<d, kind>, heads * blocks, quantizer_threads<d>, 0, device,
           static_cast<const half*>(x), amax, nullptr, descales, N, blocks);
  launch("quantize_kernel", quantize_kernel<d, kind>, heads * blocks, quantizer_threads<d>, 0, device,
         static_cast<const half*>(x), amax, to, descales, N, blocks);
}

template <int d>
void start(const Tensors& given, const Tensors& t, const Workspace& w, const Device& device, Shape shape) {
  if (!given.descales) {
    quantize<d, Kind::Q_or_K>(given.Q, w.Q, w.Q_descales, w.amax, shape.heads, shape.Nq, device);
    quantize<d, Kind::Q_or_K>(given.K, w.K, w.K_descales, w.amax, shape.heads, shape.Nk, device);
    quantize<d, Kind::V>(given.V, w.V, w.V_descales, w.amax, shape.heads, shape.Nk, device);
  }
  launch("clear_kernel", clear_kernel, 1, 1, 0, device, w.counter);
  const int all = shape.heads * ((shape.Nq + Br<d> - 1) / Br<d>);
  launch("attention_kernel", attention_kernel<d>, min(all, device.sm_count), threads<d>, sizeof(SharedMemory<d>), device,
         tile_map<d>(t.Q, shape.heads, shape.Nq, 64), tile_map<d>(t.K, shape.heads, shape.Nk, Bc),
         V_map<d>(t.V, shape.heads, shape.K_blocks()), O_map<d>(t.O, shape.heads, shape.Nq), t.descales, t.LSE, w.counter,
         shape);
}

}  // namespace

const std::string precision = std::string("fp8") + (block_scales ? " blocks" : "") + (rotation ? " hadamard" : "") +
                              (two_level ? " two_level rounded_l" : "") + " slack";

size_t workspace_bytes(const Problem& p, const Device&) { return Workspace(p, nullptr).bytes; }

// The tensors with Q, K and V as forward() quantizes them: e4m3, Q and K in the same order, V as [B, H, Tc, d, 128]; and the
// descales of all blocks of 128 rows, Q's [B, H, ceil(Nq / 128)], then K's and V's.
Tensors quantized(const Problem& p, Tensors t) {
  const Workspace w(p, t.workspace);
  t.Q = w.Q, t.K = w.K, t.V = w.V, t.descales = w.Q_descales;
  return t;
}

void forward(const Problem& p, const Tensors& given, const Device& device) {
  attention::check(p, given, workspace_bytes(p, device), 256, {.fp8 = true});
  if (p.query_rows() == 0) return;
  const int64_t heads = p.batch * p.heads;
  const int64_t fit = (32 << 20) / (2 * p.dim * max(p.seq_k, int64_t{1}));  // heads whose K and V fit 32 MB of L2
  const Shape shape{static_cast<int>(p.seq_q),
                    static_cast<int>(p.seq_k),
                    p.causal,
                    p.scale < 0 ? -1.0f : p.scale > 0 ? 1.0f : 0.0f,
                    p.scale == 0 ? 1.0f : fabsf(p.scale),
                    static_cast<int>(heads),
                    p.causal ? static_cast<int>(min(max(fit, int64_t{1}), heads)) : 1};
  const Workspace w(p, given.workspace);
  const Tensors t = given.descales ? given : quantized(p, given);
  if (p.dim == 64) start<64>(given, t, w, device, shape);
  if (p.dim == 128) start<128>(given, t, w, device, shape);
  if (p.dim == 256) start<256>(given, t, w, device, shape);
}

}  // namespace step_38
