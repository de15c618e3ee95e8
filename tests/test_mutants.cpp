/// @file
/// Tests of the tests: kernels that are wrong on purpose, each of which the inputs used here must reject.
///
/// Synchronization mutants are made by the simulator at run time, one for every way to alter every synchronization
/// call that ran. Semantic mutants are edits of a step's attention.cu, compiled as a student's file would be.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "steps/course/check.h"
#include "steps/course/exercise_build.h"
#include "steps/course/step_library.h"
#include "steps/course/steps.h"
#include "tests/chosen_steps.h"

namespace {

using attention::Problem;
using course::Machine;
using course::Outcome;
using course::Question;
using course::Step;
using simulator::Schedule;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  REQUIRE(file.good());
  return text.str();
}

Question question(Problem problem, const char* input) {
  if (problem.scale == 0) problem.scale = attention::default_scale(problem.dim);
  return course::ask(problem, course::make_inputs(input, problem, 1));
}

// What must reject a wrong kernel: tails, both causal shapes, several heads and batches, growing, negative and huge
// scores, an unusual scale, and NaN in a key that only the last row sees.
std::vector<Question> questions() {
  std::vector<Question> all;
  all.push_back(question({2, 2, 70, 150, 64, false, 0}, "gaussian"));
  all.push_back(question({1, 2, 70, 150, 64, true, 0}, "gaussian"));
  all.push_back(question({1, 1, 150, 70, 64, true, 0}, "gaussian"));
  all.push_back(question({1, 2, 66, 200, 64, false, 0}, "growing"));
  all.push_back(question({1, 1, 66, 200, 64, false, 20}, "growing"));
  all.push_back(question({1, 1, 150, 300, 64, false, 0}, "gaussian"));
  all.push_back(question({1, 1, 150, 300, 64, true, 1e6f}, "outliers"));
  all.push_back(question({1, 1, 30, 100, 64, false, 0}, "negative"));
  all.push_back(question({1, 1, 40, 140, 128, false, -0.3f}, "fingerprint"));
  Question huge = question({1, 1, 3, 130, 64, false, 1}, "gaussian");  // equal scores of 2 * 10^11
  std::fill(huge.inputs.Q.begin(), huge.inputs.Q.end(), attention::to_half(60000));
  std::fill(huge.inputs.K.begin(), huge.inputs.K.end(), attention::to_half(60000));
  all.push_back(course::ask(huge.problem, huge.inputs));
  for (bool in_V : {false, true}) {
    Question q = question({1, 1, 300, 300, 64, true, 0}, "gaussian");
    for (int c = 0; c < 64; ++c) (in_V ? q.inputs.V : q.inputs.K)[299 * 64 + c] = 0x7E00;
    q.exact = attention::exact(q.problem, q.inputs.Q.data(), q.inputs.K.data(), q.inputs.V.data(),
                               attention::all_rows(q.problem));
    if (in_V) {  // it may reach the rows whose block holds key 299, as in every known kernel
      q.exact.index.resize(64);
      q.exact.LSE.resize(64);
      q.exact.O.resize(64 * 64);
    }
    all.push_back(q);
  }
  all.push_back(question({1, 1, 2, 4200, 64, false, 0}, "growing"));  // more than 32 splits
  return all;
}

// The kernel of a step as it is mutated. 42 splits from 4096 keys on; here from 200 on, so that short problems are split. The
// lines keep their numbers.
std::string kernel_of(const Step& step) {
  std::string text = text_of(step.folder() / "attention.cu");
  if (step.number() != "42") return text;
  const std::string from = "constexpr int64_t enough = 4096;";
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), "constexpr int64_t enough = 200;");
}

// Its library; where that is not the step's own it is compiled, once for all tests.
std::filesystem::path library_of(const Step& step) {
  if (step.number() != "42") return step.library(Machine::simulated);
  static const struct Folder {
    std::filesystem::path path = std::filesystem::temp_directory_path() / ("early-" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
  } folder;
  const auto source = folder.path / "attention.cu", library = folder.path / "early.so";
  if (!std::filesystem::exists(library)) {
    std::ofstream(source) << kernel_of(step);
    const std::string error = course::build_kernel(source, step.name, library, 120);
    REQUIRE_MESSAGE(error.empty(), error);
  }
  return library;
}

// What makes 42 split: whole pieces before the parts, two parts a CTA, pieces that fall to one CTA, negative scales and scores.
std::vector<Question> questions_that_split() {
  return {question({1, 2, 40, 300, 64, false, -0.3f}, "gaussian"),
          question({1, 2, 200, 420, 64, false, 4}, "negative"),
          question({1, 1, 193, 900, 128, false, 0, attention::Dtype::bf16}, "outliers"),
          question({1, 2, 100, 450, 128, false, 0}, "growing"),
          question({1, 137, 1, 300, 64, false, 0}, "fingerprint"),
          question({1, 131, 1, 300, 64, false, 0}, "gaussian"),
          question({1, 5, 5, 4200, 64, false, 0}, "growing"),  // of the first of two parts of a CTA, and of the second
          question({1, 5, 1, 3500, 256, false, 0}, "gaussian")};
}

Outcome run(const std::filesystem::path& library, const Question& q, Schedule schedule, simulator::Mutant mutant = {}) {
  course::Setting setting;
  setting.simulator.schedule = schedule;
  setting.simulator.mutant = std::move(mutant);
  return check(library, q, setting);
}

}  // namespace

// ------------------------------------------------------------------------------------------- synchronization

namespace {

// Mutants that change nothing, with the reason. `line` is part of the source line that the call stands on.
struct Harmless {
  const char *step, *line, *kind, *reason;
};
const std::vector<Harmless> harmless = {};

const Harmless* find_harmless(const Step& step, const std::string& source_line, const std::string& kind) {
  for (const Harmless& h : harmless)
    if (step.number() == h.step && kind == h.kind && source_line.find(h.line) != std::string::npos) return &h;
  return nullptr;
}

std::string line_of(const std::string& text, int number) {
  std::istringstream lines(text);
  std::string line;
  for (int i = 0; i < number; ++i) std::getline(lines, line);
  return line;
}

}  // namespace

