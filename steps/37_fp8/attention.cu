// The kernel of 36_persistent in FP8: products twice as fast, from numbers of 8 bits.
//
// What 36 left: the tensor core is busy most of the time, and FP16 products do not get faster. The idea: e4m3, a format of 8
// bits, 4 of them exponent and 3 mantissa, of which the tensor core multiplies twice as many a cycle. It needs four things.
// Q, K and V of each head are brought to the range of e4m3, up to 448, and rounded, by kernels of their own; what undoes it
// goes into the scale and into 1 / l. P is made 2^8 as large, or its small weights would round to 0. wgmma wants FP8
// factors to lie along the sum, so V must be transposed: the producer warpgroup does it, in the tile where V landed. And P
// must become a left factor without moving between lanes: packed as the accumulators lie, the keys of each 16 stand in the
// order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, and so they do in the transposed V.
//
// The products are so short now that three warpgroups may keep the tensor core busy without any overlap inside one: the
// loop is that of 32_warp_specialization, with turns for Q K^T. And as a tile must land, be transposed and be used, there
// are four of them, and two are loaded ahead.
//
// Registers: producer 32 a thread (d = 256: 40), of which it spills some, consumers 160 (232). Shared memory: K and V four
// times 8 / 16 KB each, twice 32 KB (d = 64 / 128 / 256), Q 12 / 24 / 32 KB, O 24 / 48 / 64 KB: 100 / 200 / 224 KB.
// Workspace: Q, K and V in FP8, what they are to be multiplied by, the largest magnitudes, the counter.

#include <hardware/fp8.h>
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mbarrier.h>
#include <hardware/simt.h>
#include <hardware/stmatrix.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>
#include <hardware/wgmma.h>

#include "reference_cpu/attention.h"

// The answer is that of the quantized tensors.
#define FLASH_PRECISION "fp8"

namespace step_37 {
namespace {

using attention::Problem;
using attention::Tensors;

template <int d>
constexpr int consumers = d == 256 ? 2 : 3;      // consumer warpgroups: each owns 64 rows of the query block
template <int d>
constexpr int Br = 64 * consumers<d>;            // rows of a query block
constexpr int Bc = 128;                          // rows of a key block
template <int d>
constexpr int threads = 128 * (1 + consumers<d>);
template <int d>
constexpr int stages = d == 256 ? 2 : 4;         // tiles of K and of V
template <int d>
constexpr int producer_registers = d == 256 ? 40 : 32;
template <int d>
constexpr int consumer_registers = d == 256 ? 232 : 160;
constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;
constexpr float lowest = -3e38f;                 // the maximum of nothing: below every score, and lowest - lowest is 0
constexpr float smallest = 1.2e-38f;             // of positive numbers
constexpr unsigned all_lanes = 0xFFFFFFFF;

//! [format]
// The format of Q, K, V and P; the header has e5m2, too.
using Number = e4m3;
constexpr float number_max = 448;  // its largest
constexpr float P_log2 = 8;        // P is 2^8 times as large, 256 at most
__device__ __forceinline__ uint32_t pack(float a, float b, float c, float d) { return pack_e4m3(a, b, c, d); }
//! [format]

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
  __device__ __forceinline__ uint8_t* at(unsigned row, unsigned column) {
    const unsigned piece = column % span / 16, turned = span == 128 ? piece ^ row % 8 : piece ^ row / 2 % 4;
    return &data[column / span][row][turned * 16];
  }
};

template <int d>
struct SharedMemory {
  Tile8<Bc, d> K[stages<d>], V[stages<d>];  // V is transposed in its place
  Tile8<64, d> Q[consumers<d>];
  Tile<64, d> O[consumers<d>];
  Mbarrier Q_full[consumers<d>], Q_empty[consumers<d>];
  Mbarrier K_full[stages<d>], K_empty[stages<d>];
  Mbarrier V_landed[stages<d>], V_full[stages<d>], V_empty[stages<d>];  // full: transposed
  Mbarrier work_full, work_empty;
  unsigned work;
};

// The n-th block that is loaded lies in stage n % stages, in the phase of this parity.
template <int d>
__device__ __forceinline__ int parity(unsigned n) {
  return n / stages<d> % 2;
}

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
    wgmma_fp8<Number>(S, advance(Q, x / span * 64 * span + x % span), advance(K, x / span * Bc * span + x % span), x > 0);
  wgmma_commit();  // one group
}

