// Attention for few queries and many keys, as a model meets it when it writes one word after the other (decoding).
//
// What 26 left: with one query, a block of 128 rows is 127 rows of nothing, and its warps multiply zeros. With 16 heads
// there are 16 CTAs for 132 SMs: 116 SMs watch while 16 read all the keys. The idea (Flash-Decoding): split the keys.
// Attention over a range of keys leaves m, l and O, undivided, and two such triples merge exactly, in any order:
//   1. the warps of a CTA share one small query block (Br = 16) and take turns at the keys, 16 at a time, each with its
//      own m, l and O; they merge once, at the end, through shared memory;
//   2. CTAs take ranges of key blocks, where there are too few CTAs for the SMs; what they leave goes to the workspace,
//      and a second kernel merges it.
// Then all that counts is to read K and V as fast as the memory can. A warp fills a ring of tiles of its own with its own
// cp.async, two tiles ahead, and waits for no other warp before the merge.
//
// Registers at d = 128: O 64, Q 32, S 8 a thread, 168 in all. Shared memory: 4 warps x 3 stages x (K 4 KB + V 4 KB) = 96 KB,
// so two CTAs an SM: 128 KB on their way while 64 KB are computed; m and l 0.5 KB. At the end a warp's O, 8.5 KB, takes the
// place of its ring: all four fit at once, without 11's chunks of columns. Workspace: m, l and O in float, a row and split.

#include <hardware/cp_async.h>
#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/ldmatrix.h>
#include <hardware/math.h>
#include <hardware/mma.h>
#include <hardware/simt.h>

#include <algorithm>

#include "reference_cpu/attention.h"

namespace step_27 {
namespace {

using attention::Problem;
using attention::Tensors;

constexpr int Br = 16;                           // rows of a query block
constexpr int warps = 4, threads = warps * 32;
constexpr int tile_keys = 16;                    // keys that a warp takes at a time
constexpr int Bc = warps * tile_keys;            // rows of a key block: a tile for every warp
constexpr int stages = 3;                        // tiles in a warp's ring
constexpr int least_blocks = 2;                  // key blocks of a split, or its merge would cost too much
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
  // Query block i needs key tiles 0 .. key_tiles(i) - 1: those that its last row sees.
  __device__ int key_tiles(int i) const { return (visible_keys(min(Nq, (i + 1) * Br) - 1) + tile_keys - 1) / tile_keys; }
};

// The ranges of keys: split s has key blocks s * blocks .. (s + 1) * blocks - 1.
struct Splits { int count, blocks; };

// What splits leave in the workspace, if there are two or more.
struct Partial {
  float* O;  // [query rows, splits, d], not divided by l
  float* m;  // [query rows, splits]; not LSE = m + ln l, in which l drowns where |m| exceeds 2^20
  float* l;  // [query rows, splits]
};

// A tile of `rows` rows and d columns, as [d / 64][rows][64]; the pieces of 8 halves in a row are swizzled.
template <int rows, int d>
struct Tile {
  half data[d / 64][rows][64];

  // Where the piece that begins at (row, column) lies; column is a multiple of 8.
  __device__ half* at(int row, int column) { return &data[column / 64][row][(column % 64 / 8 ^ row % 8) * 8]; }
};

// Of one warp: a ring while it computes, then what it found.
template <int d>
union WarpMemory {
  struct { Tile<tile_keys, d> K, V; } ring[stages];
  float O[Br][d + 8];  // 8 more, so that the lanes of a store lie in different banks
};

template <int d>
struct SharedMemory {
  WarpMemory<d> of_warp[warps];
  float m[warps][Br], l[warps][Br];
};
static_assert(sizeof(SharedMemory<128>) <= 99 * 1024, "consumer cards have no more");

// Starts to copy rows first, first + 1, ... of a matrix with `limit` rows into a tile of this warp. Rows beyond the limit
// become zero: whatever lies behind a tensor must not reach a product.
template <int d, int rows>
__device__ __forceinline__ void load_rows(Tile<rows, d>& tile, const half* matrix, int first, int limit) {
  const int lane = threadIdx.x % 32, row = lane / (d / 8), c = lane % (d / 8) * 8;
  const half* from = matrix + int64_t{first + row} * d + c;
#pragma unroll
  for (int r = 0; r < rows; r += 32 / (d / 8)) cp_async_16(tile.at(row + r, c), from + r * d, first + row + r < limit ? 16 : 0);
}

// Over the four lanes that share a row of an mma tile (lanes = 4), or over the warp (lanes = 32).
template <int lanes>
__device__ __forceinline__ float max_over(float x) {
  for (int other = lanes / 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, other));
  return x;
}
template <int lanes>
__device__ __forceinline__ float sum_over(float x) {
  for (int other = lanes / 2; other > 0; other /= 2) x += __shfl_xor_sync(all_lanes, x, other);
  return x;
}