TEST_CASE("every altered synchronization call is rejected, or known to be harmless") {
  const std::vector<Question> everyone = {question({1, 1, 130, 200, 64, false, 0}, "growing"),
                                          question({1, 1, 130, 130, 128, true, 0}, "gaussian"),
                                          question({1, 1, 300, 100, 64, true, 0}, "gaussian")};
  int mutants = 0, killed = 0;
  // So many query blocks that 27 does not split the keys: its warps go around their rings.
  const Question many_blocks = question({1, 1, 2128, 450, 128, true, 0}, "gaussian");
  // So many key blocks that the rings go around, and so many query blocks that a CTA takes several.
  const Question many_keys = question({1, 1, 130, 700, 128, true, 0}, "gaussian");
  const Question many_heads = question({1, 70, 330, 100, 64, false, 0}, "gaussian");
  // Query blocks that see no key, several a CTA.
  const Question no_key = question({1, 100, 400, 7, 64, true, 0}, "gaussian");
  // So many queries, with a causal mask, that 41 picks three consumers at d = 128; the first of each pass on key blocks.
  const Question many_queries = question({1, 1, 2100, 170, 128, true, 0}, "gaussian");
  // Consumers of 41 that see nothing of the last key blocks, one of them of none, and take turns with those that do. Without
  // the __syncwarp behind their waits a lane stays behind in the random schedule.
  const Question passes = question({1, 1, 200, 450, 64, true, 0}, "gaussian");
  // Several query blocks a CTA at d = 256, where O leaves through V's place.
  const Question wide = question({1, 70, 150, 200, 256, true, 0}, "gaussian");
  for (const Step& step : chosen_steps()) {
    std::vector<Question> asked = everyone;
    if (step.number() == "27") asked.push_back(many_blocks);
    if (step.number() >= "30") asked.insert(asked.end(), {many_keys, many_heads});
    if (step.number() >= "36") asked.push_back(no_key);
    if (step.number() == "41") asked.insert(asked.end(), {passes, many_queries, wide});
    if (step.number() == "42") asked.insert(asked.end(), {passes, wide, question({1, 134, 1, 250, 256, false, 0}, "gaussian"),
                                                          question({1, 5, 2, 4200, 64, false, 0}, "growing"),
                                                          question({1, 5, 1, 3500, 256, false, 0}, "gaussian")});
    const auto library = library_of(step);
    const std::string text = text_of(step.folder() / "attention.cu");
    std::vector<simulator::SyncSite> sites;
    std::map<int, std::vector<const Question*>> reaches;  // line: the questions that come to a call there
    for (const Question& q : asked) {
      const Outcome plain = run(library, q, Schedule::early);
      REQUIRE_MESSAGE(plain.right(), step.name, ": ", plain.message);
      for (const auto& site : plain.sites) {
        auto& questions = reaches[site.line];
        if (questions.empty()) sites.push_back(site);
        if (questions.empty() || questions.back() != &q) questions.push_back(&q);
      }
    }
    CHECK(sites.empty() == (step.number() < "10"));  // whose threads share nothing
    for (const auto& site : sites)
      for (const std::string& kind : site.kinds) {
        ++mutants;
        std::string verdict;
        for (const Question* q : reaches[site.line])
          for (Schedule schedule : {Schedule::early, Schedule::late, Schedule::random}) {
            if (!verdict.empty()) break;
            const Outcome outcome = run(library, *q, schedule, {kind, site.line, site.file});
            if (!outcome.right()) verdict = outcome.message;
          }
        killed += !verdict.empty();
        const std::string line = line_of(text, site.line);
        const Harmless* excuse = find_harmless(step, line, kind);
        INFO(step.name, " line ", site.line, ", ", kind, ":", line);
        if (excuse) CHECK_MESSAGE(verdict.empty(), "listed as harmless, but rejected: ", verdict);
        else CHECK_MESSAGE(!verdict.empty(), "not rejected");
      }
  }
  std::cout << "synchronization mutants: " << killed << " of " << mutants << " rejected, " << mutants - killed
            << " harmless\n";
}

// --------------------------------------------------------------------------------------------------- semantic