// Starts O += P V: 64 rows x d columns.
template <int d>
__device__ __forceinline__ void start_PV(float (&O)[d / 2], uint32_t (&P)[Bc / 32][4], Descriptor V) {
  constexpr int span = Tile8<Bc, d>::span;
  wgmma_fence(O, P);  // O is rescaled and P packed before the tensor core reads them
#pragma unroll
  for (int key = 0; key < Bc; key += 32)
    wgmma_fp8<Number>(O, P[key / 32], advance(V, key / span * d * span + key % span), true);
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
    offset[r] = P_log2 - m[r] * c;
    small = small && fabsf(m[r]) * c < 32768;
  }
  // 2^8 exp(scale * (S - m)) takes one FFMA for its exponent, S * c + (8 - m * c). The two terms are rounded apart, so that
  // is only right while m * c is small; where it is not, subtract first.
  if (!__all_sync(all_lanes, small)) {
#pragma unroll
    for (int x = 0; x < count; ++x) S[x] -= m[x / 2 % 2];
    offset[0] = offset[1] = P_log2;
  }
#pragma unroll
  for (int x = 0; x < count; ++x) {
    S[x] = exp2_approx(multiply_add(S[x], c, offset[x / 2 % 2]));
    l[x / 2 % 2] += S[x];
  }
}
//! [softmax]

//! [transpose]
// A square of FP8 whose rows are one span long. A tile of V is one or two of them, and transposed, it is the same squares.
template <int d>
using Square = Tile8<Tile8<Bc, d>::span, Tile8<Bc, d>::span>;

// Transposes two blocks of 32 x 32 numbers: 0xIJKL are (I, J), which goes to (J, I), and (K, L), which goes to (L, K). One
// warp, which owns all four places: they are (I, J) and (J, I), or two on the diagonal.
//
// Two neighbouring columns of a key are 16 bits, as ldmatrix takes them; transposed by it, a register holds columns 2g and
// 2g + 1 of keys 2q and 2q + 1. byte_permute parts the columns and joins keys 2q, 2q + 1, 2q + 8, 2q + 9: the order in which
// packed accumulators bring them. Of 16 columns, the even ones become rows 0 .. 7, the odd ones rows 8 .. 15, because
// stmatrix stores them so; the columns of O stand in the same order.
template <int d>
__device__ __forceinline__ void exchange(Square<d>& square, unsigned blocks) {
  const unsigned lane = threadIdx.x % 32;
  uint32_t r[4][4];
#pragma unroll
  for (unsigned x = 0; x < 4; ++x) {  // 32 keys x 16 columns each
    const unsigned block = x < 2 ? blocks >> 8 : blocks;
    const unsigned key = block / 16 % 16 * 32, column = block % 16 * 32 + x % 2 * 16;
    ldmatrix_x4_trans(r[x], reinterpret_cast<const half*>(square.at(key + lane, column)));
  }
  __syncwarp();  // all lanes have read before any of them overwrites
#pragma unroll
  for (unsigned x = 0; x < 4; ++x) {
    const unsigned block = x < 2 ? blocks >> 8 : blocks;
    const unsigned key = block / 16 % 16 * 32, column = block % 16 * 32 + x % 2 * 16;
    const uint32_t rows[4] = {byte_permute(r[x][0], r[x][1], 0x6420), byte_permute(r[x][0], r[x][1], 0x7531),
                              byte_permute(r[x][2], r[x][3], 0x6420), byte_permute(r[x][2], r[x][3], 0x7531)};
    stmatrix_x4(reinterpret_cast<half*>(square.at(column + lane % 16, key + lane / 16 * 16)), rows);
  }
}

