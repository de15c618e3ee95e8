// The kernel of 24_split_q with swizzled tiles.
//
// What 24 left: rows of a tile are 128 or 256 bytes apart, a multiple of what the 32 banks of shared memory span. The
// eight rows of 16 bytes that ldmatrix reads at once all begin in the same bank, and take eight passes instead of one. The
// idea: keep 64 columns (128 bytes) of a row together, and store its eight pieces of 16 bytes in another order in every
// row: piece c of row r goes to place c XOR r % 8. Eight rows then have any one piece in eight different places, so a
// column of pieces can be read in one pass; and a row is still written in one. No padding, no extra memory.
//
// It is the layout that the TMA of 30_tma writes and the wgmma of 31_wgmma reads (there it is called 128-byte swizzle).
//
// Registers at d = 128: O 64, S 32, P 16 a thread. Shared memory: Q 16 KB + K 16 KB + V 16 KB = 48 KB. Workspace: none.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mma.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace step_25 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int Br = 64, Bc = 64;                  // rows of a query block and of a key block
constexpr int warps = 4, threads = warps * 32;
constexpr int warp_rows = Br / warps;            // rows of the query block that a warp owns: 16
constexpr float log2_e = 1.44269504f;
constexpr unsigned all_lanes = 0xFFFFFFFF;

// The sizes of one head, the causal mask's offset and the scale as sign and magnitude: with the sign in the scores,
// the largest score is the one with the largest weight, and c is never negative.
struct Shape {
  int Nq, Nk;
  bool causal;
  float sign, magnitude;

  // Query i sees keys 0 .. visible_keys(i) - 1.
  __device__ int visible_keys(int i) const { return causal ? min(Nk, max(0, i + Nk - Nq + 1)) : Nk; }
  // Query block i needs key blocks 0 .. key_blocks(i) - 1: those that its last row sees.
  __device__ int key_blocks(int i) const { return (visible_keys(min(Nq, (i + 1) * Br) - 1) + Bc - 1) / Bc; }
};

//! [tile]
// A tile of `rows` rows and d columns, as [d / 64][rows][64]; the pieces of 8 halves in a row are swizzled.
template <int rows, int d>
struct Tile {
  half data[d / 64][rows][64];

  // Where the piece that begins at (row, column) lies; column is a multiple of 8.
  __device__ half* at(int row, int column) { return &data[column / 64][row][((column / 8 ^ row) % 8) * 8]; }
};
//! [tile]

template <int d>
struct SharedMemory {
  Tile<Br, d> Q;
  Tile<Bc, d> K, V;
};