namespace {

// One edit of a kernel file. `from` occurs exactly once.
struct Edit {
  std::string step, name, from, to;
};

const std::vector<Edit> edits = {
    {"00", "the last key is dropped", "for (int j = 0; j < shape.Nk; ++j)\n    if", "for (int j = 0; j < shape.Nk - 1; ++j)\n    if"},
    {"00", "softmax without the maximum", "if (m == -INFINITY) m = 0;", "m = 0;"},
    {"00", "causal mask aligned at the top left", "j <= i + Nk - Nq", "j <= i"},
    {"00", "hidden keys weigh 0 instead of being left out", "if (shape.visible(i, j)) o =", "o ="},
    {"00", "the scale is ignored", "shape.scale * dot", "0.125f * dot"},
    {"01", "O is not rescaled", "o[x] = rescale(o[x], alpha);", "o[x] = o[x];"},
    {"01", "l is not rescaled", "l = l * alpha + sum;", "l = l + sum;"},
    {"01", "the maximum is the block's, not the running one", "float m_new = fmaxf(m, score);", "float m_new = score;"},
    {"01", "the old maximum is lost before the factor is computed", "exp2_approx((m - base) * log2_e)", "exp2_approx((m_new - base) * log2_e)"},
    {"01", "keys beyond the end score 0", "s[j0 + lane] : -INFINITY", "s[j0 + lane] : 0"},
    {"10", "the last key is dropped", ": Nk; }", ": Nk - 1; }"},
    {"10", "keys beyond the end score 0", ": Nk; }", ": (Nk + Bc - 1) / Bc * Bc; }"},
    {"10", "stale maximum", "const float m_new = fmaxf(m_old, m_block);", "const float m_new = j == 0 ? m_block : m_old;"},
    {"10", "O is not rescaled", "rescale(o.x, keep_row)", "o.x"},
    {"10", "l is not rescaled", "const float l_new = keep + add * l_block;", "const float l_new = l_old + add * l_block;"},
    {"10", "O is divided by l, but the old O is not multiplied by it", "l_old * exp2_approx", "exp2_approx"},
    {"10", "the factor is inverted, as FlashAttention-2's Algorithm 1 prints it", "exp2_approx((m_old - m_new) * c)", "exp2_approx((m_new - m_old) * c)"},
    {"10", "causal off by one", "i + Nk - Nq + 1", "i + Nk - Nq"},
    {"10", "causal mask aligned at the top left", "i + Nk - Nq + 1", "i + 1"},
    {"10", "V of another head", "V += head * shape.Nk * d;", "V += (head ^ 1) % gridDim.x * shape.Nk * d;"},
    {"10", "NaN is swallowed", "shape.sign * S[r][x] : -INFINITY", "fmaxf(shape.sign * S[r][x], -1e30f) : -INFINITY"},
    {"10", "the scale is ignored", "const float c = shape.magnitude * log2_e;", "const float c = 0.125f * log2_e;"},
    {"10", "the sign of the scale is ignored", "shape.sign * S[r][x]", "S[r][x]"},
    {"10", "LSE in base 2", "+ logf(l_new)", "+ log2f(l_new)"},
    {"10", "LSE of an empty row is +inf", "LSE[i * Br + x / d] = -INFINITY", "LSE[i * Br + x / d] = INFINITY"},
    {"10", "empty query blocks are never written", "i < Tr && shape.key_blocks(i) == 0", "false"},
    {"10", "the tail is read from whatever lies behind the tensor", "if (first + row < limit) value", "value"},
    {"10", "rows past the end are written", "if (q0 + r >= shape.Nq) continue;", ""},
    {"11", "causal off by one", "i + Nk - Nq + 1", "i + Nk - Nq"},
    {"11", "one warp's sum is left out", "l_block += tiles.l[w][threadIdx.x];", "if (w < 3) l_block += tiles.l[w][threadIdx.x];"},
    {"11", "one warp's maximum is left out", "for (int w = 0; w < warps; ++w) m = fmaxf(m, tiles.m[w][r]);", "for (int w = 0; w < 1; ++w) m = fmaxf(m, tiles.m[w][r]);"},
    {"11", "K's two 8-key tiles are swapped", "a, k[0], k[1]", "a, k[2], k[3]"},
    {"11", "rows g and g + 8 of P are swapped", "P[row][2 * t + e / 2]", "P[row][2 * t + 1 - e / 2]"},
    {"11", "V is not transposed", "ldmatrix_x4_trans(v", "ldmatrix_x4(v"},
    {"20", "the two factors are exchanged", "tiles.keep[threadIdx.x] = keep * inverse;\n      tiles.add[threadIdx.x] = add * inverse;", "tiles.keep[threadIdx.x] = add * inverse;\n      tiles.add[threadIdx.x] = keep * inverse;"},
    {"20", "the last key block is left out", "j < Tc; ++j", "j + 1 < Tc; ++j"},
    {"21", "the factor is inverted, as FlashAttention-2's Algorithm 1 prints it", "exp2_approx((m - m_new) * c)", "exp2_approx((m_new - m) * c)"},
    {"21", "l is not rescaled", "l = keep * l + l_block;", "l = l + l_block;"},
    {"21", "not divided by l", "l == 0 ? 0 : reciprocal(l)", "1"},
    {"22", "only the first row of a warp is asked", "__any_sync(all_lanes, keep != 1)", "__shfl_sync(all_lanes, keep != 1 ? 1 : 0, 0)"},
    {"23", "query blocks of different heads are mixed up", "blockIdx.x / Tr;", "blockIdx.x % (gridDim.x / Tr);"},
    {"24", "rows g and g + 8 share one maximum", "float& s = S[t][e + y];", "float& s = S[t][y];"},
    {"24", "l is not rescaled", "l[e / 2] *= keep;", ""},
    {"25", "K is read without the swizzle", "tiles.K.at(key + lane / 16 * 8 + lane % 8, x + lane / 8 % 2 * 8)", "&tiles.K.data[x / 64][key + lane / 16 * 8 + lane % 8][x % 64 + lane / 8 % 2 * 8]"},
    {"26", "the mask is applied to the last block alone", "if ((j + 1) * Bc<d> > shape.visible_keys(i * Br)) {", "if (j == Tc - 1) {"},
    {"26", "the one-FFMA exponent is always taken", "!__all_sync(all_lanes, small)", "false"},
    {"26", "a negative scale is forgotten", "if (shape.sign != 1 && Tc > 0) {", "if (false) {"},
    {"27", "one warp's part is left out", "sizeof(WarpMemory<d>) / sizeof(float), warps, c);", "sizeof(WarpMemory<d>) / sizeof(float), warps - 1, c);"},
    {"27", "parts are added without their weights", "multiply_add(__shfl_sync(all_lanes, weight, a),", "multiply_add(1,"},
    {"27", "what is merged is not carried to the maximum of the next 32 splits", "all.O = rescale(all.O, keep);", ""},
    {"27", "the maximum of nothing is -infinity", "lowest = -3e38f;", "lowest = -INFINITY;"},
    {"27", "splits are merged by LSE alone", "    else partial.O[at * d + column] = part.O;\n    if (splits.count > 1 && column == 0) partial.m[at] = part.m, partial.l[at] = part.l;", "    else partial.O[at * d + column] = part.l == 0 ? 0 : part.O / part.l;\n    if (splits.count > 1 && column == 0) partial.m[at] = part.l == 0 ? lowest : part.m + log2f(part.l) / c, partial.l[at] = part.l == 0 ? 0 : 1;"},
    {"30", "the sign of the scale is forgotten where no key is hidden", "> shape.visible_keys(i * Br) || shape.sign != 1) {", "> shape.visible_keys(i * Br)) {"},
    {"30", "the box of V begins one row late", "V_map, tiles.V_full, 0, j * Bc<d>,", "V_map, tiles.V_full, 0, j * Bc<d> + 1,"},
    {"30", "the tensor map takes all heads for one", "{64, rows, d / 64, static_cast<uint64_t>(heads)}", "{64, rows * static_cast<uint64_t>(heads), d / 64, static_cast<uint64_t>(heads)}"},
    {"31", "V's groups of columns are taken to lie 8 rows apart", "descriptor(&shared.V, Bc * 128, 1024)", "descriptor(&shared.V, 1024, 1024)"},
    {"31", "every 16 columns of Q begin where the first do", "advance(Q, x / 64 * 64 * 128 + x % 64 * 2)", "advance(Q, x / 64 * 64 * 128)"},
    {"31", "S is added to the scores of the last block", "x / 64 * Bc * 128 + x % 64 * 2), x > 0);", "x / 64 * Bc * 128 + x % 64 * 2), true);"},
    {"32", "only the first tile of K's ring is read", "start_QK<d>(S, Q, advance(K, stage * sizeof shared.K[0]));", "start_QK<d>(S, Q, K);"},
    {"32", "all consumers work on the first rows", "const int first_row = i * Br<d> + 64 * w,", "const int first_row = i * Br<d>,"},
    {"33", "O is not rescaled", "      rescale_O();\n", ""},
    {"33", "the last V is left out", "    start_PV<d>(O, P, advance(V, (Tc - 1) % stages * sizeof shared.V[0]));\n", ""},
    {"34", "the factor is inverted, as FlashAttention-3's Algorithm 1 prints it", "exp2_approx((m[r] - m_new[r]) * c)", "exp2_approx((m_new[r] - m[r]) * c)"},
    {"34", "the loop ends one block early, as FlashAttention-3's Algorithm 2 prints it", "for (; j >= 0; --j) block(j, false);", "for (; j > 0; --j) block(j, false);"},
    {"34", "the blocks with hidden keys are taken for plain ones", "shape.visible_keys(first_row) / Bc : 0", "shape.visible_keys(first_row + 63) / Bc : 0"},
    {"34", "the one-FFMA exponent is always taken", "!__all_sync(all_lanes, small)", "false"},
    {"35", "rows g and g + 8 of O change places", "O[x / 2 + 2 * y + 1] * inverse[y % 2]", "O[x / 2 + 2 * y + 1] * inverse[1 - y % 2]"},
    {"35", "O is laid down without the swizzle", "stmatrix_x4(shared.Q[w].at(16 * warp + lane % 16, x + lane / 16 * 8), halves)", "stmatrix_x4(&shared.Q[w].data[x / 64][16 * warp + lane % 16][x % 64 + lane / 16 * 8], halves)"},
    {"36", "the last section of heads is taken for a whole one", "min(shape.section, shape.heads - static_cast<int>(first))", "shape.section"},
    {"36", "the counter is not cleared", "*counter = 0;", ""},
    {"36", "the first pieces of work are given out twice", "number = gridDim.x + atomicAdd(counter, 1u);", "number = atomicAdd(counter, 1u) + 1;"},
    {"37", "P is not made larger", "constexpr float P_log2 = 8; ", "constexpr float P_log2 = 0; "},
    {"37", "LSE keeps the 2^8 of P", " - P_log2 * ln_2;", ";"},
    {"37", "the keys of P stand in their own order", "pack(S[x], S[x + 1], S[x + 4], S[x + 5])", "pack(S[x], S[x + 4], S[x + 1], S[x + 5])"},
    {"37", "even and odd columns of V change places", "byte_permute(r[x][0], r[x][1], 0x6420), byte_permute(r[x][0], r[x][1], 0x7531),", "byte_permute(r[x][0], r[x][1], 0x7531), byte_permute(r[x][0], r[x][1], 0x6420),"},
    {"37", "infinity counts in the largest magnitude", "if (fabsf(both.x) < INFINITY) largest", "if (fabsf(both.x) <= INFINITY) largest"},
    {"37", "infinity becomes 448", "fabsf(value) < INFINITY ? value * factor : NAN", "value * factor"},
    {"37", "Q's factor is left out", "shape.magnitude * descales[head] * descales", "shape.magnitude * descales"},
    {"37", "the first head's factor is taken for all of Q's", "shape.magnitude * descales[head] *", "shape.magnitude * descales[0] *"},
    {"37", "V's factor is taken for K's", "* descales[shape.heads + head];", "* descales[2 * shape.heads + head];"},
    {"37", "the maximum stays where the first block left it", "m_new[r] = quad_max(m_new[r]);", "m_new[r] = m[r] == lowest ? quad_max(m_new[r]) : m[r];"},
    {"37", "the turn is handed over before it is taken", "    named_barrier_sync(own_turn, 256);                  // the consumer before has its scores\n    start_QK<d>(S, Q, advance(K, stage * sizeof shared.K[0]));\n    wgmma_wait<0>(S);                      // it is done\n    named_barrier_arrive(next_turn, 256);  // the next consumer's turn\n", "    named_barrier_arrive(next_turn, 256);\n    named_barrier_sync(own_turn, 256);\n    start_QK<d>(S, Q, advance(K, stage * sizeof shared.K[0]));\n    wgmma_wait<0>(S);\n"},
    {"37", "nobody has the first turn", "    if (threadIdx.x / 128 == consumers<d>) named_barrier_arrive(1, 256);  // the first turn is consumer 0's\n", ""},
    {"37", "a lane speaks for its warp without waiting for it", "    __syncwarp();         // the warp's part is there,\n", ""},
    {"37", "one lane fences for its warp", "    fence_proxy_async();  // the tensor core will see this thread's part of V^T,\n", "    if (threadIdx.x % 32 == 0) fence_proxy_async();\n"},
    {"37", "V is loaded before its place is empty", "    mbarrier_wait(shared.V_empty[stage], parity<d>(n) ^ 1);  // the same of V\n", ""},
    {"37", "V is full before the last warp has transposed", "mbarrier_init(shared.V_full[s], 4);", "mbarrier_init(shared.V_full[s], 3);"},
    {"37", "a pair of V's blocks is moved once too often, its partner not at all", "warp == 1 ? 0x1221", "warp == 1 ? 0x1212"},
    {"37", "two of V's blocks change places without being a pair", "warp == 0 ? 0x0110 : warp == 1 ? 0x0330", "warp == 0 ? 0x0111 : warp == 1 ? 0x0330"},
    {"37", "the diagonal of V is not transposed where d is 64", "warp % 2 ? 0x0011 : 0x0110", "warp % 2 ? 0x0000 : 0x0110"},
    {"38", "a sign of the rotation is wrong", "{0x243F6A88,", "{0x243F6A89,"},
    {"38", "the last round of sums and differences is left out", "bit < d / 8; bit *= 2", "bit < d / 16; bit *= 2"},
    {"38", "no differences, only sums, across lanes", "part & bit ? other - y[c] : y[c] + other", "y[c] + other"},
    {"38", "the rotation's length stays in the descales", "d == 64 ? 0.125f : d", "d == 64 ? 1.0f : d"},
    {"38", "V's descale is taken for a rotated tensor's", "kind == Kind::Q_or_K && rotation ? d == 64", "rotation ? d == 64"},
    {"38", "the descale of Q is that of the first block", "head * shape.Q_blocks() + first_row / Bc]", "head * shape.Q_blocks()]"},
    {"38", "the descale of Q is that of the query block's number", "first_row / Bc] : 1", "i] : 1"},
    {"38", "K's descales are those of another head", "descales + shape.heads * shape.Q_blocks() + head * shape.K_blocks();", "descales + shape.heads * shape.Q_blocks();"},
    {"38", "the descale of K is that of the block before", "fmaxf(factor * K_descales[j], smallest)", "fmaxf(factor * K_descales[max(j - 1, 0)], smallest)"},
    {"38", "the descale of V is K's", "V_descale = V_descales[j];", "V_descale = K_descales[j];"},
    {"38", "a tiny scale becomes 0", "fmaxf(factor * K_descales[j], smallest)", "factor * K_descales[j]"},
    {"38", "a block's sum is added without V's descale", "multiply_add(F[y], descale, O[x + y])", "O[x + y] + F[y]"},
    {"38", "there are no ones beside V", "{ones, ones, ones, ones};", "{};"},
    {"38", "the ones are 1.5", "constexpr unsigned ones = 0x38383838;", "constexpr unsigned ones = 0x3C3C3C3C;"},
    {"38", "l of rows g and g + 8 change places", "l[0] += F[d / 2], l[1] += F[d / 2 + 2];", "l[1] += F[d / 2], l[0] += F[d / 2 + 2];"},
    {"38", "d = 256: the third 64 columns are the second", "start_PV<d>(F, P, V, 128, false);", "start_PV<d>(F, P, V, 64, false);"},
    {"38", "only the last 32 keys of a block are summed", "accumulate || key > 0", "accumulate"},
    {"38", "weights may exceed what e4m3 holds", "constexpr float slack = 4; ", "constexpr float slack = 8; "},
    {"38", "only the first row of a warp is asked", "raised = __any_sync(all_lanes, raised);", "raised = __shfl_sync(all_lanes, raised ? 1 : 0, 0);"},
    {"38", "without a vote", "  raised = __any_sync(all_lanes, raised);\n", ""},
    {"38", "the maximum is never raised", "m_new[r] - m[r] > slack", "m_new[r] - m[r] > 1e38f && m[r] > lowest"},
    {"38", "a raised maximum may fall", "m_new[r] = fmaxf(m[r], m_new[r]);", ""},
    {"38", "O is not rescaled", "      rescale_O(1);\n", ""},
    {"38", "l is not rescaled", "      l[r] *= keep[r];\n", ""},
    {"38", "LSE keeps the 2^4 of P", "(m[r] - P_log2) * ln_2", "m[r] * ln_2"},
    {"38", "the one-FFMA exponent is always taken", "if (!small) {", "if (false) {"},
    {"38", "a negative scale is forgotten", "S[x] * shape.sign : -INFINITY", "S[x] : -INFINITY"},
    {"38", "the first key block is left out", "for (; j >= 0; --j) block(j, false);", "for (; j > 0; --j) block(j, false);"},
    {"38", "every block of V is the first", "shared.V_full[stage], 0, 0, j, head);", "shared.V_full[stage], 0, 0, 0, head);"},
    {"38", "the keys of P stand in their own order", "pack_e4m3(S[x], S[x + 1], S[x + 4], S[x + 5])", "pack_e4m3(S[x], S[x + 4], S[x + 1], S[x + 5])"},
    {"38", "the keys of V stand in their own order", "slot % 4 * 2 + e % 2 + e % 4 / 2 * 8", "slot % 4 * 4 + e % 4"},
    {"38", "infinity counts in the largest magnitude", "if (fabsf(y[e][c]) < INFINITY) largest", "if (fabsf(y[e][c]) <= INFINITY) largest"},
    {"38", "infinity becomes 448", "fabsf(y[e][c]) < INFINITY ? y[e][c] * factor : NAN", "y[e][c] * factor"},
    {"38", "each warp of the quantizer takes its own largest magnitude", "  for (int w = 0; w < threads / 32; ++w) x = fmaxf(x, of_warp[w]);\n", ""},
    {"38", "the tail of a head is quantized with the next head's rows", "if (row < N) eight =", "eight ="},
    {"38", "behind the last key of V stands NaN", "uint4 eight = {};", "uint4 eight = {0x7E007E00, 0x7E007E00, 0x7E007E00, 0x7E007E00};"},
    {"38", "a block of zeros is divided by 0", "largest > 0 ? e4m3_max / largest : 1", "e4m3_max / largest"},
    {"38", "a block that is not full is not quantized", "  const int blocks = (N + Bc - 1) / Bc;\n  if (!block_scales)", "  const int blocks = N / Bc;\n  if (blocks == 0) return;\n  if (!block_scales)"},
    {"42", "shares are rounded up", "return uint64_t{b} * blocks / ctas;", "return (uint64_t{b} * blocks + ctas - 1) / ctas;"},
    {"42", "both parts of a CTA lie in one place", "2 * cta(block) + (block / Tc > share(cta(block)) / Tc)", "2 * cta(block)"},
    {"42", "a split piece is the wrong one", "number : split.whole + block / split.Tc, shape)", "number : block / split.Tc, shape)"},
    {"42", "a piece that falls to one CTA is merged, too", " || split.cta(first) == split.cta(end - 1)", ""},
    {"42", "the second part is skipped", "return number + work.last - work.first;", "return number + split.Tc;"},
    {"42", "nobody does the parts behind whole pieces", "number + gridDim.x : split.whole + split.share(blockIdx.x);", "number + gridDim.x : split.whole + split.blocks;"},
    {"42", "the blocks before a part's first are multiplied, too", "j >= max(plain, first); --j)", "j >= plain; --j)"},
    {"42", "l of a part is one lane's", "      l[r] = quad_sum(l[r]);\n      if (q == 0) split", "      if (q == 0) split"},
    {"42", "behind a part nobody says that V's place is free", "    if (O_over_V<d> && threadIdx.x % 128 == 0) mbarrier_arrive(shared.O_stored);  // nothing lies in V's place\n", ""},
    {"42", "the last block's part is not merged", "end = first + split.Tc;  // the", "end = first + split.Tc - 1;  // the"},
    {"42", "the parts' weights are exchanged", "multiply_add(two.x, weight, rescale(sum[2 * x], keep))", "multiply_add(two.x, keep, rescale(sum[2 * x], weight))"},
    {"42", "l is merged without its weight", "l * keep + m_l.y * weight;", "l * keep + m_l.y;"},
    {"42", "what is merged is stored as FP16, also for BF16", "= pack<T>(sum", "= pack_halves(sum"},
    {"42", "LSE of a merged row has no scale", "m * shape.magnitude + logf(l);", "m + logf(l);"},
    {"42", "a causal mask is split, too", "return !p.causal && p.seq_k >= enough;", "return p.seq_k >= enough;"},
    {"42", "there is room for one part a CTA", "? 2 * device.sm_count * 64", "? device.sm_count * 64"},
    {"40", "only the first row of a warp is asked", "raised = __any_sync(all_lanes, raised);", "raised = __shfl_sync(all_lanes, raised ? 1 : 0, 0);"},
    {"40", "the maximum is never raised", "(m_new[r] - m[r]) * c > slack", "(m_new[r] - m[r]) * c > 1e30f"},
    {"40", "weights may exceed what FP16 holds", "constexpr float slack = 8;", "constexpr float slack = 20;"},
    {"40", "l is not rescaled", "      l[r] *= keep[r];\n", ""},
    {"40", "the last rescaling is forgotten", "    for (; j >= 0; --j) block(j, false);\n    if (raised) rescale_O();\n", "    for (; j >= 0; --j) block(j, false);\n"},
    {"40", "BF16 is taken for FP16", "p.dtype == Dtype::bf16", "false"},
    {"40", "Q and K in BF16 are multiplied as FP16", "wgmma<Major::k, T>", "wgmma<Major::k>"},
    {"40", "P and V in BF16 are multiplied as FP16", "wgmma<Major::mn, T>", "wgmma<Major::mn>"},
    {"40", "P is packed as FP16, also for BF16", "= pack<T>(S[2", "= pack_halves(S[2"},
    {"40", "O is stored as FP16, also for BF16", "= pack<T>(O[x", "= pack_halves(O[x"},
    // 41 passes on, and stores O through V's place: each of its waits, arrivals, counts and barriers is altered above, by the
    // simulator. Here are the edits that no call shows.
    {"41", "K is given back by two consumers of three", "shared.K_empty[s], 4 * consumers);", "shared.K_empty[s], 4 * 2);"},
    {"41", "the third consumer hands its turn to the second", "1 + (w + 1) % consumers,", "1 + (w + 1) % 2,"},
    {"41", "all consumers' barrier is the first one's own", "const int all_rows = 1 + 2 * consumers;", "const int all_rows = 1 + consumers;"},
    {"41", "three consumers' registers with two's producer", "producer_registers = consumers == 3 ? 32 :", "producer_registers = consumers == 3 ? 40 :"},
    {"41", "V's groups of columns are taken to lie 128 rows apart", "descriptor(&shared.V, Bc<d, consumers> * 128, 1024)", "descriptor(&shared.V, 128 * 128, 1024)"},
    {"41", "the third consumer's rows are the first's", "const int first_row = i * Br<consumers> + 64 * w;", "const int first_row = i * Br<consumers> + 64 * (w % 2);"},
    {"41", "a consumer needs the blocks that its first row sees", "key_blocks<d, consumers>(first_row, 64);", "key_blocks<d, consumers>(first_row, 1);"},
    {"41", "one block too many is passed on", "for (int j = all - 1; j >= Tc; --j, ++n) {", "for (int j = all - 1; j >= Tc - 1 && j >= 0; --j, ++n) {"},
    {"41", "the last block that a consumer does not need is not passed on", "for (int j = all - 1; j >= Tc; --j, ++n) {", "for (int j = all - 1; j > Tc; --j, ++n) {"},
    {"41", "all are passed on in the place of one", "for (int j = all - 1; j >= Tc; --j, ++n) {", "for (int j = all - 1; j >= Tc; --j) {"},
    {"41", "V is not passed on", "    release(shared.K_empty[n % stages]);\n    release(shared.V_empty[n % stages]);\n", "    release(shared.K_empty[n % stages]);\n"},
    {"41", "who passes on takes no turn", "if (pingpong<d> && j > 0) {", "if (false) {"},
    {"41", "d = 256: both consumers' O is in one place", "reinterpret_cast<Tile<64, d>*>(V)[w] :", "reinterpret_cast<Tile<64, d>*>(V)[0] :"},
    {"41", "Q is given back before the last Q K^T", "    for (; j >= plain; --j) block(j, true);\n", "    release(shared.Q_empty[w]);\n    for (; j >= plain; --j) block(j, true);\n"},
    {"41", "who sees no key keeps Q", "  if (Tc == 0) {\n    __syncwarp();", "  if (all == 0) {\n    __syncwarp();"},
    {"41", "the block that hides keys is taken for one that all rows see", "if (Tc > plain) hide(Tc - 1);", "if (Tc > plain + 1) hide(Tc - 1);"},
    {"41", "all pieces are taken from the counter, which is cleared for a causal mask alone", "shape.causal ? gridDim.x + atomicAdd(counter, 1u) : number + gridDim.x;", "gridDim.x + atomicAdd(counter, 1u);"},
    {"41", "BF16 is taken for FP16", "p.dtype == Dtype::bf16", "false"},
    {"36", "O is rescaled too late for the last block", "    for (; j >= 0; --j) block(j, false);\n    if (rescales_late<d>) rescale_O();\n", "    for (; j >= 0; --j) block(j, false);\n"},
};

std::string replaced(std::string text, const Edit& edit) {
  int found = 0;
  for (size_t at = text.find(edit.from); at != std::string::npos; at = text.find(edit.from, at + edit.to.size())) {
    text.replace(at, edit.from.size(), edit.to);
    ++found;
  }
  CHECK_MESSAGE(found == 1, edit.step, ", ", edit.name, ": found ", found, " places for: ", edit.from);
  return text;
}

}  // namespace

