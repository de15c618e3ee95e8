/// @file
/// Every step against the exact answer, the closed forms and the twins' byte counts.
///
/// The machine is the simulated GPU, or with FLASH_TEST_MACHINE=gpu the real one (exit 77 where there is none).
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>

#include "reference_cpu/twins.h"
#include "steps/course/check.h"
#include "steps/course/npy.h"
#include "steps/course/step_library.h"
#include "steps/course/steps.h"
#include "tests/chosen_machine.h"
#include "tests/chosen_steps.h"

namespace {

using attention::Dtype;
using attention::Problem;
using course::Machine;
using course::Outcome;
using course::Question;
using course::Step;
using simulator::Schedule;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<Step> steps() {
  const std::vector<Step> chosen = chosen_steps();
  REQUIRE(!chosen.empty());
  return chosen;
}

std::string precision(const Step& step) { return course::StepLibrary(step.library(machine())).precision(); }

// d = 64 and 128 are for every step, 256 from 36 on; BF16 from 40 on.
bool takes(const Step& step, const Problem& p) {
  return (p.dim <= 128 || step.number() >= "36") && (p.dtype == Dtype::fp16 || step.number() >= "40");
}

std::vector<Step> steps_that_take(const Problem& p) {
  std::vector<Step> some = steps();
  std::erase_if(some, [&](const Step& step) { return !takes(step, p); });
  return some;
}

Outcome run(const Step& step, const Question& question, Schedule schedule = Schedule::random, uint64_t seed = 1) {
  course::Setting setting;
  setting.machine = machine();
  setting.simulator.schedule = schedule;
  setting.simulator.seed = seed;
  return check(step.library(machine()), question, setting);
}

std::string words(const Problem& p) {
  return "B=" + std::to_string(p.batch) + " H=" + std::to_string(p.heads) + " Sq=" + std::to_string(p.seq_q) +
         " Sk=" + std::to_string(p.seq_k) + " D=" + std::to_string(p.dim) + (p.causal ? " causal" : " full") +
         (p.dtype == Dtype::bf16 ? " bf16" : "");
}

constexpr Dtype both_types[] = {Dtype::fp16, Dtype::bf16};

// Rows of a key block of 41 and 42.
int64_t keys_of_a_block(int64_t dim, int64_t consumers) { return dim == 64 || (dim == 128 && consumers == 2) ? 128 : 80; }

// How many consumer warpgroups the launcher of 42 picks, as its function `consumers_of` says; and whether the pieces that would
// be the last wave are split.
bool splits_in_42(const Problem& p) { return !p.causal && p.seq_k >= 4096; }
int64_t consumers_in_42(const Problem& p) {
  return p.dim == 64 || (p.dim == 128 && (splits_in_42(p) || (p.causal && p.seq_q >= 2048))) ? 3 : 2;
}

// How 42 shares out its pieces, found by going through the shares of all 132 CTAs, block by block.
struct Parts {
  int64_t pieces = 0, split = 0;         // of `split` pieces the blocks are shared out
  int64_t parts = 0, rows = 0;           // what goes to the workspace, and how many of its rows are queries
  int64_t queries_again = 0;             // rows of Q that are loaded for a piece's second part, third, ...
  int64_t stored_whole = 0, without = 0; // split pieces that fall to one CTA; CTAs whose share is empty
};
Parts parts_in_42(const Problem& p) {
  const int64_t consumers = consumers_in_42(p), Br = 64 * consumers, Bc = keys_of_a_block(p.dim, consumers), ctas = 132;
  const int64_t Tr = (p.seq_q + Br - 1) / Br, Tc = (p.seq_k + Bc - 1) / Bc;
  Parts result{.pieces = p.batch * p.heads * Tr};
  if (!splits_in_42(p)) return result;
  result.split = result.pieces % ctas;
  for (int64_t b = 0; b < ctas; ++b) {
    const int64_t first = b * result.split * Tc / ctas, end = (b + 1) * result.split * Tc / ctas;
    int64_t in_this_piece = 0;
    result.without += first == end;
    for (int64_t block = first; block < end; ++block) {
      ++in_this_piece;
      if (block + 1 < end && (block + 1) % Tc > 0) continue;  // the part goes on
      const int64_t i = Tr - 1 - (result.pieces - result.split + block / Tc) % Tr, rows = std::min(Br, p.seq_q - i * Br);
      result.stored_whole += in_this_piece == Tc;
      if (in_this_piece < Tc) ++result.parts, result.rows += rows;
      if (block % Tc >= in_this_piece) result.queries_again += rows;
      in_this_piece = 0;
    }
  }
  return result;
}

// How many consumer warpgroups the launcher of 41 picks, as its function `pick` says.
int64_t consumers_in_41(const Problem& p) {
  const bool three = p.causal && p.seq_q >= 2048;
  return p.dim == 64 || (p.dim == 128 && three) ? 3 : 2;
}

// How many scores 41 computes: whole blocks, but each 64 rows only those blocks of which their last row sees something. Where a
// consumer passes nothing on, it would be all blocks that the query block's last row sees.
int64_t scores_in_41(const Problem& p, bool pass = true) {
  const int64_t consumers = consumers_in_41(p), Br = 64 * consumers, Bc = keys_of_a_block(p.dim, consumers);
  int64_t blocks = 0;
  for (int64_t i = 0; i < p.seq_q; i += Br)
    for (int64_t first = i; first < i + Br; first += 64) {
      const int64_t end = std::min(p.seq_q, pass ? first + 64 : i + Br);
      if (!pass || first < p.seq_q) blocks += (p.visible_keys(end - 1) + Bc - 1) / Bc;
    }
  return p.batch * p.heads * blocks * 64 * Bc;
}

// What the twin of a step says that it moves, in bytes; -1 for a step without a twin here.
struct Twin {
  int64_t read = -1, written = -1;
  bool distinct = false;
};
Twin twin_traffic(const Step& step, const Question& q) {
  namespace tw = attention::twins;
  const std::map<std::string, std::function<tw::Output<float>(const tw::Head<float>&)>> twins = {
      {"00", [](const auto& head) { return tw::two_pass_softmax(head); }},
      {"01", [](const auto& head) { return tw::online_softmax(head); }},
      {"10", [](const auto& head) { return tw::flash_attention_1(head); }},
      {"11", [](const auto& head) { return tw::flash_attention_1(head); }},
      {"20", [](const auto& head) { return tw::flash_attention_2(head); }},
      {"26", [](const auto& head) { return tw::flash_attention_2(head, {.Br = 128, .Bc = head.d() == 64 ? 128 : 64}); }},
      {"31", [](const auto& head) {
         return tw::flash_attention_2(head, {.Br = head.d() == 64 ? 192 : 128, .Bc = head.d() == 256 ? 80 : 128});
       }},
      {"37", [](const auto& head) { return tw::flash_attention_3_fp8(head, {.Br = head.d() == 256 ? 128 : 192, .Bc = 128}); }},
      {"41", [&](const auto& head) {
         const int64_t consumers = step.number() == "42" ? consumers_in_42(q.problem) : consumers_in_41(q.problem);
         return tw::flash_attention_2(head, {.Br = 64 * consumers, .Bc = keys_of_a_block(head.d(), consumers)});
       }}};
  // Steps that move what an earlier one moves have no line of their own.
  const std::map<std::string, std::string> same = {{"21", "20"}, {"22", "20"}, {"23", "20"}, {"24", "20"},
                                                   {"25", "20"}, {"30", "26"}, {"32", "31"}, {"33", "31"},
                                                   {"34", "31"}, {"35", "31"}, {"36", "31"}, {"38", "37"},
                                                   {"40", "31"}, {"42", "41"}};
  const auto alias = same.find(step.number());
  const auto twin = twins.find(alias == same.end() ? step.number() : alias->second);
  if (twin == twins.end()) return {};
  const auto traffic =
      tw::every_head<float>(q.problem, q.inputs.Q.data(), q.inputs.K.data(), q.inputs.V.data(), twin->second).traffic;
  Twin result{traffic.read, traffic.written, step.number() < "10"};
  if (step.number() >= "36") {
    const Problem& p = q.problem;
    const bool fp8 = precision(step) != "fp16";
    const int64_t Br = step.number() == "42"   ? 64 * consumers_in_42(p)
                       : step.number() == "41" ? 64 * consumers_in_41(p)
                       : p.dim == 64 || (fp8 && p.dim == 128) ? 192 : 128;
    const int64_t heads = p.batch * p.heads, Tr = (p.seq_q + Br - 1) / Br;
    // Every piece of work is taken by adding to a counter of 4 bytes (the ledger has that as written), which is cleared
    // before, but from 41 on only if they differ; and Q is loaded even where a query block sees no key, so that its barriers keep
    // step with the work.
    if (step.number() < "41" || p.causal) result.written += heads * Tr * 4 + 4;
    for (int64_t i = 0; i < Tr; ++i) {
      const int64_t end = std::min(p.seq_q, (i + 1) * Br);
      if (p.visible_keys(end - 1) == 0) result.read += heads * (end - i * Br) * p.dim * (fp8 ? 1 : 2);
    }
    if (step.number() == "42") {
      const Parts parts = parts_in_42(p);
      // A part is Br rows of m, l and O. The merge asks for the rows that are queries: O once, m and l in all 32 lanes.
      result.written += parts.parts * Br * (8 + 4 * p.dim);
      result.read += parts.rows * (32 * 8 + 4 * p.dim) + parts.queries_again * p.dim * 2;
    }
    // What the twin of FP8 does not count: the descales that attention reads, and the quantizer. Each step has its own.
    if (step.number() == "37") {
      result.read += heads * Tr * (Br / 64) * 128 * 3 * 4;  // every consumer thread reads three descales for a piece of work
      // The quantizer: 2 bytes an element, twice; 1 byte. A chunk's CTA writes its largest, and reads those of its head.
      for (int64_t rows : {p.seq_q, p.seq_k, p.seq_k}) {
        const int64_t count = rows * p.dim, chunks = (count + 32767) / 32768;
        result.read += heads * (4 * count + chunks * chunks * 4);
        result.written += heads * (count + chunks * 4) + (count > 0 ? heads * 4 : 0);
      }
    }
    if (step.number() == "38") {
      // A block of 128 rows is read once with 2 bytes an element, and written with 1, V's last one up to its end; each has a
      // descale.
      const int64_t K_blocks = (p.seq_k + 127) / 128, V_end = K_blocks * 128;
      result.read += heads * 2 * (p.seq_q + 2 * p.seq_k) * p.dim;
      result.written += heads * (p.seq_q + p.seq_k + V_end) * p.dim + heads * ((p.seq_q + 127) / 128 + 2 * K_blocks) * 4;
      for (int64_t i = 0; i < Tr; ++i) {
        const int64_t end = std::min(p.seq_q, (i + 1) * Br), blocks = (p.visible_keys(end - 1) + 127) / 128;
        // A consumer thread reads two descales for a key block, and one of Q if its warpgroup has a row.
        result.read += heads * 128 * 4 * (Br / 64 * 2 * blocks + (end - i * Br + 63) / 64);
        if (blocks == K_blocks) result.read += heads * (V_end - p.seq_k) * p.dim;  // the zeros behind V's last key
      }
    }
  }
  return result;
}

void check_ledger(const Step& step, const Question& question, const simulator::Ledger& l) {
  const Twin twin = twin_traffic(step, question);
  if (twin.read < 0) return;
  CHECK(static_cast<int64_t>(twin.distinct ? l.global_read_distinct : l.global_read) == twin.read);
  CHECK(static_cast<int64_t>(twin.distinct ? l.global_written_distinct : l.global_written) == twin.written);
  if (step.number() == "41") {
    // Two products of 2d FLOPs a score, and an exponential. Where a warp replaces its maxima, its lanes compute two each, `keep`
    // of their two rows, and multiply 16 rows of O.
    const Problem& p = question.problem;
    const int64_t scores = scores_in_41(p);
    CHECK(static_cast<int64_t>(l.tensor_flops) == scores * 4 * p.dim);
    CHECK(static_cast<int64_t>(l.exponentials) == scores + static_cast<int64_t>(l.rescales) * 64 / (16 * p.dim));
  }
}

}  // namespace