// Transposes a tile of V in its place: Bc keys x d columns to d rows x Bc keys. The producer's four warps part the work, and
// each block of 32 x 32 is moved once.
template <int d>
__device__ __forceinline__ void transpose(Tile8<Bc, d>& V) {
  auto* square = reinterpret_cast<Square<d>*>(&V);
  const unsigned warp = threadIdx.x / 32;
  if constexpr (d == 64) {  // two squares of 2 x 2 blocks
    exchange<d>(square[warp / 2], warp % 2 ? 0x0011 : 0x0110);
  } else {  // squares of 4 x 4 blocks
    const unsigned first = warp == 0 ? 0x0110 : warp == 1 ? 0x0330 : warp == 2 ? 0x1331 : 0x2332;
    const unsigned second = warp == 0 ? 0x0220 : warp == 1 ? 0x1221 : warp == 2 ? 0x0011 : 0x2233;
#pragma unroll 1
    for (int x = 0; x < d / 64; ++x) exchange<d>(square[x / 2], x % 2 ? second : first);
  }
}
//! [transpose]

//! [producer]
// The producer warpgroup: one thread loads all that the consumers need for a query block, as soon as there is room; all of
// them transpose V.
template <int d>
__device__ __forceinline__ void produce(SharedMemory<d>& shared, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                        Shape shape, int head, int i, bool leader, int turn, unsigned& n) {
  const int Tc = shape.key_blocks<d>(i);
  constexpr int ahead = stages<d> / 2;  // blocks that are loaded before one is transposed
  auto load_K = [&](int j, unsigned n) {
    const unsigned stage = n % stages<d>;
    mbarrier_wait(shared.K_empty[stage], parity<d>(n) ^ 1);  // all consumers have multiplied by what lay there
    mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);
    tma_load(&shared.K[stage], K, shared.K_full[stage], 0, j * Bc, 0, head);
  };
  auto load_V = [&](int j, unsigned n) {
    const unsigned stage = n % stages<d>;
    mbarrier_wait(shared.V_empty[stage], parity<d>(n) ^ 1);  // the same of V
    mbarrier_expect(shared.V_landed[stage], sizeof shared.V[stage]);
    tma_load(&shared.V[stage], V, shared.V_landed[stage], 0, j * Bc, 0, head);
  };
  if (leader) {
    for (int x = 0; x < min(ahead, Tc); ++x) load_K(Tc - 1 - x, n + x), load_V(Tc - 1 - x, n + x);
    for (int w = 0; w < consumers<d>; ++w) {
      mbarrier_wait(shared.Q_empty[w], turn % 2 ^ 1);  // the consumer no longer needs the last Q
      mbarrier_expect(shared.Q_full[w], sizeof shared.Q[w]);
      tma_load(&shared.Q[w], Q, shared.Q_full[w], 0, i * Br<d> + 64 * w, 0, head);
    }
  }
  for (int j = Tc - 1; j >= 0; --j, ++n) {
    if (leader && j >= ahead) load_K(j - ahead, n + ahead);
    mbarrier_wait(shared.V_landed[n % stages<d>], parity<d>(n));  // V_j has landed
    transpose<d>(shared.V[n % stages<d>]);
    fence_proxy_async();  // the tensor core will see this thread's part of V^T,
    __syncwarp();         // the warp's part is there,
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.V_full[n % stages<d>]);  // and the consumers may know
    if (leader && j >= ahead) load_V(j - ahead, n + ahead);  // last: it waits for the consumers
  }
}
//! [producer]