// What FP8 alone can get wrong: weights below e4m3's smallest number, infinities, which are NaN there, descales that differ from
// head to head, and maxima that rise.
std::vector<Question> questions_in_fp8() {
  Question small = question({1, 1, 1, 257, 64, false, 0.69314718f}, "gaussian");
  for (auto* x : {&small.inputs.Q, &small.inputs.K}) std::fill(x->begin(), x->end(), uint16_t{0});
  small.inputs.Q[0] = attention::to_half(1);
  for (size_t j = 1; j < 257; ++j) small.inputs.K[j * 64] = attention::to_half(-11);
  std::fill(small.inputs.V.begin(), small.inputs.V.end(), attention::to_half(1));
  Question infinite = question({1, 1, 40, 100, 64, false, 0}, "gaussian");
  infinite.inputs.V[3 * 64 + 4] = 0x7C00;
  infinite.inputs.Q[6] = 0xFC00;
  Question heads = question({1, 3, 40, 100, 64, false, 0}, "gaussian");  // whose descales differ
  for (size_t i = 0; i < heads.inputs.Q.size(); ++i) {
    const float factor = std::exp2(static_cast<float>(i / (40 * 64)));
    heads.inputs.Q[i] = attention::to_half(attention::from_half(heads.inputs.Q[i]) * factor);
  }
  for (uint16_t& x : heads.inputs.V) x = attention::to_half(attention::from_half(x) * 5);
  Question rising = question({1, 1, 40, 300, 64, false, 0}, "gaussian");  // from the last block to the first
  for (size_t j = 0; j < 300; ++j)
    for (size_t c = 0; c < 64; ++c) rising.inputs.K[j * 64 + c] = attention::to_half(c == 0 ? 2 - static_cast<float>(j / 128) : 0);
  for (size_t i = 0; i < 40; ++i) rising.inputs.Q[i * 64] = attention::to_half(10);
  std::vector<Question> all;
  for (const Question* q : {&small, &infinite, &heads, &rising}) all.push_back(course::ask(q->problem, q->inputs));
  return all;
}