TEST_CASE("every step is right at every shape, and moves the bytes that its twin counts") {
  struct Shape {
    int64_t batch, heads, seq_q, seq_k;
  };
  const std::vector<Shape> shapes = {{1, 1, 1, 1},     {2, 2, 63, 65},  {1, 2, 128, 128}, {1, 3, 239, 1},    {3, 1, 1, 130},
                                     {1, 2, 113, 203}, {2, 1, 203, 113}, {1, 1, 799, 3},   {1, 1, 1023, 1024}, {2, 3, 64, 0},
                                     {1, 2, 65, 64},   {1, 1, 17, 333},  {1, 1, 2, 4200}};
  const auto& inputs = course::input_kinds();
  size_t turn = 0;
  for (const Shape& s : shapes)
    for (int64_t dim : {64, 128, 256})
      for (bool causal : {false, true}) {
        // The largest shape at D = 128 alone would take as long as all others together.
        if (machine() == Machine::simulated && s.seq_q > 1000 && (dim > 64) != causal) continue;
        const std::string input = inputs[turn++ % inputs.size()].name;
        const uint64_t seed = 100 + turn;
        for (Dtype dtype : both_types) {
          const Problem problem{s.batch, s.heads, s.seq_q, s.seq_k, dim, causal, attention::default_scale(dim), dtype};
          const std::vector<Step> some = steps_that_take(problem);
          if (some.empty()) continue;
          const Question question = course::ask(problem, course::make_inputs(input, problem, seed));
          for (const Step& step : some) {
            INFO(step.name, " ", words(problem), " input ", input, " seed ", seed);
            const Outcome outcome = run(step, question, Schedule::random, seed);
            CHECK_MESSAGE(outcome.right(), outcome.message);
            if (machine() == Machine::simulated && outcome.right()) check_ledger(step, question, outcome.ledger);
          }
        }
      }
}

