/// @file
/// The answers that FP8 steps are held to. What a step would compute comes from a twin here, in other arithmetic than the one
/// that the checker learns from: it must pass for its own precision, and for no other whose measures show.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "reference_cpu/twins.h"
#include "steps/course/check.h"
#include "steps/course/failure.h"

namespace {

using attention::Problem;
using attention::Verdict;
using course::Question;
namespace twins = attention::twins;

const std::vector<std::string> precisions = {"fp8",
                                             "fp8 blocks",
                                             "fp8 hadamard",
                                             "fp8 two_level",
                                             "fp8 two_level rounded_l",
                                             "fp8 blocks hadamard",
                                             "fp8 rounded_l slack two_level",
                                             "fp8 blocks hadamard two_level rounded_l slack"};

bool has(const std::string& precision, const char* word) { return precision.find(word) != std::string::npos; }

twins::Options options(const std::string& precision) {
  twins::Options o{.Br = 64, .Bc = 128, .sum_bits = 13, .last_to_first = true};
  o.quantization = {has(precision, "blocks"), has(precision, "hadamard")};
  o.two_level = has(precision, "two_level");
  o.rounded_l = has(precision, "rounded_l");
  if (has(precision, "slack")) o.slack = o.P_log2 = 4, o.vote_rows = 16;
  return o;
}

// What the checker says of a step of precision `asked` that computes as a twin in double does.
Verdict verdict(const Question& question, const std::string& asked, const twins::Options& o) {
  const auto& [Q, K, V] = question.inputs;
  const auto got = twins::every_head<double>(question.problem, Q.data(), K.data(), V.data(),
                                             [&](const auto& head) { return twins::flash_attention_3_fp8(head, o); });
  std::vector<uint16_t> O;
  for (double x : got.O.reshaped<Eigen::RowMajor>()) O.push_back(attention::to_half(static_cast<float>(x)));
  const std::vector<float> LSE(got.LSE.data(), got.LSE.data() + got.LSE.size());
  const Question& answer = course::answer_in(question, asked);
  return attention::compare(question.problem, answer.exact, answer.allowed, O.data(), LSE.data());
}

Question question(Problem p, const std::string& input, double V_mean = 0) {
  if (p.scale == 0) p.scale = attention::default_scale(p.dim);
  course::Inputs inputs = course::make_inputs(input, p, 7);
  if (V_mean != 0)
    for (uint16_t& v : inputs.V) v = attention::to_half(attention::from_half(v) + static_cast<float>(V_mean));
  return course::ask(p, std::move(inputs));
}

}  // namespace

TEST_CASE("a step passes for its own precision, at every shape and with every input") {
  size_t turn = 0;
  for (const auto& kind : course::input_kinds())
    for (auto [Nq, Nk] : {std::pair{1, 1}, {63, 65}, {1, 130}, {239, 1}, {113, 203}, {17, 333}, {2, 2200}, {260, 300}, {5, 0}})
      for (bool causal : {false, true}) {
        const Question q = question({1, 2, Nq, Nk, turn % 2 ? 64 : 128, causal, 0}, kind.name);
        for (size_t i = ++turn % 3; i < precisions.size(); i += 3) {
          INFO(kind.name, " Sq=", Nq, " Sk=", Nk, causal ? " causal, " : " full, ", precisions[i]);
          const Verdict v = verdict(q, precisions[i], options(precisions[i]));
          CHECK_MESSAGE(v.right, v.message);
          CHECK(v.margin < 0.7);  // it is not near the edge
        }
      }
}

