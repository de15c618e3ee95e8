/// @file
/// What the contract refuses, the conversions of FP16 and BF16, and exact attention with Eigen.
#include "attention.h"

#include <Eigen/Dense>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <sstream>

namespace attention {
namespace {

// ---------------------------------------------------------------------------------------------- refusing

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw Refused(sentence.str());
}

void check_not_negative(const char* name, int64_t size) {
  if (size < 0) refuse("The ", name, " is ", size, "; it must be 0 or more.");
}

void check_dim(int64_t dim, int64_t largest_dim) {
  if (dim == 64 || dim == 128 || (dim == 256 && largest_dim >= 256)) return;
  const char* supported = largest_dim >= 256 ? "64, 128 and 256" : "64 and 128";
  if (dim > largest_dim || dim <= 0)
    refuse("The head dimension is ", dim, "; this step supports ", supported, ". Choose one of them.");
  int64_t padded = dim < 64 ? 64 : dim < 128 ? 128 : 256;
  refuse("The head dimension is ", dim, "; this step supports ", supported, ". Pad Q, K and V with zeros to ",
         padded, " and pass the scale of ", dim, ", 1/sqrt(", dim, ") = ", default_scale(dim), ".");
}

/// Index arithmetic is done in int64_t, so a tensor must stay well below 2^63 bytes.
void check_elements(const char* name, const Problem& p, int64_t sequence) {
  const double most = 0x1p60;
  double elements = double(p.batch) * double(p.heads) * double(sequence) * double(p.dim);
  if (elements > most)
    refuse("The tensor ", name, " would have ", elements,
           " elements; no more than 2^60 can be indexed. Make the "
           "batch, heads or sequence smaller.");
}

void check_pointer(const char* name, const void* pointer, uintptr_t alignment) {
  if (!pointer) refuse("The pointer ", name, " is null; it must point to the tensor.");
  uintptr_t rest = reinterpret_cast<uintptr_t>(pointer) % alignment;
  if (rest != 0)
    refuse("The pointer ", name, " lies ", rest, " bytes past a multiple of ", alignment,
           "; it must be aligned to ", alignment, " bytes. Pass the start of an allocation, or a copy.");
}

// --------------------------------------------------------------------------------------------- computing

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

float value_of(uint16_t bits, Dtype dtype) { return from_bits(bits, dtype); }
float value_of(float x, Dtype) { return x; }

/// `rows` rows of a tensor, bit patterns or floats, as a [rows, d] matrix.
template <class T, class In>
Matrix<T> load(const In* x, int64_t rows, const Problem& p) {
  return Eigen::Map<const Matrix<In>>(x, rows, p.dim).unaryExpr([&p](In x) { return T(value_of(x, p.dtype)); });
}

/// Rows of one head that are computed together: a [rows, keys] piece of S is all that is ever stored.
struct Chunk {
  std::span<const int64_t> index;  ///< rows of Q, (b * heads + h) * seq_q + i
  int64_t head = 0;                ///< b * heads + h
};

/// Keys that are converted at a time: [1024, 128] doubles fit in a core's L2 cache.
constexpr int64_t keys_at_a_time = 1024;

template <class T>
class ChunkAttention {
public:
  /// @param rounds  whether P and O are rounded to the problem's dtype, as a kernel rounds them
  ChunkAttention(const Problem& problem, const Chunk& chunk, bool rounds)
      : p(problem), chunk(chunk), rounds(rounds), rows(std::ssize(chunk.index)), visible(rows), m(rows), l(rows) {
    for (int64_t r = 0; r < rows; ++r) visible[r] = p.visible_keys(chunk.index[r] % p.seq_q);
    widest = *std::max_element(visible.begin(), visible.end());
    narrowest = *std::min_element(visible.begin(), visible.end());
  }

  template <class In>
  void run(const In* Q, const In* K, const In* V, double* O, double* LSE) {
    scores(Q, K + chunk.head * p.seq_k * p.dim);
    for (int64_t r = 0; r < rows; ++r) softmax(r);
    weighted_sum(V + chunk.head * p.seq_k * p.dim);
    for (int64_t r = 0; r < rows; ++r) finish(r, O + r * p.dim, LSE + r);
  }

private:
  template <class In>
  void scores(const In* Q, const In* K) {
    Matrix<T> q(rows, p.dim);
    for (int64_t r = 0; r < rows; ++r) q.row(r) = load<T>(Q + chunk.index[r] * p.dim, 1, p);
    P.resize(rows, widest);
    for (int64_t j = 0; j < widest; j += keys_at_a_time) {
      int64_t n = std::min(keys_at_a_time, widest - j);
      Matrix<T> k = load<T>(K + j * p.dim, n, p);
      if (rounds)
        P.middleCols(j, n) =
            q.lazyProduct(k.transpose());  // one order of summation: equal keys, equal scores
      else
        P.middleCols(j, n).noalias() = q * k.transpose();
    }
    P *= T(p.scale);
  }