// Every warp of a CTA reads the query block; every split leaves O, m and l of every row in float; and the merge reads them,
// m and l once for 32 columns.
TEST_CASE("27: the bytes of the partial results and of their merge" * doctest::skip(machine() == Machine::gpu)) {
  struct Shape {
    int64_t heads, seq_q, seq_k, dim, splits;
  };
  for (const Shape& s : {Shape{1, 1, 2048, 128, 16}, {2, 16, 1000, 64, 8}, {1, 5, 4200, 64, 33}, {2, 3, 128, 128, 1}}) {
    const Problem p{1, s.heads, s.seq_q, s.seq_k, s.dim, false, attention::default_scale(s.dim)};
    const Question question = course::ask(p, course::make_inputs("gaussian", p, 9));
    const int64_t rows = p.query_rows(), d = s.dim, merged = s.splits > 1 ? s.splits : 0;
    for (const Step& step : steps()) {
      if (step.number() != "27") continue;
      INFO(step.name, " ", words(p));
      const Outcome outcome = run(step, question);
      CHECK_MESSAGE(outcome.right(), outcome.message);
      CHECK(static_cast<int64_t>(outcome.ledger.global_written) == merged * rows * (4 * d + 8) + rows * (2 * d + 4));
      CHECK(static_cast<int64_t>(outcome.ledger.global_read) ==
            4 * p.key_rows() * d + s.splits * rows * 4 * 2 * d + merged * rows * (4 * d + 8 * d / 32));
    }
  }
}

TEST_CASE("every step is right with every input") {
  for (const auto& kind : course::input_kinds())
    for (auto [causal, dtype] : {std::pair{false, Dtype::fp16}, {true, Dtype::fp16}, {false, Dtype::bf16}, {true, Dtype::bf16}}) {
      const Problem problem{1, 2, 130, 150, 64, causal, attention::default_scale(64), dtype};
      const Question question = course::ask(problem, course::make_inputs(kind.name, problem, 7));
      for (const Step& step : steps_that_take(problem)) {
        INFO(step.name, " ", words(problem), " input ", kind.name);
        const Outcome outcome = run(step, question);
        CHECK_MESSAGE(outcome.right(), outcome.message);
      }
    }
}

TEST_CASE("every step agrees in all schedules" * doctest::skip(machine() == Machine::gpu)) {
  struct Shape {
    int64_t seq_q, seq_k, dim;
    bool causal;
  };
  // The last has so many query blocks that 27 does not split the keys: its warps go around their rings.
  for (const Shape& s : {Shape{65, 63, 64, false}, Shape{130, 130, 64, true}, Shape{70, 129, 128, true}, Shape{33, 200, 128, false},
                         Shape{1064, 450, 128, true}, Shape{150, 200, 256, true}}) {
    const Problem problem{1, 2, s.seq_q, s.seq_k, s.dim, s.causal, attention::default_scale(s.dim)};
    const Question question = course::ask(problem, course::make_inputs("gaussian", problem, 3));
    for (const Step& step : steps_that_take(problem)) {
      if (s.seq_q > 1000 && step.number() < "10") continue;  // their scores would take half a minute
      for (auto [schedule, seed] : {std::pair{Schedule::early, 1}, {Schedule::late, 1}, {Schedule::random, 1}, {Schedule::random, 2}}) {
        INFO(step.name, " ", words(problem), " schedule ", static_cast<int>(schedule), " seed ", seed);
        const Outcome outcome = run(step, question, schedule, static_cast<uint64_t>(seed));
        CHECK_MESSAGE(outcome.right(), outcome.message);
      }
    }
  }
}

TEST_CASE("36: more pieces of work than SMs, in sections of heads, the last of which is smaller") {
  for (const Problem& p : {Problem{1, 70, 130, 1000, 128, true, 0.1f}, Problem{2, 35, 200, 10, 64, false, 0.125f}})
    for (const Step& step : steps())
      if (step.number() >= "36") {
        const Outcome outcome = run(step, course::ask(p, course::make_inputs("gaussian", p, 4)));
        CHECK_MESSAGE(outcome.right(), words(p), ": ", outcome.message);
      }
}

// The tests above have short problems: at d = 128 two consumers.
TEST_CASE("41: the launcher picks by mask and length, and three consumers are right") {
  struct Shape {
    int64_t heads, seq_q, seq_k, dim;
    bool causal;
    int64_t query_blocks;  // of all heads
    bool passes;           // some consumer passes on a key block; without a mask one that has no queries
    float scale = 0.088f;
  };
  // The fewest queries for three consumers and one less, both masks; more pieces of work than SMs, at d = 256 too, where O
  // leaves through V's place; more keys than queries; and a negative scale.
  const std::vector<Shape> shapes = {
      {1, 2047, 300, 128, true, 16, true},   {1, 2048, 81, 128, true, 11, true},      {1, 2049, 333, 128, true, 11, true},
      {1, 2048, 1, 128, true, 11, true},     {13, 2100, 100, 128, true, 143, true},   {4, 8200, 161, 128, true, 172, true},
      {1, 2112, 2150, 128, true, 11, true},  {1, 2048, 81, 128, false, 16, false},    {1, 8200, 150, 128, false, 65, true},
      {1, 2047, 300, 64, true, 11, true},    {1, 2048, 300, 64, true, 11, true},      {13, 2100, 150, 64, true, 143, true},
      {1, 700, 900, 64, true, 4, true},      {1, 1, 150, 64, false, 1, true},         {1, 1, 150, 64, true, 1, true},
      {1, 2100, 90, 128, true, 11, true, -0.3f},
      {70, 200, 170, 256, true, 140, true},  {47, 300, 90, 256, false, 141, true}};
  const auto& inputs = course::input_kinds();
  size_t turn = 0;
  for (const Step& step : steps()) {
    if (step.number() != "41") continue;
    for (const Shape& s : shapes)
      for (Dtype dtype : both_types) {
        const Problem p{1, s.heads, s.seq_q, s.seq_k, s.dim, s.causal, s.scale, dtype};
        const std::string input = inputs[turn++ % inputs.size()].name;
        const Question question = course::ask(p, course::make_inputs(input, p, turn));
        INFO(step.name, " ", words(p), " input ", input);
        const Outcome outcome = run(step, question, Schedule::random, turn);
        CHECK_MESSAGE(outcome.right(), outcome.message);
        if (machine() != Machine::simulated || !outcome.right()) continue;
        check_ledger(step, question, outcome.ledger);
        CHECK((scores_in_41(p) < scores_in_41(p, false)) == s.passes);
        CHECK(outcome.ledger.ctas == static_cast<uint64_t>(std::min<int64_t>(s.query_blocks, 132) + s.causal));
      }
    // Passing on, with and without turns: in the schedules that bring out who may be a phase ahead, or behind.
    for (const Problem& p : {Problem{1, 1, 2100, 170, 128, true, 0.088f}, Problem{1, 3, 400, 300, 64, true, 0.125f},
                             Problem{1, 1, 2100, 2100, 128, true, 0.088f}, Problem{1, 70, 150, 200, 256, true, 0.0625f}}) {
      if (machine() != Machine::simulated) continue;
      const Question question = course::ask(p, course::make_inputs("gaussian", p, 3));
      for (auto [schedule, seed] : {std::pair{Schedule::early, 1}, {Schedule::late, 1}, {Schedule::random, 1}, {Schedule::random, 2}}) {
        INFO(step.name, " ", words(p), " schedule ", static_cast<int>(schedule), " seed ", seed);
        const Outcome outcome = run(step, question, schedule, static_cast<uint64_t>(seed));
        CHECK_MESSAGE(outcome.right(), outcome.message);
      }
    }
  }
}

