// The kernel of 25_swizzle with copies that fly while it computes, and larger blocks.
//
// What 25 left: a load goes through registers into shared memory, everybody waits for it, and only then the products
// begin. The idea: cp.async copies from global to shared memory without registers, and the thread goes on. K and V have
// one tile each, and each is refilled as soon as all warps have read it: V_j flies under Q K_j^T, and K_{j+1} under the
// softmax and P V_j. Each of the two barriers a block now does two things: what was waited for has landed for all, and
// what all have read may be overwritten.
//
// The blocks grow with it. A warp takes 32 rows instead of 16, so every fragment of K and V that it reads is used twice;
// at d = 64 a key block has 128 rows. And since a lane now has four rows, softmax walks over all of them together: four
// independent chains of instructions, where 25 had one after the other.
//
// Registers at d = 128: O 128, S 64, P 32 a thread, 255 in all, so two CTAs an SM. Shared memory: Q 32 KB + K 16 KB +
// V 16 KB = 64 KB. Workspace: none.

#include <hardware/cp_async.h>
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mma.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace step_26 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int Br = 128;                          // rows of a query block
template <int d>
constexpr int Bc = d == 64 ? 128 : 64;           // rows of a key block
constexpr int warps = 4, threads = warps * 32;
constexpr int warp_rows = Br / warps;            // rows of the query block that a warp owns: 32
constexpr int row_tiles = warp_rows / 16;
constexpr float log2_e = 1.44269504f;
constexpr float lowest = -3e38f;                 // the maximum of nothing: below every score, and lowest - lowest is 0
constexpr unsigned all_lanes = 0xFFFFFFFF;

// The sizes of one head, the causal mask's offset and the scale as sign and magnitude. The sign goes into Q, so that the
// largest score is the one with the largest weight. Scale 0 is sign 0 and magnitude 1: then c is positive, and c times the
// -infinity of a hidden key never NaN.
struct Shape {
  int Nq, Nk;
  bool causal;
  float sign, magnitude;

  // Query i sees keys 0 .. visible_keys(i) - 1.
  __device__ int visible_keys(int i) const { return causal ? min(Nk, max(0, i + Nk - Nq + 1)) : Nk; }
  // Query block i needs key blocks 0 .. key_blocks(i) - 1: those that its last row sees.
  template <int d>
  __device__ int key_blocks(int i) const {
    return (visible_keys(min(Nq, (i + 1) * Br) - 1) + Bc<d> - 1) / Bc<d>;
  }
};

//! [tile]
// A tile of `rows` rows and d columns, as [d / 64][rows][64]; the pieces of 8 halves in a row are swizzled.
template <int rows, int d>
struct Tile {
  half data[d / 64][rows][64];

  // Where the piece that begins at (row, column) lies; column is a multiple of 8.
  __device__ half* at(int row, int column) { return &data[column / 64][row][(column % 64 / 8 ^ row % 8) * 8]; }
};
//! [tile]

template <int d>
struct SharedMemory {
  Tile<Br, d> Q;
  Tile<Bc<d>, d> K, V;
};

// Starts to copy rows first, first + 1, ... of a matrix with `limit` rows into a tile. Rows beyond the limit become zero:
// whatever lies behind a tensor must not reach a product. A thread copies one piece of every at_once-th row, so that its
// addresses differ by constants.
template <int d, int rows>
__device__ __forceinline__ void load_rows(Tile<rows, d>& tile, const half* matrix, int first, int limit) {
  constexpr int at_once = threads / (d / 8);
  static_assert(at_once % 8 == 0, "all pieces of a thread must be swizzled alike");
  const int row = threadIdx.x / (d / 8), c = threadIdx.x % (d / 8) * 8;
  const half* from = matrix + int64_t{first + row} * d + c;
  half* to = tile.at(row, c);
#pragma unroll
  for (int r = 0; r < rows; r += at_once) cp_async_16(to + r * 64, from + r * d, first + row + r < limit ? 16 : 0);
}

// Multiplies the pieces that this thread copied by a sign.
template <int d, int rows>
__device__ __forceinline__ void multiply(Tile<rows, d>& tile, float sign) {
  half* to = tile.at(threadIdx.x / (d / 8), threadIdx.x % (d / 8) * 8);
  for (int r = 0; r < rows; r += threads / (d / 8))
    for (int x = 0; x < 8; ++x) to[r * 64 + x] = to_half(sign * to_float(to[r * 64 + x]));
}