// One row, and of O one column, of attention over some of the keys: maximum, sum under it, and O not divided by l.
struct Part { float m, l, O; };

// Merges the parts a = 0, 1, ... of a row: m[a * step], l[a * step] and, for the lane's column, O[a * O_step]. A warp does
// it together: a lane looks after the weight of one part in 32.
//! [merge]
__device__ __forceinline__ Part merge(const float* m, const float* l, int step, const float* O, int64_t O_step, int parts,
                                      float c) {
  const int lane = threadIdx.x % 32;
  Part all{lowest, 0, 0};
  for (int first = 0; first < parts; first += 32) {
    const bool mine = first + lane < parts;
    const float m_a = mine ? m[(first + lane) * step] : lowest, l_a = mine ? l[(first + lane) * step] : 0;
    const float m_new = max_over<32>(fmaxf(all.m, m_a));
    const float keep = exp2_approx((all.m - m_new) * c), weight = exp2_approx((m_a - m_new) * c);
    all.m = m_new;
    all.l = all.l * keep + sum_over<32>(weight * l_a);
    all.O = rescale(all.O, keep);
#pragma unroll 16
    for (int a = 0; a < min(32, parts - first); ++a)
      all.O = multiply_add(__shfl_sync(all_lanes, weight, a), O[(first + a) * O_step], all.O);
  }
  return all;
}
//! [merge]

// Column `column` of a row that is whole. A row that saw no key has l = 0.
__device__ __forceinline__ void store(const Part& row, half* O, float* LSE, int column, float magnitude) {
  O[column] = to_half(row.l == 0 ? 0 : row.O * reciprocal(row.l));
  if (column == 0) *LSE = row.l == 0 ? -INFINITY : row.m * magnitude + logf(row.l);
}

