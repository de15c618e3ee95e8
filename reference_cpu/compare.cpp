/// @file
/// How much error is natural, and the verdict on a step.
///
/// Three questions are asked of O, because each is blind where another sees:
///  - is every element close to exact? A single wrong element shows, but the largest |O| sets the yardstick;
///  - is the relative RMS error of every 64 rows small? Under a causal mask |O| shrinks with the number of
///    keys that a row sees, and one dropped key of N moves O by 1/sqrt(N) of its own size: far more than
///    rounding does;
///  - is it NaN, infinite or exactly 0 where it must be?
#include "compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

namespace attention {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// How many rows share an RMS, and the edge of the tiles that messages name.
constexpr int64_t block = 64;

/// The steps use another rounding order than the computation that the allowance is learnt from.
constexpr double safety = 2;

/// What a type can tell apart.
struct Precision {
  double step;             ///< from 1 to the next number
  double smallest_normal;  ///< below it the distance between neighbours no longer shrinks with the value
};
Precision precision_of(Dtype dtype) {
  return dtype == Dtype::bf16 ? Precision{0x1p-7, 0x1p-126} : Precision{0x1p-10, 0x1p-14};
}

/// Rounding P and O costs half a step each, at most 2^-11 of the value in FP16. Where the plain computation happens
/// to hit exactly (constant V, weights that are powers of two) a step may still end on the neighbour.
double rms_floor(Dtype dtype) { return precision_of(dtype).step; }

/// A step may sum P after it has rounded it to FP16: 2^-11 of l, so 2^-11 in LSE; twice that is allowed. No more in BF16,
/// which is too coarse to be summed.
constexpr double LSE_floor = 0x1p-10;

/// Large scores: a float score has a relative error of some 2^-24, its sum over d terms and the constants
/// log2(e) and ln(2) a few times that.
constexpr double LSE_relative = 1e-6;

/// The distance from |x| to the next number of a type.
double spacing(double x, Dtype dtype) {
  const auto [step, smallest_normal] = precision_of(dtype);
  return std::exp2(std::floor(std::log2(std::max(std::fabs(x), smallest_normal)))) * step;
}

/// 0 if both are NaN or the same infinity; NaN or infinity if one is not finite.
double error_of(double got, double expected) {
  if (std::isfinite(expected)) return std::fabs(got - expected);
  bool same = std::isnan(expected) ? std::isnan(got) : got == expected;
  return same ? 0 : infinity;
}

/// RMS error of some rows over the RMS of what is expected of them; elements that are not finite stay out.
struct RelativeRms {
  Dtype dtype;
  double error = 0, expected = 0;
  int64_t elements = 0;

  void add(double got, double want) {
    if (!std::isfinite(got) || !std::isfinite(want)) return;
    error += (got - want) * (got - want);
    expected += want * want;
    ++elements;
  }
  double value() const {
    if (elements == 0) return 0;
    double root = std::sqrt(expected / double(elements));
    return std::sqrt(error / double(elements)) / std::max(root, precision_of(dtype).smallest_normal);
  }
};

bool ends_rms(size_t r, const Rows& rows) { return r % block == block - 1 || r + 1 == rows.index.size(); }

struct Element {
  int64_t b, h, row, col;
  bool operator==(const Element&) const = default;
};

Element locate(const Problem& p, int64_t row_index, int64_t col) {
  int64_t head = row_index / p.seq_q;
  return {head / p.heads, head % p.heads, row_index % p.seq_q, col};
}

/// One tensor's wrong elements: how many, the first and the worst.
struct Findings {
  struct Wrong {
    Element at;
    double got, expected, allowed;
  };
  int64_t looked_at = 0, wrong = 0;
  double largest_error = 0, margin = 0;
  double worst_ratio = 0;
  std::optional<Wrong> first, worst;

  void add(const Element& at, double got, double expected, double allowed) {
    ++looked_at;
    double error = error_of(got, expected);
    if (std::isnan(error)) error = infinity;
    double ratio = error == 0 ? 0 : allowed > 0 ? error / allowed : infinity;
    largest_error = std::max(largest_error, error);
    margin = std::max(margin, ratio);
    if (error == 0 || (error <= allowed && std::isfinite(error))) return;
    ++wrong;
    if (!first) first = Wrong{at, got, expected, allowed};
    if (worst && !(ratio > worst_ratio)) return;
    worst = Wrong{at, got, expected, allowed};
    worst_ratio = ratio;
  }
};

/// A number, with one spelling of NaN.
struct Value {
  double value;
};

std::ostream& operator<<(std::ostream& out, Value v) {
  if (std::isnan(v.value)) return out << "nan";
  return out << v.value;
}

void put_wrong(std::ostream& out, const char* tensor, bool has_col, const Findings::Wrong& w) {
  out << tensor << "[b=" << w.at.b << ", h=" << w.at.h << ", row=" << w.at.row;
  if (has_col) out << ", col=" << w.at.col;
  out << "] = " << Value{w.got} << ", expected " << Value{w.expected};
  if (w.allowed == 0)
    out << " exactly";
  else if (std::isfinite(w.expected))
    out << " +- " << w.allowed;
  int64_t row0 = w.at.row / block * block, col0 = w.at.col / block * block;
  out << " (row block " << w.at.row / block << ": rows " << row0 << " to " << row0 + block - 1;
  if (has_col) out << "; columns " << col0 << " to " << col0 + block - 1;
  out << ")";
}

void put(std::ostream& out, const char* tensor, bool has_col, const Findings& found) {
  if (found.wrong == 0) return;
  out << tensor << ": " << found.wrong << " of " << found.looked_at << " values are wrong.\n  first: ";
  put_wrong(out, tensor, has_col, *found.first);
  if (found.worst->at != found.first->at) {
    out << "\n  worst: ";
    put_wrong(out, tensor, has_col, *found.worst);
  }
  out << "\n";
}

/// Whether LSE is right up to the base of its logarithm.
bool is_base_2(const Rows& exact, const float* LSE, double allowed) {
  const double log2e = 1.4426950408889634;
  bool differs = false;
  for (size_t r = 0; r < exact.index.size(); ++r) {
    double got = LSE[exact.index[r]], expected = exact.LSE[r];
    if (!std::isfinite(expected)) continue;
    double tolerance = 2 * (allowed + LSE_relative * std::fabs(expected));
    if (!(std::fabs(got - expected * log2e) <= tolerance)) return false;
    differs |= !(std::fabs(got - expected) <= tolerance);
  }
  return differs;
}

}  // namespace