// Over the four lanes that share a row of an mma tile.
__device__ __forceinline__ float quad_max(float x) {
  for (int other = 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  return x;
}
__device__ __forceinline__ float quad_sum(float x) {
  for (int other = 2; other > 0; other /= 2) x += __shfl_xor_sync(all_lanes, x, other);
  return x;
}

// Computes query block i of one head, from its first key block to its last.
template <int d>
__device__ void query_block(const half* Q,  // [Nq, d]
                            const half* K,  // [Nk, d]
                            const half* V,  // [Nk, d]
                            half* O,        // [Nq, d]
                            float* LSE,     // [Nq]
                            Shape shape, int i) {
  SharedMemory<d>& tiles = *dynamic_shared<SharedMemory<d>>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, q = lane % 4;  // the lane's row and pair of columns in an mma tile
  const int first_row = warp * warp_rows;
  const int q0 = i * Br + first_row + g;     // the lane's rows are queries q0, q0 + 8, q0 + 16, q0 + 24
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)

  float m[row_tiles][2], l[row_tiles][2];    // of the lane's rows; l is the lane's part: its own columns
  float O_run[row_tiles][d / 8][4] = {};     // 32 rows x d columns a warp, in 16 x 8 tiles
#pragma unroll
  for (int row = 0; row < row_tiles; ++row)
#pragma unroll
    for (int e = 0; e < 2; ++e) m[row][e] = lowest, l[row][e] = 0;

  const int Tc = shape.key_blocks<d>(i);
  if (Tc > 0) {
    load_rows<d>(tiles.Q, Q, i * Br, shape.Nq);
    load_rows<d>(tiles.K, K, 0, shape.Nk);
  }
  cp_async_commit();  // Q and K_0 are a group
  if (shape.sign != 1 && Tc > 0) {
    cp_async_wait<0>();               // this thread's pieces of Q have landed
    multiply<d>(tiles.Q, shape.sign);
  }

  //! [pipeline]
  for (int j = 0; j < Tc; ++j) {
    cp_async_wait<0>();  // this thread's pieces of K_j (and Q) have landed
    __syncthreads();     // so have everybody's; and all warps have read V_{j-1}
    load_rows<d>(tiles.V, V, j * Bc<d>, shape.Nk);
    cp_async_commit();   // V_j is a group
    //! [pipeline]

    // S = Q K^T for the warp's rows: 2 x Bc / 8 tiles of 16 rows x 8 keys.
    float S[row_tiles][Bc<d> / 8][4] = {};
#pragma unroll
    for (int x = 0; x < d; x += 16) {
      uint32_t a[row_tiles][4];
#pragma unroll
      for (int row = 0; row < row_tiles; ++row)
        ldmatrix_x4(a[row], tiles.Q.at(first_row + row * 16 + lane % 16, x + lane / 16 * 8));
#pragma unroll
      for (int key = 0; key < Bc<d>; key += 16) {
        uint32_t k[4];  // two 8-key tiles
        ldmatrix_x4(k, tiles.K.at(key + lane / 16 * 8 + lane % 8, x + lane / 8 % 2 * 8));
#pragma unroll
        for (int row = 0; row < row_tiles; ++row) {
          mma_m16n8k16(S[row][key / 8], a[row], k[0], k[1]);
          mma_m16n8k16(S[row][key / 8 + 1], a[row], k[2], k[3]);
        }
      }
    }

    //! [refill]
    cp_async_wait<0>();  // this thread's pieces of V_j have landed
    __syncthreads();     // so have everybody's; and all warps have read K_j
    if (j + 1 < Tc) load_rows<d>(tiles.K, K, (j + 1) * Bc<d>, shape.Nk);
    cp_async_commit();   // and K_{j+1} another
    //! [refill]

    // Only the last blocks hold keys that a row of this query block does not see.
    // Element e of a tile is row g + 8 (e / 2), column 2q + e % 2.
    if ((j + 1) * Bc<d> > shape.visible_keys(i * Br)) {
#pragma unroll
      for (int row = 0; row < row_tiles; ++row)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int visible = shape.visible_keys(q0 + row * 16 + e / 2 * 8) - j * Bc<d> - 2 * q - e % 2;
#pragma unroll
          for (int t = 0; t < Bc<d> / 8; ++t)
            if (8 * t >= visible) S[row][t][e] = -INFINITY;
        }
    }

    //! [softmax]
    float m_new[row_tiles][2], keep[row_tiles][2];
#pragma unroll
    for (int row = 0; row < row_tiles; ++row) m_new[row][0] = m[row][0], m_new[row][1] = m[row][1];
#pragma unroll
    for (int t = 0; t < Bc<d> / 8; ++t)
#pragma unroll
      for (int row = 0; row < row_tiles; ++row)
#pragma unroll
        for (int e = 0; e < 4; ++e) m_new[row][e / 2] = fmaxf(m_new[row][e / 2], S[row][t][e]);
    bool small = true;  // is m * c small in all of the warp's rows?
#pragma unroll
    for (int row = 0; row < row_tiles; ++row)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        m_new[row][e] = quad_max(m_new[row][e]);
        keep[row][e] = exp2_approx((m[row][e] - m_new[row][e]) * c);
        m[row][e] = m_new[row][e];
        l[row][e] *= keep[row][e];
        small = small && fabsf(m[row][e]) * c < 32768;
      }