TEST_CASE("42: pieces are split over their keys, and the parts are merged") {
  struct Shape {
    int64_t heads, seq_q, seq_k, dim;
    const char* input = "gaussian";
    float scale = 0.1f;
    bool causal = false;
  };
  const std::vector<Shape> shapes = {
      {1, 1, 4095, 64},                      // too few keys: nothing is split
      {1, 1, 4096, 64, "growing"},           // 32 blocks: 100 CTAs have none
      {2, 200, 4200, 64, "gaussian", -0.1f}, // 4 pieces of 33 blocks: one for each CTA; the last is not full
      {5, 1, 4200, 64, "fingerprint"},       // 165 blocks: a CTA has the end of a piece and the beginning of the next
      {1, 3, 20000, 64, "growing", 2},       // many keys, scores that rise by more than the slack
      {3, 40, 4100, 64, "outliers", 1e6f},   // scores of millions
      {2, 200, 4200, 128, "growing"},        {1, 193, 4177, 128, "negative", 4},
      {3, 1, 4300, 128, "last_key_wins"},    {1, 50, 4097, 128, "gaussian", 0},
      {5, 1, 4200, 256, "gaussian"},         {1, 130, 4300, 256, "growing", -0.1f},
      {2, 1, 4097, 256, "gaussian", 0},      {1, 70, 4200, 64, "gaussian", 0.1f, true},
      {2, 3, 4200, 256, "growing", 0.1f, true}};
  for (const Step& step : steps()) {
    if (step.number() != "42") continue;
    uint64_t seed = 0;
    for (const Shape& s : shapes)
      for (Dtype dtype : both_types) {
        const Problem p{1, s.heads, s.seq_q, s.seq_k, s.dim, s.causal, s.scale, dtype};
        const Question question = course::ask(p, course::make_inputs(s.input, p, ++seed));
        INFO(step.name, " ", words(p), " input ", s.input, " scale ", s.scale);
        const Outcome outcome = run(step, question, static_cast<Schedule>(seed % 3), seed);
        CHECK_MESSAGE(outcome.right(), outcome.message);
        if (machine() != Machine::simulated || !outcome.right()) continue;
        check_ledger(step, question, outcome.ledger);
        // One launch more where parts are merged, four rows a CTA.
        const Parts parts = parts_in_42(p);
        const int64_t merge_ctas = parts.split * 16 * consumers_in_42(p);
        CHECK(static_cast<int64_t>(outcome.ledger.ctas) ==
              (parts.split > 0 ? 132 : std::min<int64_t>(parts.pieces, 132)) + merge_ctas + s.causal);
        CHECK(static_cast<int64_t>(outcome.ledger.launches) == 1 + (parts.split > 0) + s.causal);
      }
  }
}

// A part that sees only scores of -infinity has m = lowest and l = 0; a NaN in one part's V, or in a query, is one in the result.
TEST_CASE("42: parts with scores of -infinity, with NaN, and the same bits in all schedules") {
  for (const Step& step : steps()) {
    if (step.number() != "42") continue;
    for (int64_t dim : {64, 128, 256})
      for (const char* what : {"-infinity for 3000 keys", "NaN in V", "NaN in Q", "infinity in V"}) {
        const Problem p{1, 1, 5, 4200, dim, false, 0.1f};
        course::Inputs inputs = course::make_inputs("gaussian", p, 2);
        const auto d = static_cast<size_t>(dim);
        if (what[0] == '-')
          for (size_t i = 0; i < 5; ++i) inputs.Q[i * d] = attention::to_half(i < 3 ? 1 : 0.5f);
        if (what[0] == '-')
          for (size_t j = 1000; j < 4000; ++j) inputs.K[j * d] = 0xFC00;
        if (std::string(what) == "NaN in V") inputs.V[2500 * d + 7] = 0x7E00;
        if (std::string(what) == "NaN in Q") inputs.Q[2 * d + 7] = 0x7E00;
        if (std::string(what) == "infinity in V") inputs.V[100 * d + 7] = 0x7C00;
        const Question question = course::ask(p, inputs);
        INFO(step.name, " ", words(p), " ", what);
        double margin = -1;
        for (Schedule schedule : {Schedule::early, Schedule::late, Schedule::random}) {
          const Outcome outcome = run(step, question, schedule);
          CHECK_MESSAGE(outcome.right(), outcome.message);
          if (margin >= 0 && machine() == Machine::simulated) CHECK(outcome.verdict.margin == margin);
          margin = outcome.verdict.margin;
        }
      }
  }
}

// Such a query block is through at once, and the next Q may come while some of its lanes have not even waited for theirs.
TEST_CASE("36: a CTA takes query blocks that see no key, one after the other" * doctest::skip(machine() == Machine::gpu)) {
  for (const Problem& p : {Problem{1, 75, 300, 7, 64, true, 0.125f}, Problem{1, 75, 300, 7, 128, true, 0.1f},
                           Problem{1, 15, 2100, 7, 128, true, 0.1f}, Problem{1, 75, 300, 7, 256, true, 0.1f}}) {
    std::vector<Step> some = steps();
    std::erase_if(some, [](const Step& step) { return step.number() < "36"; });
    if (some.empty()) return;
    const Question question = course::ask(p, course::make_inputs("gaussian", p, 4));
    for (const Step& step : some)
      for (uint64_t seed : {1, 2}) {
        const Outcome outcome = run(step, question, Schedule::random, seed);
        CHECK_MESSAGE(outcome.right(), step.name, " ", words(p), ": ", outcome.message);
      }
  }
}

TEST_CASE("scales: zero, negative, tiny, huge") {
  for (float scale : {0.0f, -0.125f, -3.0f, 1e-10f, 0x1p80f, -0x1p80f})
    for (Dtype dtype : both_types) {
      const Problem problem{1, 2, 70, 90, 64, true, scale, dtype};
      const Question question = course::ask(problem, course::make_inputs("gaussian", problem, 5));
      for (const Step& step : steps_that_take(problem)) {
        INFO(step.name, " ", words(problem), " scale ", scale);
        const Outcome outcome = run(step, question);
        CHECK_MESSAGE(outcome.right(), outcome.message);
      }
    }
}

TEST_CASE("BF16: numbers far beyond FP16's range") {
  const Problem problem{1, 2, 70, 150, 64, true, 0x1p-60f, Dtype::bf16};
  course::Inputs inputs = course::make_inputs("gaussian", problem, 6);
  for (auto* x : {&inputs.Q, &inputs.K, &inputs.V})
    for (uint16_t& bits : *x) bits = attention::to_bfloat16(attention::from_bfloat16(bits) * 0x1p30f);
  const Question question = course::ask(problem, inputs);
  for (const Step& step : steps_that_take(problem)) {
    const Outcome outcome = run(step, question);
    CHECK_MESSAGE(outcome.right(), outcome.message);
    CHECK(outcome.verdict.max_error > 65504);
  }
}

