// The kernel of 11_tensor_cores with its loops turned round: query blocks outside, key blocks inside.
//
// What 11 left: O, l and m make a round trip through global memory for every key block. That is (8 Tc - 6) N d of the
// (10 Tc - 2) N d bytes that it asks for, and half of them are stores, which nobody can cache away. The idea
// (FlashAttention-2, which credits Phil Tillet's Triton kernel): with the query block fixed, O, l and m stay on the chip
// until the last key block has been seen, and are stored once. K and V are read again for every query block instead, but
// they are only read: all query blocks of a head read the same tiles, and from 23 on the L2 serves them.
//
// A thread keeps the elements of O that it adds up in registers, thread r the maximum and sum of row r.
//
// Shared memory at d = 128: as 11, 82.5 KB. Workspace: none.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mma.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace step_20 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int Br = 64, Bc = 64;                  // rows of a query block and of a key block
constexpr int warps = 4, threads = warps * 32;
constexpr int warp_keys = Bc / warps;            // keys of the block that a warp owns: 16
constexpr int chunk = 32;                        // columns of O that are exchanged at a time
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

template <int d>
struct SharedMemory {
  half Q[Br][d];
  half K[Bc][d];
  half V[Bc][d];
  float partial[warps][Br][chunk];  // a warp's part of P~ V
  float m[warps][Br];               // a warp's maxima,
  float l[warps][Br];               // its sums,
  float keep[Br], add[Br];          // and the factors of the old O and of P~ V
};