// Query block i of one head over one split's keys.
template <int d>
__global__ void __launch_bounds__(threads) attention_kernel(const half* Q,  // [heads, Nq, d]
                                                            const half* K,  // [heads, Nk, d]
                                                            const half* V,  // [heads, Nk, d]
                                                            half* O,        // [heads, Nq, d]
                                                            float* LSE,     // [heads, Nq]
                                                            Partial partial, Shape shape, Splits splits) {
  const int Tr = (shape.Nq + Br - 1) / Br;
  const int split = blockIdx.x % splits.count;
  const int i = Tr - 1 - blockIdx.x / splits.count % Tr;  // the longest first
  const int64_t head = blockIdx.x / splits.count / Tr;
  Q += head * shape.Nq * d, K += head * shape.Nk * d, V += head * shape.Nk * d;

  SharedMemory<d>& shared = *dynamic_shared<SharedMemory<d>>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, q = lane % 4;      // the lane's row and pair of columns in an mma tile
  const int q0 = i * Br + g;                 // the lane's rows are queries q0 and q0 + 8
  const float c = shape.magnitude * log2_e;  // exp(scale * s) = 2^(c * s)
  WarpMemory<d>& own = shared.of_warp[warp];

  float m[2] = {lowest, lowest}, l[2] = {};  // of the lane's rows; l is the lane's part: its own columns
  float O_run[d / 8][4] = {};                // 16 rows x d columns a warp, in 16 x 8 tiles

  //! [pipeline]
  // The warp's tiles are j = first, first + warps, ...
  const int first = split * splits.blocks * warps + warp;
  const int last = min(shape.key_tiles(i), (split + 1) * splits.blocks * warps);
  auto load = [&](int j, int slot) {
    if (j < last) {
      load_rows<d>(own.ring[slot].K, K, j * tile_keys, shape.Nk);
      load_rows<d>(own.ring[slot].V, V, j * tile_keys, shape.Nk);
    }
    cp_async_commit();  // a group for every tile, an empty one beyond the last
  };
#pragma unroll
  for (int n = 0; n < stages - 1; ++n) load(first + n * warps, n);

  uint32_t Q_i[d / 16][4];  // the query block, as left factors; every warp has all of it
#pragma unroll
  for (int x = 0; x < d / 16; ++x)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = q0 + e % 2 * 8, column = 16 * x + e / 2 * 8 + 2 * q;
      const float2 pair = unpack_halves(row < shape.Nq ? *reinterpret_cast<const uint32_t*>(Q + int64_t{row} * d + column) : 0);
      Q_i[x][e] = pack_halves(shape.sign * pair.x, shape.sign * pair.y);
    }

  int slot = 0;
  for (int j = first; j < last; j += warps) {
    cp_async_wait<stages - 2>();  // this lane's pieces of K_j and V_j have landed
    __syncwarp();                 // so have those of the other lanes; and all lanes have read the tile before
    auto& tiles = own.ring[slot];
    load(j + (stages - 1) * warps, slot == 0 ? stages - 1 : slot - 1);
    slot = slot == stages - 1 ? 0 : slot + 1;
    //! [pipeline]

    // S = Q K^T: two tiles of 16 rows x 8 keys.
    float S[2][4] = {};
#pragma unroll
    for (int x = 0; x < d; x += 16) {
      uint32_t k[4];  // two 8-key tiles
      ldmatrix_x4(k, tiles.K.at(lane / 16 * 8 + lane % 8, x + lane / 8 % 2 * 8));
      mma_m16n8k16(S[0], Q_i[x / 16], k[0], k[1]);
      mma_m16n8k16(S[1], Q_i[x / 16], k[2], k[3]);
    }

    // Only the last tiles hold keys that a row of this query block does not see.
    // Element e of a tile is row g + 8 (e / 2), column 2q + e % 2.
    if ((j + 1) * tile_keys > shape.visible_keys(i * Br)) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int visible = shape.visible_keys(q0 + e / 2 * 8) - j * tile_keys - 2 * q - e % 2;
        if (visible <= 0) S[0][e] = -INFINITY;
        if (visible <= 8) S[1][e] = -INFINITY;
      }
    }

    float offset[2];
    bool small = true;  // is m * c small in all of the warp's rows?
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float m_block = fmaxf(fmaxf(S[0][2 * e], S[0][2 * e + 1]), fmaxf(S[1][2 * e], S[1][2 * e + 1]));
      const float m_new = max_over<4>(fmaxf(m[e], m_block));
      const float keep = exp2_approx((m[e] - m_new) * c);
      m[e] = m_new;
      l[e] *= keep;
      offset[e] = -m_new * c;
      small = small && fabsf(m_new) * c < 32768;
#pragma unroll
      for (int t = 0; t < d / 8; ++t) {
        O_run[t][2 * e] = rescale(O_run[t][2 * e], keep);
        O_run[t][2 * e + 1] = rescale(O_run[t][2 * e + 1], keep);
      }
    }
    // exp(scale * (S - m)) takes one FFMA for its exponent, S * c - m * c. The two terms are rounded apart, so that is
    // only right while m * c is small; where it is not, subtract first.
    if (!__all_sync(all_lanes, small)) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[0][e] -= m[e / 2], S[1][e] -= m[e / 2], offset[e / 2] = 0;
    }
    uint32_t P[4];  // packed as the left factor of the next product
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float p[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) p[e] = exp2_approx(multiply_add(S[t][e], c, offset[e / 2]));
      l[0] += p[0] + p[1];
      l[1] += p[2] + p[3];
      P[2 * t] = pack_halves(p[0], p[1]);
      P[2 * t + 1] = pack_halves(p[2], p[3]);
    }

    // O += P V: d / 8 tiles of 16 rows x 8 columns.
#pragma unroll
    for (int x = 0; x < d; x += 16) {
      uint32_t v[4];  // two 8-column tiles
      ldmatrix_x4_trans(v, tiles.V.at(lane % 16, x + lane / 16 * 8));
      mma_m16n8k16(O_run[x / 8], P, v[0], v[1]);
      mma_m16n8k16(O_run[x / 8 + 1], P, v[2], v[3]);
    }
  }

  __syncwarp();  // all lanes have read the last tile, and no copy flies: O may take the ring's place
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = g + 8 * e;
#pragma unroll
    for (int t = 0; t < d / 8; ++t)
      *reinterpret_cast<float2*>(&own.O[row][8 * t + 2 * q]) = make_float2(O_run[t][2 * e], O_run[t][2 * e + 1]);
    const float sum = sum_over<4>(l[e]);
    if (q == 0) shared.m[warp][row] = m[e], shared.l[warp][row] = sum;
  }
  __syncthreads();  // every warp's m, l and O can be read
  // A warp merges 32 columns of a row at a time.
  for (int x = warp; x < min(Br, shape.Nq - i * Br) * (d / 32); x += warps) {
    const int row = x / (d / 32), column = x % (d / 32) * 32 + lane;
    const int64_t r = head * shape.Nq + i * Br + row, at = r * splits.count + split;
    const Part part = merge(&shared.m[0][row], &shared.l[0][row], Br, &shared.of_warp[0].O[row][column],
                            sizeof(WarpMemory<d>) / sizeof(float), warps, c);
    if (splits.count == 1) store(part, O + r * d, LSE + r, column, shape.magnitude);
    else partial.O[at * d + column] = part.O;
    if (splits.count > 1 && column == 0) partial.m[at] = part.m, partial.l[at] = part.l;
  }
}