// --- closed forms: the expected values come from the text beside each, not from a reference ------------------------

namespace {

using Element = std::function<double(int64_t b, int64_t h, int64_t i, int64_t c)>;
using Row = std::function<double(int64_t b, int64_t h, int64_t i)>;

constexpr auto zero = [](int64_t, int64_t, int64_t, int64_t) { return 0.0; };

// In BF16 the same is asked, and O may err 8 times as much. FP8 steps are asked only where all numbers survive quantization (fp8_too): the powers of two and the largest.
struct Probe {
  const char* name;
  Problem problem;
  Element Q, K, V;
  Element O;
  Row LSE;                // empty: not checked
  double O_error;         // absolute
  double LSE_error = 2e-3;
  bool fp8_too = false;
  bool bf16_too = true;   // false where Q and K need more than BF16's 8 bits
  std::string from = {};  // the first step that is asked
};

std::vector<uint16_t> fill(const Problem& p, int64_t rows, const Element& f) {
  std::vector<uint16_t> x;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < p.dim; ++c) x.push_back(attention::to_bits(static_cast<float>(f(b, h, i, c)), p.dtype));
  return x;
}

void check_probe(const Probe& probe, const Problem& p) {
  std::vector<Step> some = steps_that_take(p);
  std::erase_if(some, [&](const Step& step) { return step.number() < probe.from; });
  if (some.empty()) return;
  Question q{p, {fill(p, p.seq_q, probe.Q), fill(p, p.seq_k, probe.K), fill(p, p.seq_k, probe.V)}, {}, {}};
  q.exact.dim = p.dim;
  q.exact.index = attention::all_rows(p);
  const attention::Rows from_reference = attention::exact(p, q.inputs.Q.data(), q.inputs.K.data(), q.inputs.V.data(), q.exact.index);
  for (size_t r = 0; r < q.exact.index.size(); ++r) {
    const int64_t row = q.exact.index[r], i = row % p.seq_q, h = row / p.seq_q % p.heads, b = row / p.seq_q / p.heads;
    for (int64_t c = 0; c < p.dim; ++c) q.exact.O.push_back(probe.O(b, h, i, c));
    q.exact.LSE.push_back(probe.LSE ? probe.LSE(b, h, i) : from_reference.LSE[r]);
  }
  q.allowed = {probe.O_error * (p.dtype == Dtype::bf16 ? 8 : 1), infinity, probe.LSE_error};
  for (const Step& step : some) {
    const bool fp8 = precision(step) != "fp16";
    if (fp8 && !probe.fp8_too) continue;
    if (fp8) q.fp8[precision(step)] = std::make_shared<Question>(Question{p, q.inputs, q.exact, q.allowed});
    INFO(probe.name, " ", words(p), " ", step.name);
    const Outcome outcome = run(step, q);
    CHECK_MESSAGE(outcome.right(), outcome.message);
  }
}

void check_probe(const Probe& probe) {
  check_probe(probe, probe.problem);
  Problem in_bf16 = probe.problem;
  in_bf16.dtype = Dtype::bf16;
  if (probe.bf16_too) check_probe(probe, in_bf16);
}

const Element value_is_key = [](int64_t, int64_t, int64_t j, int64_t) { return static_cast<double>(j); };
const Element random_up_to(double limit) {
  return [limit](int64_t b, int64_t h, int64_t i, int64_t c) {
    uint64_t x = static_cast<uint64_t>(((b * 7 + h) * 1009 + i) * 131 + c) * 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return limit * (static_cast<double>(x >> 40) / double{1 << 23} - 1);
  };
}

}  // namespace

TEST_CASE("closed form: no key at all") {
  for (bool causal : {false, true})
    check_probe({"no key: O = 0, LSE = -inf, exactly", {1, 2, 3, 0, 64, causal, 0.125f},
                 [](auto...) { return 1.0; }, zero, zero, zero, [](auto...) { return -infinity; }, 0, 0, true});
}

TEST_CASE("closed form: causal masks of both shapes") {
  check_probe({"five queries, two keys", {1, 1, 5, 2, 64, true, 0.125f}, zero, zero,
               [](int64_t, int64_t, int64_t j, int64_t) { return j ? 3.0 : 1.0; },
               [](int64_t, int64_t, int64_t i, int64_t) { return i < 3 ? 0.0 : i == 3 ? 1.0 : 2.0; },
               [](int64_t, int64_t, int64_t i) { return i < 3 ? -infinity : i == 3 ? 0.0 : std::log(2); }, 1e-3});
  check_probe({"two queries, five keys", {1, 1, 2, 5, 64, true, 0.125f}, zero, zero, value_is_key,
               [](int64_t, int64_t, int64_t i, int64_t) { return i ? 2.0 : 1.5; },
               [](int64_t, int64_t, int64_t i) { return std::log(4.0 + static_cast<double>(i)); }, 2e-3});
  check_probe({"row i is the mean of 0..i", {1, 1, 129, 129, 64, true, 0.125f}, zero, zero, value_is_key,
               [](int64_t, int64_t, int64_t i, int64_t) { return static_cast<double>(i) / 2; },
               [](int64_t, int64_t, int64_t i) { return std::log(static_cast<double>(i) + 1); }, 6.4e-2});
}

TEST_CASE("closed form: one query, one key") {
  for (int64_t dim : {64, 128, 256})
    check_probe({"O = V, bit for bit", {1, 1, 1, 1, dim, false, attention::default_scale(dim)}, [](auto...) { return 1.0; },
                 [](auto...) { return 1.0; }, [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c % 13 - 6); },
                 [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c % 13 - 6); },
                 [dim](int64_t, int64_t, int64_t) { return std::sqrt(static_cast<double>(dim)); }, 0});
}

TEST_CASE("closed form: growing scores, weights 2^j") {
  for (int64_t n : {18, 34, 66, 130}) {
    const double N = static_cast<double>(n), want = N - 2 + N / (std::exp2(N) - 1);
    check_probe({"weights 2^j", {1, 1, 1, n, 64, false, 0.69314718f},
                 [](int64_t, int64_t, int64_t, int64_t c) { return c == 0 ? 1.0 : 0.0; },
                 [](int64_t, int64_t, int64_t j, int64_t c) { return c == 0 ? static_cast<double>(j) : 0.0; }, value_is_key,
                 [want](auto...) { return want; }, [N](auto...) { return N * std::log(2) + std::log1p(-std::exp2(-N)); },
                 2e-3 * want});
  }
}

TEST_CASE("closed form: many small weights, which e4m3 holds as 2^8 P but not as P") {
  check_probe({"one weight of 1, 256 of 2^-11", {1, 1, 1, 257, 64, false, 0.69314718f},
               [](int64_t, int64_t, int64_t, int64_t c) { return c == 0 ? 1.0 : 0.0; },
               [](int64_t, int64_t, int64_t j, int64_t c) { return j > 0 && c == 0 ? -11.0 : 0.0; }, [](auto...) { return 1.0; },
               [](auto...) { return 1.0; }, [](auto...) { return std::log1p(256 * std::exp2(-11)); }, 2e-3, 2e-3, true});
}