  /// Turns row r of P from scores into exp(S - m); hidden keys are selected away, whatever their score is.
  void softmax(int64_t r) {
    auto S = P.row(r).head(visible[r]);
    P.row(r).tail(widest - visible[r]).setZero();
    m[r] = -std::numeric_limits<T>::infinity();
    l[r] = 0;
    if (visible[r] == 0) return;
    m[r] = S.template maxCoeff<Eigen::PropagateNaN>();
    if (m[r] == -std::numeric_limits<T>::infinity()) {
      S.setZero();  // every weight is 0; -inf - -inf would be NaN
      return;
    }
    // std::exp, since Eigen 3.4's own exp gives the smallest normal number, not 0, at -infinity.
    S = S.unaryExpr([m = m[r]](T s) { return std::exp(s - m); }).eval();
    l[r] = S.sum();
    if (rounds) S = S.unaryExpr([this](T w) { return rounded(w); }).eval();
  }

  /// sum = P V. A hidden key has P = 0, but 0 * NaN is NaN: where V holds such values, each row stops at its
  /// last visible key.
  template <class In>
  void weighted_sum(const In* V) {
    sum.setZero(rows, p.dim);
    for (int64_t j = 0; j < widest; j += keys_at_a_time) {
      int64_t n = std::min(keys_at_a_time, widest - j);
      Matrix<T> v = load<T>(V + j * p.dim, n, p);
      if (j + n <= narrowest || v.allFinite()) {
        sum.noalias() += P.middleCols(j, n) * v;
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        int64_t seen = std::clamp<int64_t>(visible[r] - j, 0, n);
        sum.row(r).noalias() += P.row(r).segment(j, seen) * v.topRows(seen);
      }
    }
  }

  void finish(int64_t r, double* O, double* LSE) const {
    *LSE = double(m[r] + std::log(l[r]));  // -inf + log(0) for an empty row
    for (int64_t c = 0; c < p.dim; ++c) {
      T o = l[r] == 0 ? T(0) : sum(r, c) / l[r];
      O[c] = double(rounds ? rounded(o) : o);
    }
  }

  T rounded(T x) const { return T(from_bits(to_bits(float(x), p.dtype), p.dtype)); }

  const Problem& p;
  const Chunk& chunk;
  bool rounds;
  int64_t rows;
  int64_t widest = 0, narrowest = 0;  ///< most and fewest visible keys of a row
  std::vector<int64_t> visible;       ///< [rows] visible keys
  std::vector<T> m, l;                ///< [rows] maximum and sum of exp(S - m)
  Matrix<T> P;                        ///< [rows, widest] first S, then exp(S - m)
  Matrix<T> sum;                      ///< [rows, dim] P V
};

template <class T, class In>
Rows compute(const Problem& p, const In* Q, const In* K, const In* V, std::vector<int64_t> rows, bool rounds) {
  Rows result{p.dim, std::move(rows), {}, {}};
  const std::vector<int64_t>& index = result.index;
  result.O.resize(index.size() * p.dim);
  result.LSE.resize(index.size());
  // 32 MB of scores, whatever the number of keys
  size_t most = std::clamp<int64_t>((int64_t(1) << 22) / std::max<int64_t>(p.seq_k, 1), 1, 128);
  for (size_t begin = 0, end; begin < index.size(); begin = end) {
    int64_t head = index[begin] / p.seq_q;
    for (end = begin; end < index.size() && end < begin + most && index[end] / p.seq_q == head;) ++end;
    Chunk chunk{std::span(index).subspan(begin, end - begin), head};
    ChunkAttention<T>(p, chunk, rounds).run(Q, K, V, &result.O[begin * p.dim], &result.LSE[begin]);
  }
  return result;
}

}  // namespace

float default_scale(int64_t dim) { return float(1 / std::sqrt(double(dim))); }