// A warpgroup computes 64 rows of a query block, from its last key block to its first.
template <int d>
__device__ __forceinline__ void consume(SharedMemory<d>& shared, const TensorMap& O_map, const float* descales,
                                        float* LSE, Shape shape, int head, int i, int turn, unsigned& n) {
  const int w = __shfl_sync(all_lanes, threadIdx.x / 128, 0) - 1;  // the shuffle tells the compiler: the same in all lanes
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an 8 x 8 part of the accumulators
  // Scores are products of FP8 numbers; the factors of Q and K take them back.
  const float magnitude = shape.magnitude * descales[head] * descales[shape.heads + head];
  const float V_descale = descales[2 * shape.heads + head];
  const float c = fmaxf(magnitude * log2_e, smallest);  // exp(scale * s) = 2^(c * s); not 0, for 0 * infinity is NaN
  constexpr Swizzle swizzle = Tile8<Bc, d>::swizzle;
  constexpr int eight_rows = 8 * Tile8<Bc, d>::span;
  const Descriptor Q = descriptor(&shared.Q[w], 0, eight_rows, swizzle), K = descriptor(&shared.K, 0, eight_rows, swizzle),
                   V = descriptor(&shared.V, 0, eight_rows, swizzle);
  const int own_turn = 1 + w, next_turn = 1 + (w + 1) % consumers<d>, own_rows = 1 + consumers<d> + w;  // named barriers
  const int first_row = i * Br<d> + 64 * w, q0 = first_row + 16 * warp + g;  // the lane's rows are queries q0 and q0 + 8
  const int Tc = shape.key_blocks<d>(i);
  float m[2] = {lowest, lowest}, l[2] = {}, keep[2];  // of the two rows; l is the lane's part: its own columns
  float S[Bc / 2], O[d / 2] = {};
  uint32_t P[Bc / 32][4];  // the weights, packed as the left factor of PV

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
      P[x / 16][x / 8 % 2 * 2] = pack(S[x], S[x + 1], S[x + 4], S[x + 5]);
      P[x / 16][x / 8 % 2 * 2 + 1] = pack(S[x + 2], S[x + 3], S[x + 6], S[x + 7]);
    }
  };
  auto rescale_O = [&] {
#pragma unroll
    for (int x = 0; x < d / 2; ++x) O[x] = rescale(O[x], keep[x / 2 % 2]);
  };
  auto release = [&](Mbarrier& empty) {
    if (lane == 0) mbarrier_arrive(empty);  // this warp no longer reads the tile
  };
  //! [block]
  auto block = [&](int j, bool hides) {
    const unsigned stage = n % stages<d>;
    mbarrier_wait(shared.K_full[stage], parity<d>(n));  // K_j has landed
    named_barrier_sync(own_turn, 256);                  // the consumer before has its scores
    start_QK<d>(S, Q, advance(K, stage * sizeof shared.K[0]));
    wgmma_wait<0>(S);                      // it is done
    named_barrier_arrive(next_turn, 256);  // the next consumer's turn
    release(shared.K_empty[stage]);
    if (j == 0) release(shared.Q_empty[w]);  // the last Q K^T is done
    if (hides) hide(j);
    softmax(S, m, l, keep, c);
    pack_P();
    rescale_O();
    mbarrier_wait(shared.V_full[stage], parity<d>(n++));  // V_j is transposed
    start_PV<d>(O, P, advance(V, stage * sizeof shared.V[0]));
    wgmma_wait<0>(O, P);  // it is done
    release(shared.V_empty[stage]);
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
    l[r] = quad_sum(l[r]);
    inverse[r] = l[r] == 0 ? 0 : V_descale * reciprocal(l[r]);
    if (q == 0 && q0 + 8 * r < shape.Nq)
      LSE[int64_t{head} * shape.Nq + q0 + 8 * r] = l[r] == 0 ? -INFINITY : m[r] * magnitude + logf(l[r]) - P_log2 * ln_2;
  }