TEST_CASE("closed form: means of powers of two") {
  for (int64_t dim : {64, 128, 256})
    check_probe({"V[j][c] = 2^(c mod 4)", {1, 2, 70, 130, dim, true, attention::default_scale(dim)}, zero, zero,
                 [](int64_t, int64_t h, int64_t, int64_t c) { return std::exp2(static_cast<double>(c % 4 + h)); },
                 [](int64_t, int64_t h, int64_t, int64_t c) { return std::exp2(static_cast<double>(c % 4 + h)); },
                 [](int64_t, int64_t, int64_t i) { return std::log(61.0 + static_cast<double>(i)); }, 4e-2, 2e-3, true});
}

TEST_CASE("closed form: one key wins by 10000") {
  check_probe({"the last of 130 keys", {1, 1, 1, 130, 64, false, 1.0f},
               [](int64_t, int64_t, int64_t, int64_t c) { return c == 0 ? 100.0 : 0.0; },
               [](int64_t, int64_t, int64_t j, int64_t c) { return j == 129 && c == 0 ? 100.0 : 0.0; }, value_is_key,
               [](auto...) { return 129.0; }, [](auto...) { return 10000.0; }, 1e-2, 2e-3 + 1e-2});
}

TEST_CASE("closed form: adding a constant to every score changes nothing but LSE") {
  for (double shift : {0.0, 512.0}) {
    const double e0 = 1, e1 = std::exp(0.5), e2 = std::exp(1.0);  // weights of j mod 3
    double sum = 0, value = 0;
    for (int j = 0; j < 70; ++j) {
      const double w = j % 3 == 0 ? e0 : j % 3 == 1 ? e1 : e2;
      sum += w;
      value += w * (j % 5);
    }
    check_probe({"shifted scores", {1, 1, 1, 70, 64, false, 0.125f},
                 [](int64_t, int64_t, int64_t, int64_t c) { return c == 0 ? 4.0 : 0.0; },
                 [shift](int64_t, int64_t, int64_t j, int64_t c) { return c == 0 ? static_cast<double>(j % 3) + shift : 0.0; },
                 [](int64_t, int64_t, int64_t j, int64_t) { return static_cast<double>(j % 5); },
                 [=](auto...) { return value / sum; }, [=](auto...) { return std::log(sum) + shift / 2; }, 4e-3, 2e-3, false, shift == 0});
  }
}

TEST_CASE("closed form: values near the end of FP16's range") {
  const Element huge = [](int64_t, int64_t, int64_t, int64_t c) { return c % 2 ? -60000.0 : 60000.0; };
  check_probe({"mean of equal huge values", {1, 1, 2, 130, 64, false, 0.125f}, zero, zero, huge, huge,
               [](auto...) { return std::log(130.0); }, 32});
  check_probe({"equal huge scores", {1, 1, 3, 130, 64, false, 1.0f}, [](auto...) { return 60000.0; },
               [](auto...) { return 60000.0; }, value_is_key, [](auto...) { return 64.5; }, {}, 0.1, infinity});
}

TEST_CASE("closed form: a NaN in a key reaches only the rows that see it") {
  const double nan = std::nan("");
  check_probe({"NaN in the last key", {1, 1, 70, 70, 64, true, 0.125f}, zero,
               [nan](int64_t, int64_t, int64_t j, int64_t) { return j == 69 ? nan : 0.0; }, value_is_key,
               [nan](int64_t, int64_t, int64_t i, int64_t) { return i == 69 ? nan : static_cast<double>(i) / 2; },
               [nan](int64_t, int64_t, int64_t i) { return i == 69 ? nan : std::log(static_cast<double>(i) + 1); }, 3.5e-2});
}

TEST_CASE("closed form: the columns of V keep their places") {
  for (int64_t dim : {64, 128, 256})
    check_probe({"V[j][c] = c", {1, 1, 67, 129, dim, false, attention::default_scale(dim)}, random_up_to(3), random_up_to(3),
                 [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c); },
                 [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c); }, {}, 3e-3 * static_cast<double>(dim)});
}

TEST_CASE("closed form: scale 0 is the plain mean, whatever Q and K hold") {
  check_probe({"scale 0", {1, 1, 66, 66, 64, true, 0.0f}, random_up_to(60000), random_up_to(60000), value_is_key,
               [](int64_t, int64_t, int64_t i, int64_t) { return static_cast<double>(i) / 2; },
               [](int64_t, int64_t, int64_t i) { return std::log(static_cast<double>(i) + 1); }, 3.3e-2});
}

TEST_CASE("closed form: batch, head and query are told apart") {
  check_probe({"fingerprint", {3, 5, 7, 9, 64, false, 0.125f},
               [](int64_t, int64_t h, int64_t i, int64_t c) { return c == 0 ? static_cast<double>(h + 1 + 8 * (i % 2)) : 0.0; },
               [](int64_t b, int64_t, int64_t j, int64_t c) { return j == 0 && c == 0 ? static_cast<double>(b + 1) : 0.0; },
               [](int64_t b, int64_t h, int64_t, int64_t) { return static_cast<double>(16 * b + h); },
               [](int64_t b, int64_t h, int64_t, int64_t) { return static_cast<double>(16 * b + h); },
               [](int64_t b, int64_t h, int64_t i) {
                 return std::log(std::exp(static_cast<double>((h + 1 + 8 * (i % 2)) * (b + 1)) / 8) + 8);
               },
               3.2e-2});
}

TEST_CASE("closed form: plain means at every number of keys") {
  for (int64_t n : {1, 63, 64, 65, 128, 129, 192, 256, 257, 320, 385, 513}) {
    const double N = static_cast<double>(n);
    check_probe({"mean", {1, 3, 65, n, 64, false, 0.125f}, zero, zero, value_is_key, [N](auto...) { return (N - 1) / 2; },
                 [N](auto...) { return std::log(N); }, 1e-3 * N});
  }
}