// And what descales of blocks can: a block of zeros, heads and blocks of other sizes, and a scale that their product with
// descales makes 0.
std::vector<Question> questions_of_blocks() {
  std::vector<Question> all = {question({1, 1, 30, 200, 64, false, 1e-42f}, "gaussian"),
                               question({1, 2, 300, 400, 64, false, 0}, "outliers")};
  Question zeros = question({1, 2, 150, 300, 128, false, 0}, "gaussian");
  for (auto* x : {&zeros.inputs.Q, &zeros.inputs.K, &zeros.inputs.V}) std::fill_n(x->begin(), 128 * 128, uint16_t{0});
  all.push_back(course::ask(zeros.problem, zeros.inputs));
  Question sizes = question({1, 2, 300, 400, 128, true, 0}, "gaussian");
  const auto resize = [](uint16_t& bits, double by) { bits = attention::to_half(static_cast<float>(attention::from_half(bits) * by)); };
  for (size_t i = 0; i < sizes.inputs.Q.size(); ++i) resize(sizes.inputs.Q[i], std::exp2(i / (128 * 128) % 3));
  for (size_t i = 0; i < sizes.inputs.V.size(); ++i) {
    resize(sizes.inputs.K[i], std::exp2(-1.0 * static_cast<double>(i / (128 * 128) % 4)));
    resize(sizes.inputs.V[i], std::exp2(3.0 * static_cast<double>(i / (128 * 128) % 4)));
  }
  all.push_back(course::ask(sizes.problem, sizes.inputs));
  return all;
}