// Copies rows [first, first + count) of a matrix with `limit` rows into shared memory, 16 bytes a thread and step.
// Rows beyond the limit become zero: whatever lies behind a tensor must not reach a product.
template <int d, int stride>
__device__ __forceinline__ void load_rows(half (*tile)[stride], const half* matrix, int first, int count, int limit,
                                          int thread, int thread_count) {
  for (int x = thread; x < count * d / 8; x += thread_count) {
    const int row = x / (d / 8), c = x % (d / 8) * 8;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (first + row < limit) value = *reinterpret_cast<const uint4*>(matrix + int64_t{first + row} * d + c);
    *reinterpret_cast<uint4*>(&tile[row][c]) = value;
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
  const int first_key = warp * warp_keys;
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)

  float m = -INFINITY, l = 0;  // of row threadIdx.x of the block, if that is below Br
  float4 O_run[d / chunk][Br * chunk / 4 / threads];  // the thread's elements of O: 4 columns of 4 rows in each chunk
  for (auto& rows : O_run)
    for (float4& o : rows) o = make_float4(0, 0, 0, 0);

  const int Tc = shape.key_blocks(i);
  if (Tc > 0) load_rows<d>(tiles.Q, Q, i * Br, Br, shape.Nq, threadIdx.x, threads);
  for (int j = 0; j < Tc; ++j) {
    load_rows<d>(tiles.K, K, j * Bc, Bc, shape.Nk, threadIdx.x, threads);
    load_rows<d>(tiles.V, V, j * Bc, Bc, shape.Nk, threadIdx.x, threads);
    __syncthreads();  // Q, K and V are complete before any warp reads them

    // S = Q K^T for the warp's keys: 4 x 2 tiles of 16 rows x 8 keys.
    float S[Br / 16][2][4] = {};
    for (int x = 0; x < d; x += 16) {
      uint32_t k[4];  // two 8-key tiles
      ldmatrix_x4(k, &tiles.K[first_key + lane / 16 * 8 + lane % 8][x + lane / 8 % 2 * 8]);
      for (int row = 0; row < Br / 16; ++row) {
        uint32_t a[4];
        ldmatrix_x4(a, &tiles.Q[row * 16 + lane % 16][x + lane / 16 * 8]);
        mma_m16n8k16(S[row][0], a, k[0], k[1]);
        mma_m16n8k16(S[row][1], a, k[2], k[3]);
      }
    }

    // Mask, and the maximum of every row over the warp's keys. Element e of a tile is (g + 8 (e / 2), 2q + e % 2).
    for (int row = 0; row < Br / 16; ++row)
      for (int e = 0; e < 4; e += 2) {
        const int r = row * 16 + g + 4 * e;  // row of the block
        const int visible = i * Br + r < shape.Nq ? shape.visible_keys(i * Br + r) - j * Bc - first_key : 0;
        float m = -INFINITY;
        for (int t = 0; t < 2; ++t)
          for (int y = 0; y < 2; ++y) {
            float& s = S[row][t][e + y];
            s = 8 * t + 2 * q + y < visible ? shape.sign * s : -INFINITY;
            m = fmaxf(m, s);
          }
        m = quad_max(m);
        if (q == 0) tiles.m[warp][r] = m;
      }
    __syncthreads();  // all warps' maxima are there before any is read

    // P~ = exp(S - m~) with the block's own maximum m~, packed as the left factor of the next product; its sums.
    uint32_t P[Br / 16][4];
    for (int row = 0; row < Br / 16; ++row)
      for (int e = 0; e < 4; e += 2) {
        const int r = row * 16 + g + 4 * e;
        const int visible = i * Br + r < shape.Nq ? shape.visible_keys(i * Br + r) - j * Bc - first_key : 0;
        float m = -INFINITY;
        for (int w = 0; w < warps; ++w) m = fmaxf(m, tiles.m[w][r]);
        const float base = m == -INFINITY ? 0 : m;  // nothing visible: exp(-inf - 0) is 0, not NaN
        float l = 0;
        for (int t = 0; t < 2; ++t) {
          float p[2];
          for (int y = 0; y < 2; ++y) {
            p[y] = 8 * t + 2 * q + y < visible ? exp2_approx((S[row][t][e + y] - base) * c) : 0;
            l += p[y];
          }
          P[row][2 * t + e / 2] = pack_halves(p[0], p[1]);
        }
        l = quad_sum(l);
        if (q == 0) tiles.l[warp][r] = l;
      }
    __syncthreads();  // all warps' sums are there before any is read

    //! [merge]
    // Thread r merges row r: the new maximum and sum, and the factors of the old O and of P~ V. O stays divided by l.
    if (threadIdx.x < Br) {
      float m_block = -INFINITY, l_block = 0;
      for (int w = 0; w < warps; ++w) {
        m_block = fmaxf(m_block, tiles.m[w][threadIdx.x]);
        l_block += tiles.l[w][threadIdx.x];
      }
      const float m_new = fmaxf(m, m_block);
      const float keep = m == -INFINITY ? 0 : l * exp2_approx((m - m_new) * c);
      const float add = m_block == -INFINITY ? 0 : exp2_approx((m_block - m_new) * c);
      l = keep + add * l_block;
      const float inverse = l == 0 ? 0 : reciprocal(l);
      tiles.keep[threadIdx.x] = keep * inverse;
      tiles.add[threadIdx.x] = add * inverse;
      m = m_new;
    }
    //! [merge]

#pragma unroll
    for (int column = 0; column < d; column += chunk) {
      // The warp's part of P~ V: its 16 keys, 4 x 4 tiles of 16 rows x 8 columns.
      float PV[Br / 16][chunk / 8][4] = {};
      for (int x = 0; x < chunk; x += 16) {
        uint32_t v[4];  // two 8-column tiles
        ldmatrix_x4_trans(v, &tiles.V[first_key + lane % 16][column + x + lane / 16 * 8]);
        for (int row = 0; row < Br / 16; ++row) {
          mma_m16n8k16(PV[row][x / 8], P[row], v[0], v[1]);
          mma_m16n8k16(PV[row][x / 8 + 1], P[row], v[2], v[3]);
        }
      }
      for (int row = 0; row < Br / 16; ++row)
        for (int t = 0; t < chunk / 8; ++t)
          for (int e = 0; e < 4; e += 2)
            *reinterpret_cast<float2*>(&tiles.partial[warp][row * 16 + g + 4 * e][8 * t + 2 * q]) =
                make_float2(PV[row][t][e], PV[row][t][e + 1]);
      __syncthreads();  // all partial products and the factors are there before any is read

      // O = keep * O + add * (sum of the parts), in registers: a thread has 4 columns of 4 rows of the chunk.
#pragma unroll
      for (int x = 0; x < Br * chunk / 4 / threads; ++x) {
        const int r = (threadIdx.x + x * threads) / (chunk / 4), y = threadIdx.x % (chunk / 4) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
        for (int w = 0; w < warps; ++w) {
          const float4 part = *reinterpret_cast<const float4*>(&tiles.partial[w][r][y]);
          sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        const float keep = tiles.keep[r], add = tiles.add[r];
        float4& o = O_run[column / chunk][x];
        o.x = multiply_add(add, sum.x, rescale(o.x, keep));
        o.y = multiply_add(add, sum.y, rescale(o.y, keep));
        o.z = multiply_add(add, sum.z, rescale(o.z, keep));
        o.w = multiply_add(add, sum.w, rescale(o.w, keep));
      }
      __syncthreads();  // all have read the parts (after the last chunk also Q, K, V, maxima, sums and factors)
    }
  }

  //! [store]
  const int i_row = i * Br + threadIdx.x;
  if (threadIdx.x < Br && i_row < shape.Nq) LSE[i_row] = l == 0 ? -INFINITY : m * shape.magnitude + logf(l);
#pragma unroll
  for (int column = 0; column < d; column += chunk)
#pragma unroll
    for (int x = 0; x < Br * chunk / 4 / threads; ++x) {
      const int r = (threadIdx.x + x * threads) / (chunk / 4), y = threadIdx.x % (chunk / 4) * 4;
      const float4 o = O_run[column / chunk][x];
      if (i * Br + r < shape.Nq)
        *reinterpret_cast<uint2*>(O + int64_t{i * Br + r} * d + column + y) =
            make_uint2(pack_halves(o.x, o.y), pack_halves(o.z, o.w));
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
  const int64_t head = blockIdx.x;
  const int Tr = (shape.Nq + Br - 1) / Br;
  Q += head * shape.Nq * d, O += head * shape.Nq * d, LSE += head * shape.Nq;
  K += head * shape.Nk * d, V += head * shape.Nk * d;
  for (int i = 0; i < Tr; ++i) query_block<d>(Q, K, V, O, LSE, shape, i);
}

}  // namespace

size_t workspace_bytes(const Problem&, const Device&) { return 0; }

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, 0);
  if (p.query_rows() == 0) return;
  const Shape shape{static_cast<int>(p.seq_q), static_cast<int>(p.seq_k), p.causal, p.scale < 0 ? -1.0f : 1.0f, fabsf(p.scale)};
  launch("attention_kernel", p.dim == 64 ? attention_kernel<64> : attention_kernel<128>,
         static_cast<unsigned>(p.batch * p.heads), threads,
         p.dim == 64 ? sizeof(SharedMemory<64>) : sizeof(SharedMemory<128>), device, static_cast<const half*>(t.Q),
         static_cast<const half*>(t.K), static_cast<const half*>(t.V), static_cast<half*>(t.O), t.LSE, shape);
}

}  // namespace step_20