// So many queries, with a causal mask, that 41 picks three consumers. The first of them see no key, but in the last probe.
TEST_CASE("closed form: many queries at d = 128") {
  check_probe({"V[j][c] = c", {1, 1, 2050, 129, 128, true, 0.088f}, random_up_to(3), random_up_to(3),
               [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c); },
               [](int64_t, int64_t, int64_t i, int64_t c) { return i < 1921 ? 0.0 : static_cast<double>(c); }, {}, 0.4, 2e-3, false,
               true, "41"});
  check_probe({"V[j][c] = 2^((c + 3h) mod 7)", {1, 2, 2048, 161, 128, true, 0.088f}, zero, zero,
               [](int64_t, int64_t h, int64_t, int64_t c) { return std::exp2(static_cast<double>((c + 3 * h) % 7)); },
               [](int64_t, int64_t h, int64_t i, int64_t c) {
                 return i < 1887 ? 0.0 : std::exp2(static_cast<double>((c + 3 * h) % 7));
               },
               [](int64_t, int64_t, int64_t i) { return i < 1887 ? -infinity : std::log(static_cast<double>(i) - 1886); }, 6.4e-2,
               2e-3, false, true, "41"});
  // Of n keys the weights 2^j have the sum 2^n - 1, and with the values j (n - 2) 2^n + 2.
  check_probe({"weights 2^j", {1, 1, 2048, 130, 128, true, 0.69314718f},
               [](int64_t, int64_t, int64_t i, int64_t c) { return c == 0 && i % 2 ? 1.0 : 0.0; },
               [](int64_t, int64_t, int64_t j, int64_t c) { return c == 0 ? static_cast<double>(j) : 0.0; }, value_is_key,
               [](int64_t, int64_t, int64_t i, int64_t) {
                 const double n = static_cast<double>(i) - 1917, all = std::exp2(n);
                 return n <= 0 ? 0.0 : i % 2 ? ((n - 2) * all + 2) / (all - 1) : (n - 1) / 2;
               },
               [](int64_t, int64_t, int64_t i) {
                 const double n = static_cast<double>(i) - 1917;
                 return n <= 0 ? -infinity : i % 2 ? std::log(std::exp2(n) - 1) : std::log(n);
               },
               0.25, 2e-3, false, true, "41"});
  const double nan = std::nan("");
  check_probe({"a NaN in the last of few keys", {1, 1, 2200, 130, 128, true, 0.088f}, zero,
               [nan](int64_t, int64_t, int64_t j, int64_t) { return j == 129 ? nan : 0.0; }, value_is_key,
               [nan](int64_t, int64_t, int64_t i, int64_t) {
                 return i == 2199 ? nan : i < 2070 ? 0.0 : static_cast<double>(i - 2070) / 2;
               },
               [nan](int64_t, int64_t, int64_t i) {
                 return i == 2199 ? nan : i < 2070 ? -infinity : std::log(static_cast<double>(i) - 2069);
               },
               6.4e-2, 2e-3, false, true, "41"});
  check_probe({"row i is the mean of 0..i, modulo 2", {1, 1, 2100, 2100, 128, true, 0.088f}, zero, zero,
               [](int64_t, int64_t, int64_t j, int64_t) { return static_cast<double>(j % 2); },
               [](int64_t, int64_t, int64_t i, int64_t) { return static_cast<double>((i + 1) / 2) / static_cast<double>(i + 1); },
               [](int64_t, int64_t, int64_t i) { return std::log(static_cast<double>(i) + 1); }, 1e-3, 2e-3, false, true, "41"});
}

// So many keys that 42 splits them.
TEST_CASE("closed form: many keys and few queries") {
  for (int64_t dim : {64, 128, 256}) {
    check_probe({"mean of parts", {1, 3, 2, 4233, dim, false, 0.088f}, zero, zero,
                 [](int64_t, int64_t h, int64_t j, int64_t) { return static_cast<double>(j < 4000 ? h : 0); },
                 [](int64_t, int64_t h, int64_t, int64_t) { return static_cast<double>(h) * 4000 / 4233; },
                 [](auto...) { return std::log(4233.0); }, 4e-3, 2e-3, false, true, "42"});
    check_probe({"V[j][c] = c", {1, 1, 3, 4100, dim, false, 0.088f}, random_up_to(3), random_up_to(3),
                 [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c); },
                 [](int64_t, int64_t, int64_t, int64_t c) { return static_cast<double>(c); }, {},
                 3e-3 * static_cast<double>(dim), 2e-3, false, true, "42"});
    // Keys 0 .. 4095 have the weight 2^-12 each of the last one's, so half of the sum is one part's.
    check_probe({"half of the weight in the last part", {1, 1, 2, 4097, dim, false, 0.69314718f},
                 [](int64_t, int64_t, int64_t, int64_t c) { return c == 0 ? 1.0 : 0.0; },
                 [](int64_t, int64_t, int64_t j, int64_t c) { return c == 0 && j == 4096 ? 12.0 : 0.0; },
                 [](int64_t, int64_t, int64_t j, int64_t) { return j == 4096 ? 3.0 : 1.0; }, [](auto...) { return 2.0; },
                 [](auto...) { return 13 * std::log(2.0); }, 4e-3, 2e-3, false, true, "42"});
  }
}

namespace {

// 64 queries; Q and K are N(0, 1), V is N(mean, 1).
Question biased(double mean, int64_t keys, int64_t dim) {
  const Problem p{1, 1, 64, keys, dim, false, attention::default_scale(dim)};
  course::Inputs inputs = course::make_inputs("gaussian", p, 5);
  for (uint16_t& v : inputs.V) v = attention::to_half(attention::from_half(v) + static_cast<float>(mean));
  return course::ask(p, std::move(inputs));
}

// By how much a step's O is too large, by least squares, against exact attention of what it multiplies.
double gain_error(const Step& step, const Question& question) {
  course::Setting setting;
  setting.machine = machine();
  setting.O_file = std::filesystem::temp_directory_path() / ("gain-" + std::to_string(getpid()) + ".npy");
  const Outcome outcome = check(step.library(machine()), question, setting);
  CHECK_MESSAGE(outcome.right(), outcome.message);
  const std::vector<uint16_t> O = course::read_half_npy(setting.O_file).values;
  std::filesystem::remove(setting.O_file);
  const std::vector<double>& exact = course::answer_in(question, precision(step)).exact.O;
  REQUIRE(O.size() == exact.size());
  double product = 0, square = 0;
  for (size_t i = 0; i < O.size(); ++i) {
    product += attention::from_half(O[i]) * exact[i];
    square += exact[i] * exact[i];
  }
  return product / square - 1;
}

}  // namespace

// The tensor core's sums of FP8 products are narrow. With one sum for all keys, O shrinks if V has a mean; the numbers are
// those of FlashAttention-3's FP8 kernel on an H200. With a sum for each block it does not.
TEST_CASE("FP8: the size of O where V has a mean") {
  std::vector<Step> fp8;
  for (const Step& step : steps())
    if (precision(step) != "fp16") fp8.push_back(step);
  if (fp8.empty()) return;
  const std::map<int64_t, double> known = {{1024, -0.010}, {2048, -0.023},  {4096, -0.050},
                                           {8192, -0.101}, {16384, -0.185}, {32768, -0.302}};
  auto affordable = [](int64_t dim, double mean, int64_t keys) {
    if (machine() == Machine::simulated) return keys == 1024 || (keys == 4096 && dim == 128);
    return mean == 1 || keys == 8192 || keys == 32768;
  };
  for (int64_t dim : {64, 128, 256})
    for (double mean : {0.0, 1.0, 4.0})
      for (const auto& [keys, known_gain] : known) {
        if (!affordable(dim, mean, keys)) continue;
        const Question question = biased(mean, keys, dim);
        for (const Step& step : fp8) {
          const double gain = gain_error(step, question);
          INFO(step.name, " d=", dim, " keys=", keys, " mean=", mean, " gain error=", gain);
          std::printf("%s d=%d keys=%d mean=%g: gain error %.3f %%\n", step.name.c_str(), static_cast<int>(dim),
                      static_cast<int>(keys), mean, 100 * gain);
          const bool two_level = precision(step).find("two_level") != std::string::npos;
          if (two_level) CHECK(std::fabs(gain) < 0.002);
          else if (mean == 0) CHECK(std::fabs(gain) < 0.005);
          else if (mean == 1) CHECK(std::fabs(gain - known_gain) < 0.003 - 0.1 * known_gain);
          else CHECK(gain < known_gain);
        }
      }
}

