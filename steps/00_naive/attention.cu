// Attention as it is written on paper.
//
// S = scale * Q K^T, P = softmax(S), O = P V: three formulas, three kernels, and each one writes its result to global
// memory for the next one to read. S and P have Nq * Nk elements each. At N = 8192 and d = 128 they are 65 times as
// many elements as Q, K, V and O together, and every one of them is written once and read once: that traffic is what
// the following steps remove. Nothing here is clever, on purpose: scalar loads, scalar arithmetic, no shared memory.
//
// Workspace: S and P in float, [heads at a time, Nq, Nk] each.

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/math.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace step_00 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int tile = 16;           // scores and output: a CTA computes tile x tile elements, one a thread
constexpr int rows_per_cta = 4;    // softmax: one warp a row
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

//! [softmax]
// P[i][:] = softmax(S[i][:]) and LSE[i]. One warp a row; lane t takes keys t, t + 32, ...
__global__ void softmax_kernel(const float* S,  // [heads, Nq, Nk]
                               float* P,        // [heads, Nq, Nk]
                               float* LSE,      // [heads, Nq]
                               int64_t rows, int Nk) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * rows_per_cta + threadIdx.x / 32;
  if (row >= rows) return;
  const float* s = S + row * Nk;  // [Nk]
  float* p = P + row * Nk;        // [Nk]

  //! [row_max]
  float m = -INFINITY;  // the row's largest score: exp(s - m) cannot overflow
  for (int j = lane; j < Nk; j += 32) m = fmaxf(m, s[j]);
  for (int other = 16; other > 0; other /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, other));
  if (m == -INFINITY) m = 0;  // no visible key: every exp(s - m) below is 0, not NaN
  //! [row_max]

  float l = 0;  // the row's sum
  for (int j = lane; j < Nk; j += 32) l += exp2_approx((s[j] - m) * log2_e);
  for (int other = 16; other > 0; other /= 2) l += __shfl_xor_sync(0xFFFFFFFF, l, other);

  const float inverse = l == 0 ? 0 : reciprocal(l);
  for (int j = lane; j < Nk; j += 32) p[j] = exp2_approx((s[j] - m) * log2_e) * inverse;
  if (lane == 0) LSE[row] = l == 0 ? -INFINITY : m + logf(l);
}
//! [softmax]

// O[i][c] = sum over j of P[i][j] * V[j][c]. Hidden keys are left out, since 0 * NaN would be NaN.
__global__ void output_kernel(const float* P,  // [heads, Nq, Nk]
                              const half* V,   // [heads, Nk, d]
                              half* O,         // [heads, Nq, d]
                              Shape shape) {
  const int tiles_c = shape.d / tile, tiles_i = (shape.Nq + tile - 1) / tile;
  const int64_t head = blockIdx.x / tiles_c / tiles_i;
  const int i = blockIdx.x / tiles_c % tiles_i * tile + threadIdx.x / tile;
  const int c = blockIdx.x % tiles_c * tile + threadIdx.x % tile;
  if (i >= shape.Nq) return;
  const float* p = P + (head * shape.Nq + i) * shape.Nk;  // [Nk]
  const half* v = V + head * shape.Nk * shape.d + c;      // [Nk] with stride d
  //! [weighted_sum]
  float o = 0;
  for (int j = 0; j < shape.Nk; ++j)
    if (shape.visible(i, j)) o = multiply_add(p[j], to_float(v[int64_t{j} * shape.d]), o);
  //! [weighted_sum]
  O[(head * shape.Nq + i) * shape.d + c] = to_half(o);
}

unsigned ceil_div(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

size_t bytes_per_head(const Problem& p) { return static_cast<size_t>(2 * p.seq_q * p.seq_k) * sizeof(float); }

}  // namespace

// S and P of as many heads at a time as the GPU's memory holds (and the grid: at least one).
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
    float* P = S + rows * p.seq_k;
    if (p.seq_k > 0)
      launch("scores_kernel", scores_kernel,
             static_cast<unsigned>(heads) * ceil_div(p.seq_q, tile) * ceil_div(p.seq_k, tile), tile * tile, 0, device, Q, K, S,
             shape);
    launch("softmax_kernel", softmax_kernel, ceil_div(rows, rows_per_cta), rows_per_cta * 32, 0, device, S, P,
           t.LSE + head * p.seq_q, rows, shape.Nk);
    launch("output_kernel", output_kernel,
           static_cast<unsigned>(heads) * ceil_div(p.seq_q, tile) * static_cast<unsigned>(p.dim / tile), tile * tile, 0,
           device, P, V, O, shape);
  }
}

}  // namespace step_00