// Copies rows first, first + 1, ... of a matrix with `limit` rows into a tile, 16 bytes a thread and step.
// Rows beyond the limit become zero: whatever lies behind a tensor must not reach a product.
template <int d, int rows>
__device__ __forceinline__ void load_rows(Tile<rows, d>& tile, const half* matrix, int first, int limit) {
  for (int x = threadIdx.x; x < rows * d / 8; x += threads) {
    const int row = x / (d / 8), c = x % (d / 8) * 8;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (first + row < limit) value = *reinterpret_cast<const uint4*>(matrix + int64_t{first + row} * d + c);
    *reinterpret_cast<uint4*>(tile.at(row, c)) = value;
  }
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
  const int q0 = i * Br + first_row + g;     // the lane's rows are queries q0 and q0 + 8
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)

  float m[2] = {-INFINITY, -INFINITY};  // of the lane's two rows
  float l[2] = {0, 0};                  // the lane's part of their sums: its own columns
  float O_run[d / 8][4] = {};           // 16 rows x d columns a warp, in 16 x 8 tiles

  const int Tc = shape.key_blocks(i);
  if (Tc > 0) load_rows<d>(tiles.Q, Q, i * Br, shape.Nq);
  for (int j = 0; j < Tc; ++j) {
    load_rows<d>(tiles.K, K, j * Bc, shape.Nk);
    load_rows<d>(tiles.V, V, j * Bc, shape.Nk);
    __syncthreads();  // Q, K and V are complete before any warp reads them

    //! [scores]
    // S = Q K^T for the warp's rows: 8 tiles of 16 rows x 8 keys.
    float S[Bc / 8][4] = {};
    for (int x = 0; x < d; x += 16) {
      uint32_t a[4];
      ldmatrix_x4(a, tiles.Q.at(first_row + lane % 16, x + lane / 16 * 8));
      for (int key = 0; key < Bc; key += 16) {
        uint32_t k[4];  // two 8-key tiles
        ldmatrix_x4(k, tiles.K.at(key + lane / 16 * 8 + lane % 8, x + lane / 8 % 2 * 8));
        mma_m16n8k16(S[key / 8], a, k[0], k[1]);
        mma_m16n8k16(S[key / 8 + 1], a, k[2], k[3]);
      }
    }
    //! [scores]

    //! [softmax]
    // Element e of a tile is row g + 8 (e / 2), column 2q + e % 2.
    uint32_t P[Bc / 16][4];  // packed as the left factor of the next product
    for (int e = 0; e < 4; e += 2) {
      const int row = q0 + 4 * e;
      const int visible = row < shape.Nq ? shape.visible_keys(row) - j * Bc - 2 * q : 0;
      float m_new = m[e / 2];
      for (int t = 0; t < Bc / 8; ++t)
        for (int y = 0; y < 2; ++y) {
          float& s = S[t][e + y];
          s = 8 * t + y < visible ? shape.sign * s : -INFINITY;
          m_new = fmaxf(m_new, s);
        }
      m_new = quad_max(m_new);
      const float base = m_new == -INFINITY ? 0 : m_new;  // nothing visible yet: exp(-inf - 0) is 0, not NaN
      const float keep = m[e / 2] == -INFINITY ? 1 : exp2_approx((m[e / 2] - base) * c);  // nothing yet: O and l are 0
      m[e / 2] = m_new;
      l[e / 2] *= keep;
      for (int t = 0; t < Bc / 8; ++t) {
        float p[2];
        for (int y = 0; y < 2; ++y) {
          p[y] = 8 * t + y < visible ? exp2_approx((S[t][e + y] - base) * c) : 0;
          l[e / 2] += p[y];
        }
        P[t / 2][t % 2 * 2 + e / 2] = pack_halves(p[0], p[1]);
      }
      for (int t = 0; t < d / 8; ++t)
        for (int y = 0; y < 2; ++y) O_run[t][e + y] = rescale(O_run[t][e + y], keep);
    }
    //! [softmax]

    // O += P V: d / 8 tiles of 16 rows x 8 columns.
    for (int key = 0; key < Bc; key += 16)
      for (int x = 0; x < d; x += 16) {
        uint32_t v[4];  // two 8-column tiles
        ldmatrix_x4_trans(v, tiles.V.at(key + lane % 16, x + lane / 16 * 8));
        mma_m16n8k16(O_run[x / 8], P[key / 16], v[0], v[1]);
        mma_m16n8k16(O_run[x / 8 + 1], P[key / 16], v[2], v[3]);
      }
    __syncthreads();  // all warps have read K and V before they are overwritten
  }

  //! [store]
  for (int e = 0; e < 4; e += 2) {
    const int row = q0 + 4 * e;
    const float sum = quad_sum(l[e / 2]);
    const float inverse = sum == 0 ? 0 : reciprocal(sum);
    if (row >= shape.Nq) continue;
    for (int t = 0; t < d / 8; ++t)
      *reinterpret_cast<uint32_t*>(O + int64_t{row} * d + 8 * t + 2 * q) =
          pack_halves(O_run[t][e] * inverse, O_run[t][e + 1] * inverse);
    if (q == 0) LSE[row] = sum == 0 ? -INFINITY : m[e / 2] * shape.magnitude + logf(sum);
  }
  //! [store]
}

template <int d>
__global__ void __launch_bounds__(threads) attention_kernel(const half* Q,  // [heads, Nq, d]
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
  const Shape shape{static_cast<int>(p.seq_q), static_cast<int>(p.seq_k), p.causal, p.scale < 0 ? -1.0f : 1.0f, fabsf(p.scale)};
  launch("attention_kernel", p.dim == 64 ? attention_kernel<64> : attention_kernel<128>,
         static_cast<unsigned>(p.batch * p.heads * ((p.seq_q + Br - 1) / Br)), threads,
         p.dim == 64 ? sizeof(SharedMemory<64>) : sizeof(SharedMemory<128>), device, static_cast<const half*>(t.Q),
         static_cast<const half*>(t.K), static_cast<const half*>(t.V), static_cast<half*>(t.O), t.LSE, shape);
}

}  // namespace step_25