// One key has half of all weight, and 2^n keys share the rest. e4m3 rounds 2^-10 to 0, so weights of 2^-18 of the largest are
// lost where P is 2^8 times as large, and those of 2^-14 where there must be room for a slack.
TEST_CASE("FP8: how small a weight may be") {
  for (int n : {13, 14})
    for (const Step& step : steps()) {
      if (precision(step) == "fp16") continue;
      const int64_t keys = (int64_t{1} << n) + 1;
      const Problem p{1, 1, 1, keys, 64, false, 0.69314718f};
      const Element last_is_0 = [=](int64_t, int64_t, int64_t j, int64_t) { return j < keys - 1 ? 1.0 : 0.0; };
      Question q{p, {fill(p, 1, [](auto, auto, auto, int64_t c) { return c == 0 ? 1.0 : 0.0; }),
                     fill(p, keys, [&](auto, auto, int64_t j, int64_t c) { return c == 0 && j < keys - 1 ? -n : 0.0; }),
                     fill(p, keys, last_is_0)}, {}, {}};
      q.exact = {p.dim, {0}, std::vector<double>(64, 0.5), {std::log(2.0)}};
      const bool two_level = precision(step).find("two_level") != std::string::npos;
      q.allowed = {two_level ? 2e-3 : 0.25, infinity, 2e-3};  // one narrow accumulator loses much of so many equal terms
      const bool lost = n >= 14 && precision(step).find("slack") != std::string::npos;
      if (lost) q.exact.O.assign(64, 0), q.exact.LSE = {0};
      q.fp8[precision(step)] = std::make_shared<Question>(q);
      INFO(step.name, " 2^", n, " keys");
      const Outcome outcome = run(step, q);
      CHECK_MESSAGE(outcome.right(), outcome.message);
    }
}

TEST_CASE("FP8: the smallest and the largest numbers, zeros, and what is not finite, seen and hidden") {
  const Element signs = [](int64_t b, int64_t h, int64_t i, int64_t c) { return random_up_to(1)(b, h, i, c) < 0 ? -1.0 : 1.0; };
  auto times = [](Element f, double by) { return [=](auto... at) { return f(at...) * by; }; };
  struct Case {
    std::string name;
    Element Q, K, V;
    float scale;
  };
  const double infinite = infinity, nan = std::nan("");
  auto with = [](Element f, int64_t row, int64_t column, double x) {
    return [=](int64_t b, int64_t h, int64_t i, int64_t c) { return i == row && c == column ? x : f(b, h, i, c); };
  };
  const Element some = random_up_to(2);
  const Case cases[] = {
      {"smallest", times(signs, 0x1p-24), times(signs, 0x1p-24), times(signs, 0x1p-24), 0x1p44f},
      {"largest", random_up_to(60000), random_up_to(60000), random_up_to(60000), 0x1p-35f},
      {"largest and a large scale", random_up_to(60000), random_up_to(60000), random_up_to(60000), 0x1p80f},
      {"equal and largest", [](auto...) { return 60000.0; }, [](auto...) { return 60000.0; }, some, -0x1p80f},
      {"zeros", zero, zero, zero, 0.125f},
      {"scale 2^-80", some, some, some, 0x1p-80f},
      {"scale 10^-42", some, some, some, 1e-42f},
      {"infinity in Q", with(some, 70, 5, infinite), some, some, 0.125f},
      {"NaN in Q", with(some, 70, 5, nan), some, some, 0.125f},
      {"infinity in a hidden key", some, with(some, 149, 5, -infinite), some, 0.125f},
      {"NaN in a key", some, with(some, 100, 5, nan), some, -0.125f},
      {"infinity in V", some, some, with(some, 5, 5, infinite), 0.125f},
      {"NaN in V", some, some, with(some, 5, 5, nan), 0.125f},
  };
  for (const Step& step : steps()) {
    if (precision(step) == "fp16") continue;
    for (int64_t dim : {64, 128, 256})
      for (const Case& c : cases) {
        const Problem p{1, 2, 145, 150, dim, true, c.scale};  // no query hides key 5
        const Question q = course::ask(p, {fill(p, 145, c.Q), fill(p, 150, c.K), fill(p, 150, c.V)});
        INFO(step.name, " ", words(p), ": ", c.name);
        const Outcome outcome = run(step, q);
        CHECK_MESSAGE(outcome.right(), outcome.message);
      }
  }
}

TEST_CASE("no query, no head, no batch: nothing to do") {
  for (const Problem& p : {Problem{1, 2, 0, 70, 64, false, 0.125f}, Problem{0, 2, 70, 70, 64, true, 0.125f},
                           Problem{1, 0, 70, 0, 128, false, 0.125f}})
    for (const Step& step : steps()) {
      const Outcome outcome = run(step, course::ask(p, course::make_inputs("gaussian", p, 1)));
      CHECK_MESSAGE(outcome.right(), step.name, " ", words(p), ": ", outcome.message);
    }
}

TEST_CASE("a step refuses what it cannot do") {
  for (const Step& step : steps()) {
    INFO(step.name);
    Problem problem{1, 1, 8, 8, 64, false, 0.125f};
    const Question good = course::ask(problem, course::make_inputs("gaussian", problem, 1));
    const course::StepLibrary library(step.library(machine()));
    for (Dtype dtype : both_types) CHECK(library.refusal(dtype).empty() == takes(step, {.dim = 64, .dtype = dtype}));
    Question bad = good;
    bad.problem.scale = std::nanf("");
    const Outcome outcome = run(step, bad);
    CHECK(outcome.kind == Outcome::Kind::refused);
    CHECK_MESSAGE(outcome.message.find("scale") != std::string::npos, outcome.message);
    const Problem wide{1, 1, 8, 8, 256, false, 0.125f}, bf16{1, 1, 8, 8, 64, false, 0.125f, Dtype::bf16};
    for (const auto& [p, part] : {std::pair{wide, "256"}, {bf16, "BF16"}}) {
      const Outcome not_by_all = run(step, course::ask(p, course::make_inputs("gaussian", p, 1)));
      CHECK(not_by_all.kind == (takes(step, p) ? Outcome::Kind::right : Outcome::Kind::refused));
      if (!takes(step, p)) CHECK_MESSAGE(not_by_all.message.find(part) != std::string::npos, not_by_all.message);
    }
  }
}

TEST_CASE("the forward pass is repeatable bit by bit, whatever the schedule" * doctest::skip(machine() == Machine::gpu)) {
  // check() compares with an allowance; here the margin itself must repeat to the last bit.
  const Problem problem{1, 2, 130, 130, 64, true, 0.125f};
  const Question question = course::ask(problem, course::make_inputs("gaussian", problem, 11));
  for (const Step& step : steps()) {
    const double margin = run(step, question, Schedule::early).verdict.margin;
    CHECK(margin > 0);
    for (uint64_t seed : {1, 2, 3}) CHECK(run(step, question, Schedule::random, seed).verdict.margin == margin);
  }
}