#pragma unroll
  for (int x = 0; x < d / 2; x += 8)  // 16 columns: of the accumulators' two parts, the first has the even ones
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* o = O + x + 2 * r;
      *reinterpret_cast<uint2*>(shared.O[w].at(16 * warp + g + 8 * r, 2 * x + q / 2 * 8) + q % 2 * 4) = {
          pack_halves(o[0] * inverse[r], o[4] * inverse[r]), pack_halves(o[1] * inverse[r], o[5] * inverse[r])};
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
                     const __grid_constant__ TensorMap V,  // [heads, Nk, d] e4m3, in boxes of Bc rows
                     const __grid_constant__ TensorMap O,  // [heads, Nq, d], in boxes of 64 rows
                     const float* descales,                // [3, heads]: what Q, K and V are to be multiplied by
                     float* LSE,                           // [heads, Nq]
                     unsigned* counter,                    // how many pieces of work have been asked for
                     Shape shape) {
  auto& shared = *dynamic_shared<SharedMemory<d>>();
  if (threadIdx.x == 0) {
    for (int w = 0; w < consumers<d>; ++w) {
      mbarrier_init(shared.Q_full[w], 1);
      mbarrier_init(shared.Q_empty[w], 4);
    }
    for (int s = 0; s < stages<d>; ++s) {
      mbarrier_init(shared.K_full[s], 1), mbarrier_init(shared.K_empty[s], 4 * consumers<d>);
      mbarrier_init(shared.V_landed[s], 1), mbarrier_init(shared.V_full[s], 4);
      mbarrier_init(shared.V_empty[s], 4 * consumers<d>);
    }
    mbarrier_init(shared.work_full, 1), mbarrier_init(shared.work_empty, threads<d>);
    fence_mbarrier_init();  // the copy engine sees them
  }
  __syncthreads();  // and so do all threads
  //! [roles]
  const unsigned all = shape.heads * ((shape.Nq + Br<d> - 1) / Br<d>);  // pieces of work
  unsigned number = blockIdx.x, n = 0;  // of this CTA's piece of work; the blocks of K and V that it has had
  const bool producer = threadIdx.x < 128, leader = threadIdx.x < 32 && elect_one();
  if (producer) {
    setmaxnreg_dec<producer_registers<d>>();
    for (int turn = 0; number < all; ++turn) {
      const auto [head, i] = work_number<d>(number, shape);
      produce<d>(shared, Q, K, V, shape, head, i, leader, turn, n);
      //! [take]
      if (leader) {
        number = gridDim.x + atomicAdd(counter, 1u);     // the first gridDim.x are taken already
        mbarrier_wait(shared.work_empty, turn % 2 ^ 1);  // everybody has read the last number
        shared.work = number;
        mbarrier_arrive(shared.work_full);  // the number is there
      }
      //! [take]
      mbarrier_wait(shared.work_full, turn % 2);  // the next number is there
      number = shared.work;
      mbarrier_arrive(shared.work_empty);  // this thread has read it
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

constexpr int quantizer_threads = 256;
constexpr int chunk = 1 << 15;  // numbers of a head that a CTA takes
__host__ __device__ constexpr int64_t chunks(int64_t count) { return (count + chunk - 1) / chunk; }

// The largest magnitude that all lanes of the CTA bring.
__device__ __forceinline__ float cta_max(float x) {
  __shared__ float of_warp[quantizer_threads / 32];
  for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();  // the maxima of all warps are there
  for (int w = 0; w < quantizer_threads / 32; ++w) x = fmaxf(x, of_warp[w]);
  return x;
}

// Finds the largest finite magnitude of each chunk of a tensor [heads, count].
__global__ void __launch_bounds__(quantizer_threads) amax_kernel(const half* x, float* amax,  // [heads, chunks]
                                                                 int64_t count) {
  const int64_t head = blockIdx.x / chunks(count), first = blockIdx.x % chunks(count) * chunk;
  float largest = 0;
  for (int64_t i = first + threadIdx.x * 8; i < min(count, first + chunk); i += quantizer_threads * 8) {
    const uint4 eight = *reinterpret_cast<const uint4*>(x + head * count + i);
    for (uint32_t two : {eight.x, eight.y, eight.z, eight.w}) {
      const float2 both = unpack_halves(two);
      if (fabsf(both.x) < INFINITY) largest = fmaxf(largest, fabsf(both.x));
      if (fabsf(both.y) < INFINITY) largest = fmaxf(largest, fabsf(both.y));
    }
  }
  largest = cta_max(largest);
  if (threadIdx.x == 0) amax[blockIdx.x] = largest;
}

// Rounds a tensor [heads, count] to e4m3, so that each head's largest magnitude becomes 448. What is not finite becomes NaN.
__global__ void __launch_bounds__(quantizer_threads) quantize_kernel(const half* x, const float* amax,  // [heads, chunks]
                                                                     uint8_t* to, float* descales,     // [heads]
                                                                     int64_t count) {
  const int64_t head = blockIdx.x / chunks(count), first = blockIdx.x % chunks(count) * chunk;
  float largest = 0;
  for (int64_t i = threadIdx.x; i < chunks(count); i += quantizer_threads)
    largest = fmaxf(largest, amax[head * chunks(count) + i]);
  largest = cta_max(largest);
  const float factor = largest > 0 ? number_max / largest : 1;
  if (threadIdx.x == 0 && first == 0) descales[head] = 1 / factor;
  for (int64_t i = first + threadIdx.x * 8; i < min(count, first + chunk); i += quantizer_threads * 8) {
    const uint4 eight = *reinterpret_cast<const uint4*>(x + head * count + i);
    const uint32_t twos[4] = {eight.x, eight.y, eight.z, eight.w};
    float y[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float2 both = unpack_halves(twos[e / 2]);
      const float value = e % 2 ? both.y : both.x;
      y[e] = fabsf(value) < INFINITY ? value * factor : NAN;
    }
    *reinterpret_cast<uint2*>(to + head * count + i) = {pack(y[0], y[1], y[2], y[3]), pack(y[4], y[5], y[6], y[7])};
  }
}

// --- launching -------------------------------------------------------------------------------------------------------

// What lies in the workspace; each part begins at a multiple of 128 bytes.
struct Workspace {
  uint8_t *Q, *K, *V;  // [heads, N, d] e4m3
  float* descales;     // [3, heads]
  float* amax;         // [heads, chunks] of one tensor
  unsigned* counter;
  size_t bytes;

  Workspace(const Problem& p, void* memory) {
    uint8_t* next = static_cast<uint8_t*>(memory);
    auto take = [&](int64_t size) {
      uint8_t* here = next;
      next += (size + 127) / 128 * 128;
      return here;
    };
    const int64_t heads = p.batch * p.heads, longest = max(p.seq_q, p.seq_k);
    Q = take(p.query_rows() * p.dim), K = take(p.key_rows() * p.dim), V = take(p.key_rows() * p.dim);
    descales = reinterpret_cast<float*>(take(3 * heads * 4));
    amax = reinterpret_cast<float*>(take(heads * chunks(longest * p.dim) * 4));
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

// The same of O: 64 columns, N rows, d / 64 groups of columns, heads.
template <int d>
TensorMap O_map(void* O, int heads, int N) {
  const uint64_t rows = N;
  return tensor_map<4>(O, {64, rows, d / 64, static_cast<uint64_t>(heads)}, {d * 2, 128, rows * d * 2}, {64, 64, d / 64, 1});
}

void quantize(const void* x, uint8_t* to, float* descales, float* amax, int heads, int64_t count, const Device& device) {
  if (count == 0) return;
  const unsigned grid = heads * chunks(count);
  launch("amax_kernel", amax_kernel, grid, quantizer_threads, 0, device, static_cast<const half*>(x), amax, count);
  launch("quantize_kernel", quantize_kernel, grid, quantizer_threads, 0, device, static_cast<const half*>(x), amax, to,
         descales, count);
}

template <int d>
void start(const Tensors& t, unsigned* counter, const Device& device, Shape shape) {
  launch("clear_kernel", clear_kernel, 1, 1, 0, device, counter);
  const int all = shape.heads * ((shape.Nq + Br<d> - 1) / Br<d>);
  launch("attention_kernel", attention_kernel<d>, min(all, device.sm_count), threads<d>, sizeof(SharedMemory<d>), device,
         tile_map<d>(t.Q, shape.heads, shape.Nq, 64), tile_map<d>(t.K, shape.heads, shape.Nk, Bc),
         tile_map<d>(t.V, shape.heads, shape.Nk, Bc), O_map<d>(t.O, shape.heads, shape.Nq), t.descales, t.LSE, counter,
         shape);
}

}  // namespace

size_t workspace_bytes(const Problem& p, const Device&) { return Workspace(p, nullptr).bytes; }

// The tensors with Q, K and V as forward() quantizes them: e4m3 in the same order, [B, H, N, d], and descales [3, B, H], the
// factors of Q's heads, K's and V's.
Tensors quantized(const Problem& p, Tensors t) {
  const Workspace w(p, t.workspace);
  t.Q = w.Q, t.K = w.K, t.V = w.V, t.descales = w.descales;
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
  if (!given.descales) {
    quantize(given.Q, w.Q, w.descales, w.amax, shape.heads, p.seq_q * p.dim, device);
    quantize(given.K, w.K, w.descales + heads, w.amax, shape.heads, p.seq_k * p.dim, device);
    quantize(given.V, w.V, w.descales + 2 * heads, w.amax, shape.heads, p.seq_k * p.dim, device);
  }
  const Tensors t = given.descales ? given : quantized(p, given);
  if (p.dim == 64) start<64>(t, w.counter, device, shape);
  if (p.dim == 128) start<128>(t, w.counter, device, shape);
  if (p.dim == 256) start<256>(t, w.counter, device, shape);
}

}  // namespace step_37
