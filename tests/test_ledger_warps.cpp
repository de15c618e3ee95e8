/// @file
/// Steps 24 to 26: what each idea saves, as equalities of the ledger. A "pair" is a query block and a key block that are
/// multiplied.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "steps/course/check.h"
#include "steps/course/steps.h"

namespace {

using attention::Problem;
using course::Machine;
using simulator::Ledger;

constexpr uint64_t half = 2, single = 4;  // bytes
constexpr uint64_t warps = 4, threads = 128;

// The problems: whole blocks and tails, both masks, both dimensions.
const std::vector<Problem> problems = {
    {1, 2, 256, 256, 64, false, 0.125f},   {1, 1, 256, 256, 128, false, 0.088f}, {2, 1, 256, 256, 64, true, 0.125f},
    {1, 1, 256, 256, 128, true, 0.088f},   {1, 1, 130, 200, 64, false, 0.125f},  {1, 1, 100, 333, 128, true, 0.088f},
    {1, 1, 300, 150, 64, true, 0.125f},    {1, 1, 70, 0, 128, false, 0.088f}};

std::string words(const Problem& p) {
  return "Sq=" + std::to_string(p.seq_q) + " Sk=" + std::to_string(p.seq_k) + " D=" + std::to_string(p.dim) +
         (p.causal ? " causal" : " full");
}

// What one run of a step counts. Every step runs once a problem.
Ledger count(const std::string& number, const Problem& p) {
  static std::map<std::string, Ledger> known;
  const std::string key = number + " " + words(p);
  if (!known.contains(key)) {
    const auto outcome = check(course::find_step(number).library(Machine::simulated),
                               course::ask(p, course::make_inputs("gaussian", p, 1)));
    REQUIRE_MESSAGE(outcome.right(), key << ": " << outcome.message);
    known[key] = outcome.ledger;
  }
  return known[key];
}

// Blocks of a problem, of all its heads.
struct Blocks {
  uint64_t query = 0;       // query blocks: CTAs
  uint64_t loaded = 0;      // query blocks that see a key, and so load Q
  uint64_t pairs = 0;       // pairs of blocks that are multiplied
  uint64_t key_rows = 0;    // rows of K in them, without those past the end
  uint64_t query_rows = 0;  // rows of Q that are loaded
};
Blocks blocks_of(const Problem& p, int64_t Br, int64_t Bc) {
  Blocks b;
  for (int64_t first = 0; first < p.seq_q; first += Br) {
    const int64_t last = std::min(first + Br, p.seq_q) - 1;
    const int64_t seen = p.causal ? std::clamp<int64_t>(last + p.seq_k - p.seq_q + 1, 0, p.seq_k) : p.seq_k;
    const int64_t pairs = (seen + Bc - 1) / Bc;
    b.query += 1;
    b.loaded += pairs > 0;
    b.pairs += static_cast<uint64_t>(pairs);
    b.key_rows += static_cast<uint64_t>(std::min(pairs * Bc, p.seq_k));
    b.query_rows += pairs > 0 ? static_cast<uint64_t>(last - first + 1) : 0;
  }
  const auto heads = static_cast<uint64_t>(p.batch * p.heads);
  return {heads * b.query, heads * b.loaded, heads * b.pairs, heads * b.key_rows, heads * b.query_rows};
}

// ldmatrix_x4 reads four matrices of eight rows of 16 bytes.
constexpr uint64_t ldmatrix_bytes = 512;

}  // namespace