// What a step is asked: the same as all, and what it alone can get wrong. From 36 on: several pieces of work a CTA, sections of
// heads, d = 256; from 40 on BF16; 41's other size, which takes a causal mask, and several pieces of work at d = 256.
const std::vector<Question>& questions_of(const std::string& step) {
  static std::map<std::string, std::vector<Question>> asked;  // making one takes longer than a run
  std::vector<Question>& all = asked[step];
  if (!all.empty()) return all;
  const bool fp8 = step == "37" || step == "38";
  if (step == "38") all = questions_of_blocks();  // first what rejects most
  if (fp8)
    for (Question& q : questions_in_fp8()) all.push_back(std::move(q));
  if (step == "42") all = questions_that_split();  // first what rejects most
  if (step >= "40") {
    all.push_back(question({1, 2, 70, 150, 64, false, 0, attention::Dtype::bf16}, "gaussian"));
    all.push_back(question({1, 1, 150, 300, 128, true, 0, attention::Dtype::bf16}, "outliers"));
  }
  for (Question& q : questions()) all.push_back(std::move(q));
  if (step >= "36") {
    // 192 queries are one piece of work for an FP8 step, and so are five. 136 heads are a section.
    if (fp8) all.push_back(question({1, 140, 5, 480, 128, true, 0}, "gaussian"));
    else all.push_back(question({1, 70, 130, 1000, 128, true, 0}, "gaussian"));
    all.push_back(question({1, 70, 330, 100, 64, false, 0}, "gaussian"));
    all.push_back(question({1, 1, 40, 700, 256, false, 0}, "gaussian"));
  }
  if (step == "41") {
    // So many queries that three consumers are picked. Some of them pass on blocks, between others and one after the other.
    all.push_back(question({1, 1, 2100, 170, 128, true, 0}, "gaussian"));
    all.push_back(question({1, 1, 2048, 700, 128, true, 0, attention::Dtype::bf16}, "gaussian"));
    all.push_back(question({1, 13, 2100, 150, 64, true, 0}, "gaussian"));
    all.push_back(question({1, 3, 400, 600, 64, true, 0}, "gaussian"));
    all.push_back(question({1, 70, 150, 200, 256, true, 0}, "gaussian"));
    // Where no key is seen, a consumer may be a piece of work ahead of the other.
    all.push_back(question({1, 75, 300, 7, 256, true, 0}, "gaussian"));
  }
  return all;
}

