/// @file
/// The contract that every step, every twin and the reference obey, as plain structs, and the exact answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace attention {

/// What the elements of Q, K, V and O are, 16 bits each: FP16, with 5 exponent and 10 mantissa bits, or BF16, the upper half
/// of a float, with 8 and 7.
enum class Dtype { fp16, bf16 };

/// One attention problem. All tensors are contiguous `[batch, heads, sequence, dim]`, FP16 or BF16 in and out.
///
/// For every batch and head, with i a query and j a key:
///
///     S[i,j] = scale * dot(Q[i], K[j])      visible if not causal or j <= i + seq_k - seq_q
///     P[i,:] = softmax of the visible S[i,:]
///     O[i]   = sum over j of P[i,j] * V[j]   LSE[i] = ln(sum over visible j of exp(S[i,j]))
///
/// A query that sees no key has O = 0 and LSE = -infinity. A visible score of -infinity weighs 0. A NaN
/// among a query's visible scores makes its row NaN, one in a visible V its column of the row; a hidden key's K
/// never matters.
struct Problem {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t seq_q = 0;    ///< Nq, the number of queries a head
  int64_t seq_k = 0;    ///< Nk, the number of keys a head
  int64_t dim = 0;      ///< d, the head dimension
  bool causal = false;  ///< bottom-right: key j is visible to query i iff j <= i + seq_k - seq_q
  float scale = 0;      ///< sigma; see default_scale()
  Dtype dtype = Dtype::fp16;

  int64_t query_rows() const { return batch * heads * seq_q; }  ///< rows of Q, O and LSE
  int64_t key_rows() const { return batch * heads * seq_k; }    ///< rows of K and V

  /// How many keys query i (of one head) sees: keys 0 .. visible_keys(i) - 1.
  int64_t visible_keys(int64_t i) const {
    if (!causal) return seq_k;
    int64_t n = i + seq_k - seq_q + 1;
    return n < 0 ? 0 : n;  // never above seq_k, since i < seq_q
  }
};

/// 1 / sqrt(dim), the scale of the papers.
float default_scale(int64_t dim);

/// Where the tensors of one problem lie; device memory for the kernels, host memory for the CPU.
struct Tensors {
  const void* Q = nullptr;      ///< [batch, heads, seq_q, dim], of the problem's dtype
  const void* K = nullptr;      ///< [batch, heads, seq_k, dim], of the problem's dtype
  const void* V = nullptr;      ///< [batch, heads, seq_k, dim], of the problem's dtype
  void* O = nullptr;            ///< [batch, heads, seq_q, dim], of the problem's dtype
  float* LSE = nullptr;         ///< [batch, heads, seq_q], natural logarithm
  void* workspace = nullptr;    ///< scratch memory of the step, aligned to 16 bytes
  size_t workspace_bytes = 0;   ///< how much of it there is

  /// Null, unless Q, K and V are what an FP8 step makes of FP16 tensors: e4m3, laid out as the step says, and here is what
  /// they are to be multiplied by.
  const float* descales = nullptr;
};

/// Thrown for whatever is not supported; what() is a full sentence with the number that failed.
class Refused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What Q, K and V may be besides FP16.
struct Also {
  bool fp8 = false, bf16 = false;
};

/// Checks everything about a problem that can be wrong before a kernel is launched.
/// @param needed_workspace  the least number of bytes that the step can work with
/// @param largest_dim       128: dimensions 64 and 128 are supported; 256: 64, 128 and 256
/// @param also              what the step takes besides FP16
/// @throws Refused  negative size, other dim, |scale| > 2^80 or not a number, null or misaligned pointer, too
///                  little workspace, e4m3 or BF16 tensors for a step that does not take them
void check(const Problem& problem, const Tensors& tensors, size_t needed_workspace, int64_t largest_dim = 128,
           Also also = {});

/// The part of check() that needs no tensors.
void check_sizes(const Problem& problem, int64_t largest_dim = 128);

/// Exact (float64) rows of O and LSE.
struct Rows {
  int64_t dim = 0;
  std::vector<int64_t> index;  ///< which rows: (b * heads + h) * seq_q + i, ascending
  std::vector<double> O;       ///< [index.size(), dim]
  std::vector<double> LSE;     ///< [index.size()]
};

/// Every row index of a problem, 0 .. query_rows() - 1.
std::vector<int64_t> all_rows(const Problem& problem);

/// A seeded sample of `count` rows, ascending, without repeats; it always holds the first and the last row of
/// the first and the last head. All rows if there are no more than `count`.
std::vector<int64_t> sample_rows(const Problem& problem, int64_t count, uint64_t seed);

/// Attention in float64 for the given rows.
/// @param Q,K,V  bit patterns, shapes as in Tensors
Rows exact(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
           std::vector<int64_t> rows);

/// The same of tensors in float: what FP8 steps multiply is not FP16 (fp8.h, dequantized()).
Rows exact(const Problem& problem, const float* Q, const float* K, const float* V, std::vector<int64_t> rows);

/// The same rows as a plain attention with the precision of the kernels gives them: two-pass softmax, scores
/// and sums in float, P and O rounded to the problem's dtype. compare.h learns from it how much error is natural.
Rows half_precision(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                    std::vector<int64_t> rows);

/// FP16 bit pattern to float, exactly.
float from_half(uint16_t bits);
/// float to the nearest FP16 bit pattern, ties to even.
uint16_t to_half(float value);

/// BF16 bit pattern to float, exactly.
float from_bfloat16(uint16_t bits);
/// float to the nearest BF16 bit pattern, ties to even; a NaN keeps its sign and upper bits, and is quiet.
uint16_t to_bfloat16(float value);

/// The value of a bit pattern.
float from_bits(uint16_t bits, Dtype dtype);
/// The bit pattern of the nearest value.
uint16_t to_bits(float value, Dtype dtype);

}  // namespace attention
