// FlashAttention-1: tiles, so that S and P never leave the chip.
//
// What 01 left: S is still written to global memory and read back, 2 N^2 floats a head, though every score is used for
// one product with one row of V. The idea (FlashAttention, Algorithm 1): cut K and V into blocks of Bc rows and Q into
// blocks of Br rows. One block of each fits into shared memory, and so does the Br x Bc block of scores between them.
// Softmax over a row now arrives in pieces of Bc scores, and the running m and l of 01 carry it from piece to piece.
//
// As in the paper, the outer loop walks over key blocks j and the inner one over query blocks i, so K and V are read
// once; O, l and m make a round trip through global memory for every j, and O is divided by l each time. One CTA
// computes one head.
//
// A CTA is 8 warps; a warp owns 8 rows of the query block from their load to their store, so that only K and V need
// barriers of the whole CTA. Lane t holds the scores of keys t and t + 32.
//
// Shared memory at d = 128: Q 16 KB + K 17 KB + V 16 KB + P 8 KB = 57 KB (Turing has 64 KB). P is FP16 to fit.
// Workspace: O [heads, Nq, d], l and m [heads, Nq], in float.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/math.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace step_10 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int Br = 64, Bc = 64;                  // rows of a query block and of a key block
constexpr int warps = 8, threads = warps * 32;
constexpr int rows = Br / warps;                 // rows of the query block that a warp owns
constexpr int pad = 8;                           // halves after each row of K: lanes read different rows without bank conflicts
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
  half K[Bc][d + pad];
  half V[Bc][d];
  half P[Br][Bc];
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

__device__ __forceinline__ void unpack(const half* eight, float (&x)[8]) {
  const uint4 packed = *reinterpret_cast<const uint4*>(eight);
  const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack_halves(pairs[i]);
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}

__device__ __forceinline__ float warp_max(float x) {
  for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(all_lanes, x, other);
  return x;
}

