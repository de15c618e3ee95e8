/// @file
/// The one place that decides whether a step is right, and words the answer.
#pragma once

#include "attention.h"

namespace attention {

/// What compare() found.
struct Verdict {
  bool right = false;
  double margin = 0;        ///< largest error over its allowance; below 1 is right (infinity if not finite)
  double max_error = 0;     ///< largest |O - exact|
  double rms_relative = 0;  ///< RMS error of O over the RMS of exact O, in the worst 64 rows of `exact`
  std::string message;      ///< one line if right; if wrong: first and worst element by (b, h, row, col), tile, values
};

/// How far a step may be from exact, learnt from a plain attention on the same rows: FP16 or BF16 in, float sums.
struct Allowance {
  double O = 0;             ///< largest absolute error of an element of O
  double rms_relative = 0;  ///< relative RMS of every 64 rows of O
  double LSE = 0;           ///< absolute part of the error of LSE
};

/// Twice the error of the same-precision computation (P and O rounded to the problem's dtype, sums in float) plus a floor.
Allowance allowance(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                    const Rows& exact);

/// The same, learnt from what another computation gives for the rows of `exact`, like a twin in FP8.
/// @param dtype  of O
Allowance allowance(const Rows& computed, const Rows& exact, Dtype dtype = Dtype::fp16);

/// Compares a step's whole outputs, at the rows of `exact`.
/// Right iff O and LSE are finite exactly where the reference is, -infinity exactly where it is expected, and
/// every error is within the allowance (negated comparisons, so that a NaN never passes).
/// @param O    [batch, heads, seq_q, dim] bit patterns of the problem's dtype
/// @param LSE  [batch, heads, seq_q]
Verdict compare(const Problem& problem, const Rows& exact, const Allowance& allowed, const uint16_t* O,
                const float* LSE);

}  // namespace attention