// Merges the splits of all rows; a warp does 32 columns of a row.
template <int d>
__global__ void __launch_bounds__(threads) merge_kernel(Partial partial, half* O, float* LSE, int rows, int splits,
                                                        float magnitude) {
  const int x = blockIdx.x * warps + threadIdx.x / 32;
  const int64_t row = x / (d / 32);
  const int column = x % (d / 32) * 32 + threadIdx.x % 32;
  if (row >= rows) return;
  const Part whole = merge(partial.m + row * splits, partial.l + row * splits, 1, partial.O + row * splits * d + column, d,
                           splits, magnitude * log2_e);
  store(whole, O + row * d, LSE + row, column, magnitude);
}

// How many splits: so many that every SM has as many CTAs as its shared memory holds, and all run at once; but no split
// has fewer than least_blocks key blocks. One, if there are enough CTAs without. The same on every call: it depends on the
// sizes of the problem and the machine alone.
//! [splits]
Splits choose_splits(const Problem& p, const Device& device) {
  const size_t shared = p.dim == 64 ? sizeof(SharedMemory<64>) : sizeof(SharedMemory<128>);
  const int64_t room = device.sm_count * static_cast<int64_t>(device.shared_bytes_per_cta / shared);
  const int64_t CTAs = p.batch * p.heads * ((p.seq_q + Br - 1) / Br), Tc = (p.seq_k + Bc - 1) / Bc;
  const int64_t wanted = std::max<int64_t>(1, room / std::max<int64_t>(1, CTAs));
  const int64_t blocks = std::max<int64_t>(least_blocks, (Tc + wanted - 1) / wanted);
  return {static_cast<int>(std::max<int64_t>(1, (Tc + blocks - 1) / blocks)), static_cast<int>(blocks)};
}
//! [splits]

template <int d>
void run(const Problem& p, const Tensors& t, const Device& device) {
  const Splits splits = choose_splits(p, device);
  const Shape shape{static_cast<int>(p.seq_q), static_cast<int>(p.seq_k), p.causal, p.scale < 0 ? -1.0f : p.scale > 0 ? 1.0f : 0.0f,
                    p.scale == 0 ? 1.0f : fabsf(p.scale)};
  float* workspace = static_cast<float*>(t.workspace);
  const int64_t rows = p.query_rows(), parts = rows * splits.count;
  const Partial partial{workspace, workspace + parts * d, workspace + parts * (d + 1)};
  launch("attention_kernel", attention_kernel<d>,
         static_cast<unsigned>(p.batch * p.heads * ((p.seq_q + Br - 1) / Br) * splits.count), threads, sizeof(SharedMemory<d>),
         device, static_cast<const half*>(t.Q), static_cast<const half*>(t.K), static_cast<const half*>(t.V),
         static_cast<half*>(t.O), t.LSE, partial, shape, splits);
  if (splits.count > 1)
    launch("merge_kernel", merge_kernel<d>, static_cast<unsigned>((rows * (d / 32) + warps - 1) / warps), threads, 0, device,
           partial, static_cast<half*>(t.O), t.LSE, static_cast<int>(rows), splits.count, shape.magnitude);
}

}  // namespace

size_t workspace_bytes(const Problem& p, const Device& device) {
  const int splits = choose_splits(p, device).count;
  return splits == 1 ? 0 : static_cast<size_t>(p.query_rows()) * splits * (p.dim + 2) * sizeof(float);
}

void forward(const Problem& p, const Tensors& t, const Device& device) {
  attention::check(p, t, workspace_bytes(p, device));
  if (p.query_rows() == 0) return;
  p.dim == 64 ? run<64>(p, t, device) : run<128>(p, t, device);
}

}  // namespace step_27