template <int d>
__global__ void __launch_bounds__(threads, 1) attention_kernel(const half* Q,  // [heads, Nq, d]
                                                            const half* K,  // [heads, Nk, d]
                                                            const half* V,  // [heads, Nk, d]
                                                            half* O,        // [heads, Nq, d]
                                                            float* LSE,     // [heads, Nq]
                                                            float* O_run,   // [heads, Nq, d] between key blocks
                                                            float* l_run,   // [heads, Nq]
                                                            float* m_run,   // [heads, Nq]
                                                            Shape shape) {
  SharedMemory<d>& tiles = *dynamic_shared<SharedMemory<d>>();
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * rows;  // the warp's first row in the query block
  const int64_t head = blockIdx.x;
  Q += head * shape.Nq * d, O += head * shape.Nq * d, O_run += head * shape.Nq * d;
  K += head * shape.Nk * d, V += head * shape.Nk * d;
  LSE += head * shape.Nq, l_run += head * shape.Nq, m_run += head * shape.Nq;
  const int Tr = (shape.Nq + Br - 1) / Br, Tc = (shape.Nk + Bc - 1) / Bc;
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)

  // Query blocks that see no key at all.
  for (int i = 0; i < Tr && shape.key_blocks(i) == 0; ++i)
    for (int x = threadIdx.x; x < Br * d && i * Br + x / d < shape.Nq; x += threads) {
      O[int64_t{i} * Br * d + x] = to_half(0);
      if (x % d == 0) LSE[i * Br + x / d] = -INFINITY;
    }

  for (int j = 0; j < Tc; ++j) {
    //! [load_keys]
    __syncthreads();  // every warp has finished with the K and V of block j - 1, which are overwritten now
    load_rows<d>(tiles.K, K, j * Bc, Bc, shape.Nk, threadIdx.x, threads);
    load_rows<d>(tiles.V, V, j * Bc, Bc, shape.Nk, threadIdx.x, threads);
    __syncthreads();  // K and V are complete before any warp reads them
    //! [load_keys]

    const int first_query = shape.causal ? max(0, j * Bc - (shape.Nk - shape.Nq)) : 0;  // the first to see block j
    for (int i = first_query / Br; i < Tr; ++i) {
      const int q0 = i * Br + first_row;  // the warp's first query
      const bool last_block = j == shape.key_blocks(i) - 1;

      load_rows<d>(tiles.Q + first_row, Q, q0, rows, shape.Nq, lane, 32);
      __syncwarp();  // Q is complete before any lane of the warp reads it; and all have read the P of the block before

      // S = Q K^T: rows x 2 scores a lane.
      float S[rows][2] = {};
      for (int x = 0; x < d; x += 8) {
        float k[2][8];
        unpack(&tiles.K[lane][x], k[0]);
        unpack(&tiles.K[lane + 32][x], k[1]);
        for (int r = 0; r < rows; ++r) {
          float q[8];
          unpack(&tiles.Q[first_row + r][x], q);
          for (int y = 0; y < 8; ++y) {
            S[r][0] = multiply_add(q[y], k[0][y], S[r][0]);
            S[r][1] = multiply_add(q[y], k[1][y], S[r][1]);
          }
        }
      }

      // P~ = exp(S - m~) with the block's own maximum m~, and its sum l~. Lane r keeps those of row r.
      float m_block = -INFINITY, l_block = 0;
      for (int r = 0; r < rows; ++r) {
        const int visible = q0 + r < shape.Nq ? shape.visible_keys(q0 + r) - j * Bc : 0;  // keys of this block
        for (int x = 0; x < 2; ++x) S[r][x] = lane + 32 * x < visible ? shape.sign * S[r][x] : -INFINITY;
        const float m = warp_max(fmaxf(S[r][0], S[r][1]));
        const float base = m == -INFINITY ? 0 : m;  // nothing visible: exp(-inf - 0) is 0, not NaN
        for (int x = 0; x < 2; ++x) S[r][x] = lane + 32 * x < visible ? exp2_approx((S[r][x] - base) * c) : 0;
        const float l = warp_sum(S[r][0] + S[r][1]);
        if (lane == r) m_block = m, l_block = l;
        for (int x = 0; x < 2; ++x) tiles.P[first_row + r][lane + 32 * x] = to_half(S[r][x]);
      }
      __syncwarp();  // P is complete before any lane of the warp reads it; and all have read Q

      //! [merge]
      // Lane r merges row r: the new maximum and sum, and the factors of the old O and of P~ V. O stays divided by l.
      float keep = 0, add = 0;
      if (lane < rows && q0 + lane < shape.Nq) {
        const float m_old = j == 0 ? -INFINITY : m_run[q0 + lane], l_old = j == 0 ? 0 : l_run[q0 + lane];
        const float m_new = fmaxf(m_old, m_block);
        keep = m_old == -INFINITY ? 0 : l_old * exp2_approx((m_old - m_new) * c);
        add = m_block == -INFINITY ? 0 : exp2_approx((m_block - m_new) * c);
        const float l_new = keep + add * l_block;
        const float inverse = l_new == 0 ? 0 : reciprocal(l_new);
        keep *= inverse;
        add *= inverse;
        if (last_block) {
          LSE[q0 + lane] = l_new == 0 ? -INFINITY : m_new * shape.magnitude + logf(l_new);
        } else {
          m_run[q0 + lane] = m_new;
          l_run[q0 + lane] = l_new;
        }
      }
      //! [merge]

      // P~ V: rows x d/32 sums a lane; lane t holds columns 2t, 2t + 1, 2t + 64, ...
      float PV[rows][d / 32] = {};
      for (int key = 0; key < Bc; key += 2) {
        float2 v[2][d / 64];
        for (int x = 0; x < d / 64; ++x) {
          v[0][x] = unpack_halves(*reinterpret_cast<const uint32_t*>(&tiles.V[key][64 * x + 2 * lane]));
          v[1][x] = unpack_halves(*reinterpret_cast<const uint32_t*>(&tiles.V[key + 1][64 * x + 2 * lane]));
        }
        for (int r = 0; r < rows; ++r) {
          const float2 p = unpack_halves(*reinterpret_cast<const uint32_t*>(&tiles.P[first_row + r][key]));
          for (int x = 0; x < d / 64; ++x) {
            PV[r][2 * x] = multiply_add(p.x, v[0][x].x, multiply_add(p.y, v[1][x].x, PV[r][2 * x]));
            PV[r][2 * x + 1] = multiply_add(p.x, v[0][x].y, multiply_add(p.y, v[1][x].y, PV[r][2 * x + 1]));
          }
        }
      }

      // O = keep * O + add * P~ V, from global memory and back.
      for (int r = 0; r < rows; ++r) {
        const float keep_row = __shfl_sync(all_lanes, keep, r), add_row = __shfl_sync(all_lanes, add, r);
        if (q0 + r >= shape.Nq) continue;
        for (int x = 0; x < d / 64; ++x) {
          const int64_t at = int64_t{q0 + r} * d + 64 * x + 2 * lane;
          float2 o = make_float2(0, 0);
          if (j > 0) o = *reinterpret_cast<const float2*>(O_run + at);
          o.x = multiply_add(add_row, PV[r][2 * x], rescale(o.x, keep_row));
          o.y = multiply_add(add_row, PV[r][2 * x + 1], rescale(o.y, keep_row));
          if (last_block) *reinterpret_cast<uint32_t*>(O + at) = pack_halves(o.x, o.y);
          else *reinterpret_cast<float2*>(O_run + at) = o;
        }
      }
    }
  }
}

}  // namespace

size_t workspace_bytes(const Problem& p, const Device&) {
  return static_cast<size_t>(p.query_rows() * (p.dim + 2)) * sizeof(float);
}

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, workspace_bytes(p, device));
  if (p.query_rows() == 0) return;
  const Shape shape{static_cast<int>(p.seq_q), static_cast<int>(p.seq_k), p.causal, p.scale < 0 ? -1.0f : 1.0f, fabsf(p.scale)};
  float* O_run = static_cast<float*>(t.workspace);
  float* l_run = O_run + p.query_rows() * p.dim;
  float* m_run = l_run + p.query_rows();
  launch("attention_kernel", p.dim == 64 ? attention_kernel<64> : attention_kernel<128>,
         static_cast<unsigned>(p.batch * p.heads), threads,
         p.dim == 64 ? sizeof(SharedMemory<64>) : sizeof(SharedMemory<128>), device, static_cast<const half*>(t.Q),
         static_cast<const half*>(t.K), static_cast<const half*>(t.V), static_cast<half*>(t.O), t.LSE, O_run, l_run, m_run,
         shape);
}

}  // namespace step_10
