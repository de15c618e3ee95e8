// The kernels of 00_naive without P.
//
// What 00 left: softmax needs the row's maximum and sum before it can weigh a single V[j], so 00 walks over S twice,
// writes all of P and reads it back. The idea (Milakov and Gimelshein, "Online normalizer calculation for softmax"):
// keep a running maximum m, and whenever a larger score appears, multiply what was summed so far by exp(m_old - m_new).
// With that, l and O can be summed in the same pass over S, and P never exists as a matrix.
//
// One warp owns one row of O in registers. It takes 32 keys at a time, one a lane.
//
// Workspace: S in float, [heads at a time, Nq, Nk].

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/math.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace step_01 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int tile = 16;           // scores: a CTA computes tile x tile elements, one a thread
constexpr int rows_per_cta = 4;    // attend: one warp a row
constexpr float log2_e = 1.44269504f;

// The sizes of one head, and the causal mask's offset.
struct Shape {
  int Nq, Nk, d;
  bool causal;
  float scale;

  __device__ bool visible(int i, int j) const { return !causal || j <= i + Nk - Nq; }
};

// S[i][j] = scale * dot(Q[i], K[j]), or -infinity where query i may not see key j.
__global__ void scores_kernel(const half* Q,  // [heads, Nq, d]
                              const half* K,  // [heads, Nk, d]
                              float* S,       // [heads, Nq, Nk]
                              Shape shape) {
  const int tiles_j = (shape.Nk + tile - 1) / tile, tiles_i = (shape.Nq + tile - 1) / tile;
  const int64_t head = blockIdx.x / tiles_j / tiles_i;
  const int i = blockIdx.x / tiles_j % tiles_i * tile + threadIdx.x / tile;
  const int j = blockIdx.x % tiles_j * tile + threadIdx.x % tile;
  if (i >= shape.Nq || j >= shape.Nk) return;
  const half* q = Q + (head * shape.Nq + i) * shape.d;  // [d]
  const half* k = K + (head * shape.Nk + j) * shape.d;  // [d]
  float dot = 0;
  for (int c = 0; c < shape.d; ++c) dot = multiply_add(to_float(q[c]), to_float(k[c]), dot);
  S[(head * shape.Nq + i) * shape.Nk + j] = shape.visible(i, j) ? shape.scale * dot : -INFINITY;
}

// O[i][:] and LSE[i] in one pass over S[i][:]. Lane t holds columns t, t + 32, ... of O's row.
template <int d>
__global__ void attend_kernel(const float* S,  // [heads, Nq, Nk]
                              const half* V,   // [heads, Nk, d]
                              half* O,         // [heads, Nq, d]
                              float* LSE,      // [heads, Nq]
                              int64_t rows, Shape shape) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * rows_per_cta + threadIdx.x / 32;
  if (row >= rows) return;
  const int i = static_cast<int>(row % shape.Nq);
  const float* s = S + row * shape.Nk;                        // [Nk]
  const half* v = V + row / shape.Nq * shape.Nk * d + lane;   // [Nk] with stride d

  float m = -INFINITY, l = 0;  // running maximum and sum
  float o[d / 32] = {};        // running output
  for (int j0 = 0; j0 < shape.Nk; j0 += 32) {
    //! [online]
    const float score = j0 + lane < shape.Nk ? s[j0 + lane] : -INFINITY;
    float m_new = fmaxf(m, score);
    for (int other = 16; other > 0; other /= 2) m_new = fmaxf(m_new, __shfl_xor_sync(0xFFFFFFFF, m_new, other));
    const float base = m_new == -INFINITY ? 0 : m_new;  // nothing visible yet: exp(-inf - 0) is 0, not NaN

    const float alpha = exp2_approx((m - base) * log2_e);  // what the sums so far are worth under the new maximum
    const float p = exp2_approx((score - base) * log2_e);
    float sum = p;
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, other);
    l = l * alpha + sum;
    for (int x = 0; x < d / 32; ++x) o[x] = rescale(o[x], alpha);
    m = m_new;
    //! [online]

    for (int key = 0; key < 32 && j0 + key < shape.Nk && shape.visible(i, j0 + key); ++key) {
      const float weight = __shfl_sync(0xFFFFFFFF, p, key);
      for (int x = 0; x < d / 32; ++x)
        o[x] = multiply_add(weight, to_float(v[int64_t{j0 + key} * d + 32 * x]), o[x]);
    }
  }

  const float inverse = l == 0 ? 0 : reciprocal(l);
  for (int x = 0; x < d / 32; ++x) O[row * d + lane + 32 * x] = to_half(o[x] * inverse);
  if (lane == 0) LSE[row] = l == 0 ? -INFINITY : m + logf(l);
}

unsigned ceil_div(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

size_t bytes_per_head(const Problem& p) { return static_cast<size_t>(p.seq_q * p.seq_k) * sizeof(float); }

}  // namespace

// S of as many heads at a time as the GPU's memory holds (and the grid: at least one).
size_t workspace_bytes(const Problem& p, const Device& device) {
  const size_t heads = static_cast<size_t>(p.batch * p.heads), one = bytes_per_head(p);
  if (heads == 0 || one == 0) return 0;
  const size_t fit = device.memory_bytes / one;
  return one * (fit < 1 ? 1 : fit < heads ? fit : heads);
}

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, p.batch * p.heads * p.seq_q == 0 ? 0 : bytes_per_head(p));
  if (p.query_rows() == 0) return;
  const Shape shape{static_cast<int>(p.seq_q), static_cast<int>(p.seq_k), static_cast<int>(p.dim), p.causal, p.scale};
  const int64_t one = static_cast<int64_t>(bytes_per_head(p)), all = p.batch * p.heads;
  // How many heads fit into the workspace, and into a grid of 2^31 CTAs.
  const int64_t ctas_a_head = int64_t{ceil_div(p.seq_q, tile)} * ceil_div(p.seq_k > p.dim ? p.seq_k : p.dim, tile);
  int64_t chunk = one == 0 ? all : static_cast<int64_t>(t.workspace_bytes) / one;
  if (chunk > 0x7FFFFFFF / ctas_a_head) chunk = 0x7FFFFFFF / ctas_a_head;
  if (chunk == 0) throw attention::Refused("One head needs " + std::to_string(ctas_a_head) + " CTAs; a grid has at most 2147483647. Use shorter sequences.");

  for (int64_t head = 0; head < all; head += chunk) {
    const int64_t heads = all - head < chunk ? all - head : chunk;
    const int64_t rows = heads * p.seq_q;
    const half* Q = static_cast<const half*>(t.Q) + head * p.seq_q * p.dim;
    const half* K = static_cast<const half*>(t.K) + head * p.seq_k * p.dim;
    const half* V = static_cast<const half*>(t.V) + head * p.seq_k * p.dim;
    half* O = static_cast<half*>(t.O) + head * p.seq_q * p.dim;
    float* S = static_cast<float*>(t.workspace);
    if (p.seq_k > 0)
      launch("scores_kernel", scores_kernel,
             static_cast<unsigned>(heads) * ceil_div(p.seq_q, tile) * ceil_div(p.seq_k, tile), tile * tile, 0, device, Q, K, S,
             shape);
    launch("attend_kernel", p.dim == 64 ? attend_kernel<64> : attend_kernel<128>, ceil_div(rows, rows_per_cta),
           rows_per_cta * 32, 0, device, S, V, O, t.LSE + head * p.seq_q, rows, shape);
  }
}

}  // namespace step_01