#pragma unroll
    for (int t = 0; t < d / 8; ++t)
#pragma unroll
      for (int row = 0; row < row_tiles; ++row)
#pragma unroll
        for (int e = 0; e < 4; ++e) O_run[row][t][e] = rescale(O_run[row][t][e], keep[row][e / 2]);
    // exp(scale * (S - m)) takes one FFMA for its exponent, S * c - m * c. The two terms are rounded apart, so that is
    // only right while m * c is small; where it is not, subtract first.
    float offset[row_tiles][2];
#pragma unroll
    for (int row = 0; row < row_tiles; ++row) offset[row][0] = -m[row][0] * c, offset[row][1] = -m[row][1] * c;
    if (!__all_sync(all_lanes, small)) {
#pragma unroll
      for (int row = 0; row < row_tiles; ++row)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int t = 0; t < Bc<d> / 8; ++t) S[row][t][e] -= m[row][e / 2];
          offset[row][e / 2] = 0;
        }
    }
    uint32_t P[row_tiles][Bc<d> / 16][4];  // packed as the left factor of the next product
#pragma unroll
    for (int t = 0; t < Bc<d> / 8; ++t)
#pragma unroll
      for (int row = 0; row < row_tiles; ++row) {
        float p[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) p[e] = exp2_approx(multiply_add(S[row][t][e], c, offset[row][e / 2]));
        l[row][0] += p[0] + p[1];
        l[row][1] += p[2] + p[3];
        P[row][t / 2][t % 2 * 2] = pack_halves(p[0], p[1]);
        P[row][t / 2][t % 2 * 2 + 1] = pack_halves(p[2], p[3]);
      }
    //! [softmax]

    // O += P V: 2 x d / 8 tiles of 16 rows x 8 columns.
#pragma unroll
    for (int key = 0; key < Bc<d>; key += 16)
#pragma unroll
      for (int x = 0; x < d; x += 16) {
        uint32_t v[4];  // two 8-column tiles
        ldmatrix_x4_trans(v, tiles.V.at(key + lane % 16, x + lane / 16 * 8));
#pragma unroll
        for (int row = 0; row < row_tiles; ++row) {
          mma_m16n8k16(O_run[row][x / 8], P[row][key / 16], v[0], v[1]);
          mma_m16n8k16(O_run[row][x / 8 + 1], P[row][key / 16], v[2], v[3]);
        }
      }
  }

  //! [store]
#pragma unroll
  for (int row = 0; row < row_tiles; ++row)
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const int r = q0 + row * 16 + 4 * e;
      const float sum = quad_sum(l[row][e / 2]);
      const float inverse = sum == 0 ? 0 : reciprocal(sum);
      if (r >= shape.Nq) continue;
#pragma unroll
      for (int t = 0; t < d / 8; ++t)
        *reinterpret_cast<uint32_t*>(O + int64_t{r} * d + 8 * t + 2 * q) =
            pack_halves(O_run[row][t][e] * inverse, O_run[row][t][e + 1] * inverse);
      if (q == 0) LSE[r] = sum == 0 ? -INFINITY : m[row][e / 2] * shape.magnitude + logf(sum);
    }
  //! [store]
}

template <int d>
__global__ void __launch_bounds__(threads, 2) attention_kernel(const half* Q,  // [heads, Nq, d]
                                                            const half* K,  // [heads, Nk, d]
                                                            const half* V,  // [heads, Nk, d]
                                                            half* O,        // [heads, Nq, d]
                                                            float* LSE,     // [heads, Nq]
                                                            Shape shape) {
  const int Tr = (shape.Nq + Br - 1) / Br;
  const int64_t head = blockIdx.x / Tr;
  Q += head * shape.Nq * d, O += head * shape.Nq * d, LSE += head * shape.Nq;
  K += head * shape.Nk * d, V += head * shape.Nk * d;
  const int i = Tr - 1 - blockIdx.x % Tr;  // the longest first
  query_block<d>(Q, K, V, O, LSE, shape, i);
}

}  // namespace

size_t workspace_bytes(const Problem&, const Device&) { return 0; }

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, 0);
  if (p.query_rows() == 0) return;
  const Shape shape{static_cast<int>(p.seq_q), static_cast<int>(p.seq_k), p.causal, p.scale < 0 ? -1.0f : p.scale > 0 ? 1.0f : 0.0f,
                    p.scale == 0 ? 1.0f : fabsf(p.scale)};
  launch("attention_kernel", p.dim == 64 ? attention_kernel<64> : attention_kernel<128>,
         static_cast<unsigned>(p.batch * p.heads * ((p.seq_q + Br - 1) / Br)), threads,
         p.dim == 64 ? sizeof(SharedMemory<64>) : sizeof(SharedMemory<128>), device, static_cast<const half*>(t.Q),
         static_cast<const half*>(t.K), static_cast<const half*>(t.V), static_cast<half*>(t.O), t.LSE, shape);
}

}  // namespace step_26