TEST_CASE("24 split_q: no exchange between warps, two barriers a pair, the bytes of 23") {
  for (const Problem& p : problems) {
    CAPTURE(words(p));
    const Ledger before = count("23", p), l = count("24", p);
    const auto d = static_cast<uint64_t>(p.dim);
    const Blocks b = blocks_of(p, 64, 64);

    // All that is written to shared memory are the tiles, and all that is read are fragments of them.
    const uint64_t tiles = (b.loaded + 2 * b.pairs) * 64 * d * half;
    CHECK(l.shared_written == tiles);
    CHECK(l.shared_read == b.pairs * warps * 9 * (d / 16) * ldmatrix_bytes);

    // In 23, warps exchanged four partial products, maxima and sums and one factor a row; the last for the end, too.
    const uint64_t rows = 64 * single;
    CHECK(before.shared_written == tiles + b.pairs * (warps * d * rows + 2 * warps * rows + rows) + b.query * rows);
    const uint64_t fragments = b.pairs * warps * 6 * (d / 16) * ldmatrix_bytes;
    const uint64_t maxima = threads * 8 * warps * single, merge = 2 * warps * rows, parts = warps * d * rows;
    const uint64_t factors = threads * 4 * (d / 32) * single;
    CHECK(before.shared_read == fragments + b.pairs * (maxima + merge + parts + factors) + b.query * factors);

    CHECK(before.barriers == b.pairs * (3 + d / 16) + b.query);
    CHECK(l.barriers == b.pairs * 2);

    CHECK(l.global_read == before.global_read);
    CHECK(l.global_written == before.global_written);
    CHECK(l.tensor_flops == before.tensor_flops);
    CHECK(l.ctas == before.ctas);
    CHECK(l.rescales == before.rescales);
  }
}

TEST_CASE("24 split_q: 131,072 bytes a merge are gone") {
  const Problem p{1, 1, 64, 64, 128, false, 0.088f};  // one pair
  const uint64_t maxima_sums_factors = (4 + 4 + 1 + 1) * 64 * single;
  CHECK(count("23", p).shared_written - count("24", p).shared_written == 131072 + maxima_sums_factors);
}

TEST_CASE("25 swizzle: no bank conflicts, where every matrix had seven; nothing else changes") {
  for (const Problem& p : problems) {
    CAPTURE(words(p));
    const Ledger before = count("24", p), l = count("25", p);
    const uint64_t matrices = blocks_of(p, 64, 64).pairs * warps * 9 * static_cast<uint64_t>(p.dim / 16) * 4;
    CHECK(before.bank_conflicts == 7 * matrices);
    CHECK(l.bank_conflicts == 0);
    Ledger same = before;
    same.bank_conflicts = 0;
    CHECK(nlohmann::json(l) == nlohmann::json(same));
  }
}

TEST_CASE("26 async_copies: what flies, and what larger blocks save") {
  for (const Problem& p : problems) {
    CAPTURE(words(p));
    const Ledger l = count("26", p);
    const auto d = static_cast<uint64_t>(p.dim);
    const uint64_t Br = 128, Bc = d == 64 ? 128 : 64;
    const Blocks b = blocks_of(p, Br, d == 64 ? 128 : 64);

    // Q once a query block, K and V once a pair, in pieces of eight halves; rows past the end as well, as zeros.
    const uint64_t copies = (b.loaded * Br + 2 * b.pairs * Bc) * d / 8;
    CHECK((l.copy_instructions > 0) == (p.seq_k > 0));
    CHECK(l.copy_instructions == copies);
    CHECK(l.shared_written == copies * 16);

    // Bytes past the end are not asked for.
    CHECK(l.global_read == (b.query_rows + 2 * b.key_rows) * d * half);
    CHECK(l.global_written == static_cast<uint64_t>(p.query_rows()) * (d * half + single));
    CHECK(l.barriers == 2 * b.pairs);
    CHECK(l.bank_conflicts == 0);
    // Every fragment of K and V serves two row tiles: d / 16 x (2 of Q + Bc / 16 of K) and Bc / 16 x d / 16 of V.
    CHECK(l.shared_read == b.pairs * warps * (d / 16) * (2 + Bc / 8) * ldmatrix_bytes);
  }

  // Full mask and whole blocks: (2 + 2 Tr) N d elements, with Tr half as large as before; 4 N bytes of LSE.
  const Problem p{1, 1, 256, 256, 128, false, 0.088f};
  const auto asked = [&](const char* step) { return count(step, p).global_read + count(step, p).global_written; };
  CHECK(asked("25") == (2 + 2 * 4) * 256 * 128 * half + 4 * 256);
  CHECK(asked("26") == (2 + 2 * 2) * 256 * 128 * half + 4 * 256);
}
