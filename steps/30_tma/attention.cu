// The kernel of 26_async_copies, whose tiles are copied by the copy engine.
//
// What 26 left: every thread computes the addresses of its pieces of 16 bytes, tests them against the end of the tensor, and
// issues one cp.async for each: 8 a thread and tile of K at d = 128. The idea: Hopper's copy engine (TMA, Tensor Memory
// Accelerator) copies a whole tile for one instruction of one thread. It knows the tensor from a tensor map, which the CPU
// encodes before the launch: sizes, strides, the box, the swizzle. It computes the addresses, fills with zeros what lies
// outside the tensor, and writes the tile in the layout of 25_swizzle. When the bytes have landed it tells an mbarrier, a
// barrier in shared memory that counts bytes; there the warps wait.
//
// Registers: O 128, S 64, P 32 a thread, so two CTAs an SM as before. Shared memory: Q 32 KB + K 16 KB + V 16 KB = 64 KB and
// three mbarriers. Workspace: none.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mbarrier.h>
#include <hardware/mma.h>
#include <hardware/simt.h>
#include <hardware/tma.h>
#include <hardware/warpgroup.h>

#include "reference_cpu/attention.h"

namespace step_30 {
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

// The sizes of one head, the causal mask's offset and the scale as sign and magnitude. Scale 0 is sign 0 and magnitude 1:
// then c is positive, and c times the -infinity of a hidden key never NaN.
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
  Mbarrier Q_full, K_full, V_full;
};

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
__device__ void query_block(SharedMemory<d>& tiles, const TensorMap& Q_map, const TensorMap& K_map, const TensorMap& V_map,
                            half* O,     // [Nq, d]
                            float* LSE,  // [Nq]
                            Shape shape, int head, int i) {
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
  // One thread starts the copies.
  const bool leader = threadIdx.x < 32 && elect_one();
  //! [load]
  auto load_K = [&](int j) {
    mbarrier_expect(tiles.K_full, sizeof tiles.K);  // the phase ends when so many bytes have landed
    tma_load(&tiles.K, K_map, tiles.K_full, 0, j * Bc<d>, 0, head);
  };
  auto load_V = [&](int j) {
    mbarrier_expect(tiles.V_full, sizeof tiles.V);  // the same of V
    tma_load(&tiles.V, V_map, tiles.V_full, 0, j * Bc<d>, 0, head);
  };
  //! [load]
  if (leader && Tc > 0) {
    mbarrier_expect(tiles.Q_full, sizeof tiles.Q);
    tma_load(&tiles.Q, Q_map, tiles.Q_full, 0, i * Br, 0, head);
    load_K(0);
  }
  if (Tc > 0) mbarrier_wait(tiles.Q_full, 0);  // Q has landed

  //! [pipeline]
  for (int j = 0; j < Tc; ++j) {
    mbarrier_wait(tiles.K_full, j % 2);  // K_j has landed
    __syncthreads();                     // all warps have read V_{j-1}
    if (leader) load_V(j);
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
    __syncthreads();  // all warps have read K_j
    if (leader && j + 1 < Tc) load_K(j + 1);
    //! [refill]

    // Hides what a row does not see, and gives the scores the scale's sign. Most blocks need neither. Element e of a tile is
    // row g + 8 (e / 2), column 2q + e % 2.
    if ((j + 1) * Bc<d> > shape.visible_keys(i * Br) || shape.sign != 1) {
#pragma unroll
      for (int row = 0; row < row_tiles; ++row)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int visible = shape.visible_keys(q0 + row * 16 + e / 2 * 8) - j * Bc<d> - 2 * q - e % 2;
#pragma unroll
          for (int t = 0; t < Bc<d> / 8; ++t) S[row][t][e] = 8 * t < visible ? S[row][t][e] * shape.sign : -INFINITY;
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

    mbarrier_wait(tiles.V_full, j % 2);  // V_j has landed
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
__global__ void __launch_bounds__(threads, 2)
    attention_kernel(const __grid_constant__ TensorMap Q,  // [heads, Nq, d], in boxes of Br rows
                     const __grid_constant__ TensorMap K,  // [heads, Nk, d], in boxes of Bc rows
                     const __grid_constant__ TensorMap V,  // [heads, Nk, d], in boxes of Bc rows
                     half* O,                              // [heads, Nq, d]
                     float* LSE,                           // [heads, Nq]
                     Shape shape) {
  auto& tiles = *dynamic_shared<SharedMemory<d>>();
  if (threadIdx.x == 0) {
    mbarrier_init(tiles.Q_full, 1), mbarrier_init(tiles.K_full, 1), mbarrier_init(tiles.V_full, 1);
    fence_mbarrier_init();  // the copy engine sees them
  }
  __syncthreads();  // and so do all threads
  const int Tr = (shape.Nq + Br - 1) / Br;
  const int head = blockIdx.x / Tr, i = Tr - 1 - blockIdx.x % Tr;  // the longest first
  query_block<d>(tiles, Q, K, V, O + int64_t{head} * shape.Nq * d, LSE + int64_t{head} * shape.Nq, shape, head, i);
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
  const int Tr = (shape.Nq + Br - 1) / Br;
  launch("attention_kernel", attention_kernel<d>, heads * Tr, threads, sizeof(SharedMemory<d>), device,
         tile_map<d>(t.Q, heads, shape.Nq, Br), tile_map<d>(t.K, heads, shape.Nk, Bc<d>),
         tile_map<d>(t.V, heads, shape.Nk, Bc<d>), static_cast<half*>(t.O), t.LSE, shape);
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

}  // namespace step_30