TEST_CASE("a step does not pass for another precision") {
  const std::string all = "fp8 blocks hadamard two_level rounded_l slack";
  const Question outliers = question({1, 1, 64, 1500, 128, false, 0}, "outliers"),
                 biased = question({1, 1, 64, 4096, 64, false, 0}, "gaussian", 1),
                 few = question({1, 1, 64, 300, 128, false, 0}, "gaussian");
  course::Inputs ones = few.inputs;  // V is 1: so is O, if l is the sum of the same weights
  std::fill(ones.V.begin(), ones.V.end(), attention::to_half(1));
  const Question flat = course::ask(few.problem, ones);
  auto rejects = [&](const Question& q, const std::string& what, auto change) {
    INFO(what);
    twins::Options o = options(all);
    CHECK(verdict(q, all, o).right);
    change(o);
    const Verdict v = verdict(q, all, o);
    CHECK_FALSE(v.right);
    CHECK(v.margin > 1);
  };
  rejects(outliers, "one descale a head", [](auto& o) { o.quantization.blocks = false; });
  rejects(outliers, "not rotated", [](auto& o) { o.quantization.hadamard = false; });
  rejects(biased, "one accumulator", [](auto& o) { o.two_level = false; });
  rejects(biased, "one accumulator, l in float", [](auto& o) { o.two_level = o.rounded_l = false; });
  rejects(flat, "l of the weights before they are rounded", [](auto& o) { o.rounded_l = false; });
  for (const char* weaker : {"fp8", "fp8 two_level"})  // l in float, so LSE is exact: that of rounded weights shows
    CHECK_FALSE(verdict(few, weaker, options(std::string(weaker) + " rounded_l")).right);
}

TEST_CASE("the answer depends on the words, not on their order; the question keeps it") {
  const Question q = question({1, 1, 20, 300, 64, false, 0}, "outliers");
  const Question &one = course::in_fp8(q, "fp8 blocks hadamard"), &other = course::in_fp8(q, "fp8 hadamard blocks");
  CHECK(one.exact.O == other.exact.O);
  CHECK(&course::in_fp8(q, "fp8 blocks hadamard") == &one);
  CHECK(one.exact.O != course::in_fp8(q).exact.O);
  CHECK(&course::answer_in(q, "fp16") == &q);
  CHECK(&course::answer_in(q, "fp8") == &course::in_fp8(q));
}

TEST_CASE("a problem too large for the checker's twin has a fixed allowance, and a step passes with it") {
  const Problem p{1, 1, 512, 132000, 64, false, attention::default_scale(64)};
  const Question sample = course::ask(p, course::make_inputs("gaussian", p, 7), 64, 64);
  const std::string all = "fp8 blocks hadamard two_level rounded_l slack";
  CHECK(course::in_fp8(sample, all).allowed.rms_relative == 0.06);
  const Verdict v = verdict(sample, all, options(all));
  CHECK_MESSAGE(v.right, v.message);
  CHECK(v.margin > 0.3);
}

TEST_CASE("words that are not known are refused") {
  const Question q = question({1, 1, 2, 2, 64, false, 0}, "gaussian");
  using Pair = std::pair<const char*, const char*>;
  for (auto [precision, word] :
       {Pair{"fp8 bocks", "bocks"}, {"fp8 blocks fp8", "fp8"}, {"int8", "int8"}, {"fp8x blocks", "fp8x"}, {"", ""}}) {
    std::string sentence;
    try {
      course::answer_in(q, precision);
    } catch (const course::Failure& failure) {
      sentence = failure.what();
    }
    CHECK(sentence == "The step's precision '" + std::string(precision) + "' has the word '" + word +
                          "'; it is fp16, or fp8 and any of blocks, hadamard, two_level, rounded_l and slack.");
  }
}

TEST_CASE("one weight of 1 beside 2047 of 2^-11: half of O is lost unless P is made larger") {
  twins::Head<double> head{twins::Matrix<double>::Zero(1, 64), twins::Matrix<double>::Zero(2048, 64),
                           twins::Matrix<double>::Ones(2048, 64), std::log(2.0)};
  head.Q(0, 0) = 1;
  head.K.col(0).tail(2047).setConstant(-11);
  for (auto [P_log2, O] : {std::pair{0.0, 0.5001}, {8.0, 1.0}}) {
    const auto got = twins::flash_attention_3_fp8(head, {.Bc = 128, .P_log2 = P_log2});
    CHECK(got.O(0, 0) == doctest::Approx(O).epsilon(1e-4));
    CHECK(got.LSE[0] == doctest::Approx(std::log1p(2047 * 0x1p-11)).epsilon(1e-6));
  }
}