TEST_CASE("every semantic mutant is rejected") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("mutants-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const Edit& edit : edits) {
    if (!is_chosen(edit.step)) continue;
    INFO(edit.step, ": ", edit.name);
    const Step& step = course::find_step(edit.step);
    const auto source = folder / "attention.cu", library = folder / ("mutant" + std::to_string(number++) + ".so");
    std::string text = replaced(kernel_of(step), edit);
    // Without BF16, if that is not what was altered, there is half as much to compile.
    const std::string both = "p.dtype == Dtype::bf16 ? pick<bfloat16>(p, t, device, shape) : pick<half>(p, t, device, shape);";
    const size_t at = edit.name.find("BF16") == std::string::npos ? text.find(both) : std::string::npos;
    if (at != std::string::npos) text.replace(at, both.size(), "pick<half>(p, t, device, shape);");
    std::ofstream(source) << text;
    const std::string error = course::build_kernel(source, step.name, library, 120);
    REQUIRE_MESSAGE(error.empty(), error);
    std::string verdict;
    for (Schedule schedule : {Schedule::early, Schedule::late, Schedule::random})  // most do not outlive the first
      for (const Question& q : questions_of(edit.step)) {
        if (!verdict.empty()) break;
        if (at != std::string::npos && q.problem.dtype == attention::Dtype::bf16) continue;
        const Outcome outcome = run(library, q, schedule);
        if (!outcome.right()) verdict = outcome.message;
      }
    CHECK_MESSAGE(!verdict.empty(), "not rejected");
    std::cout << edit.step << ", " << edit.name << ": " << verdict.substr(0, verdict.find('\n')) << '\n';
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("the unchanged steps pass what rejects the mutants") {
  for (const Step& step : chosen_steps()) {
    const auto library = library_of(step);
    for (const Question& q : questions_of(step.number())) {
      const Outcome outcome = run(library, q, Schedule::early);
      CHECK_MESSAGE(outcome.right(), step.name, ": ", outcome.message);
    }
  }
}

// With 4096 keys it would take minutes to have more pieces than SMs, and several parts a CTA behind them.
TEST_CASE("42: short problems, split") {
  if (!is_chosen("42")) return;
  const auto library = library_of(course::find_step("42"));
  std::vector<Question> asked = questions_that_split();
  // With Tc blocks a piece, the last CTA has a whole piece where Tc * (132 - pieces) < 132; and of 130 pieces one more has.
  for (int64_t pieces : {66, 128, 129, 130, 131, 132, 133, 263})
    asked.push_back(question({1, pieces, 1, 260, 64, false, 0}, "gaussian"));
  asked.push_back(question({1, 134, 1, 250, 256, false, 0}, "gaussian"));  // O leaves V's place, and then come parts
  asked.push_back(question({1, 100, 1, 250, 256, false, 0}, "gaussian"));  // a part behind a part
  asked.push_back(question({1, 131, 1, 200, 128, false, 0, attention::Dtype::bf16}, "gaussian"));
  asked.push_back(question({1, 45, 400, 210, 64, false, -0.2f}, "growing"));  // 135 pieces, the last rows are nobody's
  for (const Question& q : asked)
    for (Schedule schedule : {Schedule::early, Schedule::late, Schedule::random}) {
      const Outcome outcome = run(library, q, schedule);
      CHECK_MESSAGE(outcome.right(), q.problem.heads, " heads, ", q.problem.seq_k, " keys: ", outcome.message);
    }
}

// Which measures a kernel takes is chosen when it is compiled, and its precision says so.
TEST_CASE("38: each measure can be left out") {
  if (!is_chosen("38")) return;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("measures-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const Step& step = course::find_step("38");
  std::vector<Question> asked = questions_of_blocks();
  for (Question& q : questions_in_fp8()) asked.push_back(std::move(q));
  asked.push_back(question({1, 1, 40, 700, 256, false, 0}, "gaussian"));
  asked.push_back(question({2, 2, 150, 300, 64, true, -0.3f}, "growing"));
  asked.push_back(question({1, 1, 130, 700, 128, false, 1}, "gaussian"));
  const std::string blocks = " blocks", hadamard = " hadamard", two_level = " two_level rounded_l";
  for (int measures : {0, 1, 2, 4}) {
    const auto source = folder / "attention.cu", library = folder / ("measures" + std::to_string(measures) + ".so");
    std::ofstream(source) << "#define FLASH_MEASURES " << measures << '\n' << text_of(step.folder() / "attention.cu");
    const std::string error = course::build_kernel(source, step.name, library, 120);
    REQUIRE_MESSAGE(error.empty(), error);
    const std::string precision = course::StepLibrary(library).precision();
    CHECK(precision == "fp8" + (measures & 1 ? blocks : "") + (measures & 2 ? hadamard : "") + (measures & 4 ? two_level : "") + " slack");
    for (const Question& q : asked) {
      const Outcome outcome = run(library, q, Schedule::early);
      CHECK_MESSAGE(outcome.right(), precision, ": ", outcome.message);
    }
  }
  std::filesystem::remove_all(folder);
}
