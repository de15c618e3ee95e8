/// @file
/// What each of the steps 20 to 23 claims, counted: the ledger shows that the one idea is there, and nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference_cpu/attention.h"
#include "steps/course/check.h"
#include "steps/course/steps.h"

namespace {

using attention::Problem;
using course::Question;
using simulator::Ledger;

constexpr int64_t Bc = 64;
constexpr uint64_t Br = 64;

Question question_of(int64_t heads, int64_t seq_q, int64_t seq_k, int64_t dim, bool causal, const char* input = "gaussian") {
  const Problem p{1, heads, seq_q, seq_k, dim, causal, attention::default_scale(dim)};
  return course::ask(p, course::make_inputs(input, p, 1));
}

Ledger ledger_of(const std::string& step, const Question& question) {
  const course::Outcome outcome = course::check(course::find_step(step).library(course::Machine::simulated), question);
  REQUIRE_MESSAGE(outcome.right(), step << ": " << outcome.message);
  return outcome.ledger;
}

uint64_t blocks(int64_t rows) { return static_cast<uint64_t>((rows + 63) / 64); }
uint64_t asked(const Ledger& l) { return l.global_read + l.global_written; }

// Of rows and columns that the tests below go through: tails in both, one block, many blocks.
struct Shape {
  int64_t heads, seq_q, seq_k, dim;
};
const std::vector<Shape> shapes = {{2, 256, 256, 64}, {3, 100, 300, 128}, {1, 64, 64, 64}, {1, 333, 70, 64}};

double value_of(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return half & 0x8000 ? -magnitude : magnitude;
}

// The block's largest score of one query of a problem with one head and positive scale, -infinity if it sees none.
double block_maximum(const Question& question, int64_t i, int64_t j) {
  const Problem& p = question.problem;
  const int64_t visible = p.causal ? std::clamp<int64_t>(i + p.seq_k - p.seq_q + 1, 0, p.seq_k) : p.seq_k;
  double m = -std::numeric_limits<double>::infinity();
  for (int64_t key = j * Bc; key < std::min(visible, (j + 1) * Bc); ++key) {
    double score = 0;
    for (int64_t c = 0; c < p.dim; ++c)
      score += value_of(question.inputs.Q[static_cast<size_t>(i * p.dim + c)]) *
               value_of(question.inputs.K[static_cast<size_t>(key * p.dim + c)]);
    m = std::max(m, score);
  }
  return m;
}

// Rescale multiplications that the scores demand if `rows` neighbouring rows share a branch: a rise of the maximum in
// any of them, after its first visible key, costs rows * d multiplications.
uint64_t rescales_of(const Question& question, int64_t rows) {
  const Problem& p = question.problem;
  uint64_t count = 0;
  for (int64_t first = 0; first < p.seq_q; first += rows) {
    std::vector<double> m(static_cast<size_t>(rows), -std::numeric_limits<double>::infinity());
    for (int64_t j = 0; j < (p.seq_k + Bc - 1) / Bc; ++j) {
      bool rises = false;
      for (int64_t r = 0; r < std::min(rows, p.seq_q - first); ++r) {
        double& row = m[static_cast<size_t>(r)];
        const double m_new = std::max(row, block_maximum(question, first + r, j));
        rises = rises || (std::isfinite(row) && m_new > row);
        row = m_new;
      }
      if (rises) count += static_cast<uint64_t>(rows * p.dim);
    }
  }
  return count;
}

}  // namespace

TEST_CASE("20: O is stored once, and K and V are read for every query block") {
  for (const Shape& s : shapes) {
    CAPTURE(s.seq_q);
    CAPTURE(s.seq_k);
    const Question question = question_of(s.heads, s.seq_q, s.seq_k, s.dim, false);
    const Ledger before = ledger_of("11", question), l = ledger_of("20", question);
    const auto heads = static_cast<uint64_t>(s.heads), Nq = static_cast<uint64_t>(s.seq_q),
               Nk = static_cast<uint64_t>(s.seq_k), d = static_cast<uint64_t>(s.dim);
    const uint64_t Tr = blocks(s.seq_q), Tc = blocks(s.seq_k);
    CHECK(l.global_written == heads * (2 * Nq * d + 4 * Nq));
    CHECK(asked(l) == heads * (4 * Nq * d + 4 * Tr * Nk * d + 4 * Nq));
    // 11 stores O Tc times, all but the last in float and with l and m.
    CHECK(before.global_written == heads * ((Tc - 1) * (4 * Nq * d + 8 * Nq) + 2 * Nq * d + 4 * Nq));
    CHECK(asked(before) == heads * ((10 * Tc - 6) * Nq * d + 4 * Nk * d + 16 * (Tc - 1) * Nq + 4 * Nq));
    // What is computed stays.
    CHECK(l.tensor_flops == before.tensor_flops);
    CHECK(l.exponentials == before.exponentials);
    CHECK(l.divisions == before.divisions);
    CHECK(l.barriers == before.barriers);
    CHECK(l.ctas == heads);
    // 11 rescales the rows that it loads again, 20 all that it has registers for, those beyond the last query too.
    CHECK(before.rescales == heads * Nq * Tc * d);
    CHECK(l.rescales == heads * Tr * Br * Tc * d);
  }
}