void check_sizes(const Problem& p, int64_t largest_dim) {
  check_not_negative("batch", p.batch);
  check_not_negative("number of heads", p.heads);
  check_not_negative("number of queries (seq_q)", p.seq_q);
  check_not_negative("number of keys (seq_k)", p.seq_k);
  check_dim(p.dim, largest_dim);
  check_elements("Q", p, p.seq_q);
  check_elements("K", p, p.seq_k);
  if (!(std::fabs(p.scale) <= 0x1p80f))
    refuse("The scale is ", p.scale,
           "; it must be a number between -2^80 and 2^80 (about 1.2e24). The papers use "
           "1/sqrt(dim) = ",
           default_scale(p.dim), ".");
  if (p.dtype != Dtype::fp16 && p.dtype != Dtype::bf16)
    refuse("The dtype has the number ", int(p.dtype), "; it must be 0 for FP16 or 1 for BF16.");
}

void check(const Problem& p, const Tensors& t, size_t needed_workspace, int64_t largest_dim, Also also) {
  check_sizes(p, largest_dim);
  if (t.descales && !also.fp8)
    refuse("Q, K and V come with descales, as e4m3 tensors do; this step takes FP16. Pass FP16 tensors and no descales.");
  if (p.dtype == Dtype::bf16 && !also.bf16)
    refuse("Q, K and V are BF16; this step takes FP16. Convert them, or choose a step that takes BF16.");
  if (p.query_rows() == 0) return;  // nothing will be read or written
  check_pointer("Q", t.Q, 16);
  if (p.seq_k > 0) {
    check_pointer("K", t.K, 16);
    check_pointer("V", t.V, 16);
  }
  check_pointer("O", t.O, 16);
  check_pointer("LSE", t.LSE, alignof(float));
  if (needed_workspace == 0) return;
  if (t.workspace_bytes < needed_workspace)
    refuse("The workspace has ", t.workspace_bytes, " bytes; this step needs at least ", needed_workspace,
           " bytes for this problem. Allocate what workspace_bytes() asks for.");
  check_pointer("workspace", t.workspace, 16);
}

std::vector<int64_t> all_rows(const Problem& p) {
  std::vector<int64_t> rows(p.query_rows());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = int64_t(i);
  return rows;
}

std::vector<int64_t> sample_rows(const Problem& p, int64_t count, uint64_t seed) {
  const int64_t total = p.query_rows();
  if (total <= count || total == 0) return all_rows(p);
  std::set<int64_t> rows{0, p.seq_q - 1, total - p.seq_q, total - 1};
  std::mt19937_64 random(seed);
  while (std::ssize(rows) < count) rows.insert(int64_t(random() % uint64_t(total)));
  return {rows.begin(), rows.end()};
}

Rows exact(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
           std::vector<int64_t> rows) {
  return compute<double>(problem, Q, K, V, std::move(rows), false);
}

Rows exact(const Problem& problem, const float* Q, const float* K, const float* V, std::vector<int64_t> rows) {
  return compute<double>(problem, Q, K, V, std::move(rows), false);
}

Rows half_precision(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                    std::vector<int64_t> rows) {
  return compute<float>(problem, Q, K, V, std::move(rows), true);
}

float from_half(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000) << 16;
  uint32_t magnitude = bits & 0x7fff;
  uint32_t value = (magnitude << 13) + (112u << 23);  // the exponent's bias is 127 in float, 15 in FP16
  if (magnitude >= 0x7c00) value = 0x7f800000 | (magnitude & 0x3ff) << 13;  // infinity, NaN
  if (magnitude < 0x0400)
    value = std::bit_cast<uint32_t>(float(int32_t(magnitude)) * 0x1p-24f);  // subnormal, 0
  return std::bit_cast<float>(sign | value);
}

uint16_t to_half(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // from 65520 on the nearest is infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 FP16 counts in steps of 2^-24, which is what float does from 0.5 on: the sum rounds for us.
    return uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000));
  }
  magnitude += 0x0fff + (magnitude >> 13 & 1);  // ties to even; a carry into the exponent is right, too
  return uint16_t(sign | (magnitude - (112u << 23)) >> 13);
}

float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

uint16_t to_bfloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // ties to even; a carry into the exponent is right
}

float from_bits(uint16_t bits, Dtype dtype) { return dtype == Dtype::bf16 ? from_bfloat16(bits) : from_half(bits); }
uint16_t to_bits(float value, Dtype dtype) { return dtype == Dtype::bf16 ? to_bfloat16(value) : to_half(value); }

}  // namespace attention