Allowance allowance(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                    const Rows& exact) {
  return allowance(half_precision(problem, Q, K, V, exact.index), exact, problem.dtype);
}

Allowance allowance(const Rows& computed, const Rows& exact, Dtype dtype) {
  double largest_O = 0, O_error = 0, rms = 0, LSE_error = 0;
  RelativeRms rows{dtype};
  for (size_t r = 0; r < exact.index.size(); ++r) {
    if (r % block == 0) rows = {dtype};
    for (int64_t c = 0; c < exact.dim; ++c) {
      double got = computed.O[r * exact.dim + c], expected = exact.O[r * exact.dim + c];
      if (!std::isfinite(got) || !std::isfinite(expected)) continue;
      rows.add(got, expected);
      largest_O = std::max(largest_O, std::fabs(expected));
      O_error = std::max(O_error, std::fabs(got - expected));
    }
    if (ends_rms(r, exact)) rms = std::max(rms, rows.value());
    double error = std::fabs(computed.LSE[r] - exact.LSE[r]) - LSE_relative * std::fabs(exact.LSE[r]);
    if (std::isfinite(error)) LSE_error = std::max(LSE_error, error);
  }
  return {safety * O_error + spacing(largest_O, dtype), safety * rms + rms_floor(dtype), safety * LSE_error + LSE_floor};
}

Verdict compare(const Problem& problem, const Rows& exact, const Allowance& allowed, const uint16_t* O,
                const float* LSE) {
  Findings in_O, in_LSE;
  RelativeRms rows{problem.dtype};
  double worst_rms = 0;
  size_t worst_rows = 0;  // the last of the rows that share the worst RMS
  for (size_t r = 0; r < exact.index.size(); ++r) {
    if (r % block == 0) rows = {problem.dtype};
    const int64_t row = exact.index[r];
    const bool empty = exact.LSE[r] == -infinity;  // then O is exactly 0
    for (int64_t c = 0; c < exact.dim; ++c) {
      double got = from_bits(O[row * exact.dim + c], problem.dtype), expected = exact.O[r * exact.dim + c];
      in_O.add(locate(problem, row, c), got, expected, empty ? 0 : allowed.O);
      rows.add(got, expected);
    }
    if (ends_rms(r, exact) && rows.value() > worst_rms) {
      worst_rms = rows.value();
      worst_rows = r;
    }
    in_LSE.add(locate(problem, row, 0), LSE[row], exact.LSE[r],
               empty ? 0 : allowed.LSE + LSE_relative * std::fabs(exact.LSE[r]));
  }

  Verdict verdict;
  const bool rms_right = worst_rms <= allowed.rms_relative;
  verdict.right = in_O.wrong == 0 && in_LSE.wrong == 0 && rms_right;
  verdict.max_error = in_O.largest_error;
  verdict.rms_relative = worst_rms;
  verdict.margin = std::max({in_O.margin, in_LSE.margin, worst_rms / allowed.rms_relative});

  std::ostringstream out;
  out.precision(6);
  if (verdict.right) {
    out << "right: largest error of O " << verdict.max_error << ", relative RMS " << worst_rms << "; "
        << std::lround(100 * verdict.margin) << " % of what is allowed";
  } else {
    put(out, "O", true, in_O);
    if (!rms_right) {
      Element from = locate(problem, exact.index[worst_rows / block * block], 0);
      Element to = locate(problem, exact.index[worst_rows], 0);
      out << "O: the relative RMS error from [b=" << from.b << ", h=" << from.h << ", row=" << from.row
          << "] to [b=" << to.b << ", h=" << to.h << ", row=" << to.row << "] is " << worst_rms
          << ", allowed " << allowed.rms_relative << ".\n";
    }
    put(out, "LSE", false, in_LSE);
    if (in_LSE.wrong > 0 && is_base_2(exact, LSE, allowed.LSE))
      out << "LSE is in base 2: multiply it by ln(2), the contract wants the natural logarithm.\n";
  }
  verdict.message = out.str();
  if (verdict.message.ends_with('\n')) verdict.message.pop_back();
  return verdict;
}

}  // namespace attention