TEST_CASE("20: raw traffic in units of N d need not fall, and with float O it does") {
  // One block of keys: 11 makes no round trip either, and 20 reads K and V for each of six query blocks.
  const Question few_keys = question_of(1, 333, 64, 64, false);
  CHECK(asked(ledger_of("20", few_keys)) > asked(ledger_of("11", few_keys)));
  const Question many_keys = question_of(1, 256, 256, 64, false);
  CHECK(asked(ledger_of("20", many_keys)) < asked(ledger_of("11", many_keys)));
}

TEST_CASE("21: one division a row instead of Tc") {
  for (const Shape& s : shapes) {
    CAPTURE(s.seq_q);
    CAPTURE(s.seq_k);
    const Question question = question_of(s.heads, s.seq_q, s.seq_k, s.dim, false);
    const Ledger before = ledger_of("20", question), l = ledger_of("21", question);
    const auto heads = static_cast<uint64_t>(s.heads), rows = heads * static_cast<uint64_t>(s.seq_q);
    CHECK(before.divisions == rows * blocks(s.seq_k));
    CHECK(l.divisions == rows);  // one lane a row takes the reciprocal
    CHECK(before.exponentials - l.exponentials == rows * blocks(s.seq_k));  // the factor of P~ V is gone
    CHECK(before.scalar_flops > 0);
    CHECK(l.scalar_flops == 0);
    CHECK(l.rescales == before.rescales);
    CHECK(asked(l) == asked(before));
    CHECK(l.tensor_flops == before.tensor_flops);
  }
}

TEST_CASE("22: the rescales are those that the scores demand") {
  for (bool causal : {false, true})
    for (const char* input : {"gaussian", "growing", "zeros_q"}) {
      CAPTURE(input);
      CAPTURE(causal);
      const Question question = question_of(1, 203, 330, 64, causal, input);
      const Ledger before = ledger_of("21", question), l = ledger_of("22", question);
      CHECK(l.rescales == rescales_of(question, 4));
      CHECK(l.rescales <= before.rescales);
      CHECK(asked(l) == asked(before));
      CHECK(l.exponentials == before.exponentials);
      CHECK(l.divisions == before.divisions);
      CHECK(l.barriers == before.barriers);
      // The grouping matters: the same scores demand another number if each row had a branch of its own.
      if (input == std::string("gaussian")) CHECK(l.rescales != rescales_of(question, 1));
    }
}

TEST_CASE("22: on independent scores the rescales are within a tenth of the formula") {
  const int64_t N = 1024, d = 64, T = N / Bc, r = 4;
  const Question question = question_of(1, N, N, d, false);
  const Ledger l = ledger_of("22", question);
  CHECK(l.rescales == rescales_of(question, r));
  double chances = 0, own_branch = 0;  // expected rescales of r rows together, and of a single row
  for (int64_t j = 2; j <= T; ++j) {
    const double stays = 1 - 1 / static_cast<double>(j);
    chances += 1 - std::pow(stays, r);
    own_branch += 1 - stays;
  }
  const double counted = static_cast<double>(l.rescales) / static_cast<double>(N * d);
  MESSAGE("rescales of a group of 4 rows: counted " << counted << ", formula " << chances << ", of " << T - 1);
  CHECK(std::fabs(counted - chances) <= 0.1 * chances);
  CHECK_FALSE(std::fabs(counted - own_branch) <= 0.1 * own_branch);
}

TEST_CASE("23: Tr times as many CTAs ask for the same bytes") {
  for (const Shape& s : shapes)
    for (bool causal : {false, true}) {
      CAPTURE(s.seq_q);
      CAPTURE(causal);
      const Question question = question_of(s.heads, s.seq_q, s.seq_k, s.dim, causal);
      const Ledger before = ledger_of("21", question), l = ledger_of("23", question);
      const auto heads = static_cast<uint64_t>(s.heads);
      CHECK(before.ctas == heads);
      CHECK(l.ctas == heads * blocks(s.seq_q));
      CHECK(l.global_read == before.global_read);
      CHECK(l.global_written == before.global_written);
      CHECK(l.tensor_flops == before.tensor_flops);
      CHECK(l.exponentials == before.exponentials);
      CHECK(l.divisions == before.divisions);
      CHECK(l.rescales == before.rescales);
      CHECK(before.barriers - l.barriers == heads * blocks(s.seq_q));  // no next query block to wait for
    }
}
