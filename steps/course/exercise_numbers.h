/// @file
/// The numbers behind a predict exercise. They are counted or computed anew at every check; the answers in
/// the exercises are only what a person can read.
///
/// A source is one line:
///
///     run 10 --heads 1 --seq 256 --dim 64 [--batch 1] [--seq-q 256] [--seq-k 256] [--causal]
///         a step on the simulated GPU: every count of simulator::Ledger by its name, and bytes_asked and
///         bytes_distinct. A name may end in _per_row (of O), _per_head, _per_block (a pair of a query block
///         and a key block of 64 rows) or _over_least (the bytes of Q, K, V, O and LSE, moved once).
///     online 1 3 2 5
///         the online softmax of these scores: m_1, l_1, m_2, l_2, ... after each, and the weights y_1, y_2, ...
///     blocks 98304
///         FlashAttention-1's blocks for so many elements on the chip: Bc_64, Br_64, Bc_128, Br_128 by dimension
#pragma once

#include <functional>
#include <string>

namespace course {

/// Looks a name up. @throws Failure  there is no such number
using NumberOf = std::function<double(const std::string& name)>;

/// Runs a source.
/// @throws Failure  it is not understood, or the step does not run
NumberOf numbers_from(const std::string& source);

/// The value of a sum like "2 * (256 * 64 + 4)".
/// @throws Failure  it is none
double evaluate(const std::string& text);

/// Whether a guess is right: exactly for a whole number, else within half a percent.
bool agrees(double guess, double truth);

}  // namespace course
