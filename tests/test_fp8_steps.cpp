/// @file
/// The FP8 steps: called on e4m3 tensors and descales that somebody else has made, and on what FP8 alone can get wrong.
///
/// The machine is the simulated GPU, or with FLASH_TEST_MACHINE=gpu the real one (exit 77 where there is none).
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "reference_cpu/fp8.h"
#include "steps/course/check.h"
#include "steps/course/device.h"
#include "steps/course/exercise_build.h"
#include "steps/course/exercise_file.h"
#include "steps/course/npy.h"
#include "steps/course/placed.h"
#include "steps/course/step_library.h"
#include "tests/chosen_machine.h"
#include "tests/chosen_steps.h"

namespace {

using attention::Problem;
using attention::Tensors;
using course::Device;
using course::Machine;
using course::Outcome;
using course::Question;
using course::Step;
using course::StepLibrary;

std::vector<Step> fp8_steps() {
  std::vector<Step> steps = chosen_steps();
  std::erase_if(steps, [](const Step& s) { return !StepLibrary(s.library(machine())).is_fp8(); });
  return steps;
}

Question question(Problem p, const char* input) {
  if (p.scale == 0) p.scale = attention::default_scale(p.dim);
  return course::ask(p, course::make_inputs(input, p, 3));
}

void check_right(const Question& q, const std::string& what) {
  for (const Step& step : fp8_steps()) {
    course::Setting setting;
    setting.machine = machine();
    setting.simulator.schedule = simulator::Schedule::random;
    const Outcome outcome = check(step.library(machine()), q, setting);
    INFO(step.name, ", ", what);
    CHECK_MESSAGE(outcome.right(), outcome.message);
  }
}

// Runs a step on tensors that lie on the device.
void launch(const StepLibrary& step, const Problem& p, const Tensors& t, Device& device) {
  if (machine() == Machine::simulated) simulator::reset({});
  step.run(p, t);
  device.synchronize();
  if (machine() == Machine::simulated)
    for (const auto& report : simulator::reports()) FAIL_CHECK(report.text);
  CHECK(device.damage() == "");
}

template <class T>
std::vector<T> downloaded(Device& device, const T* from, int64_t count) {
  std::vector<T> x(static_cast<size_t>(count));
  device.download(x.data(), from, x.size() * sizeof(T));
  return x;
}

template <class T>
T* uploaded(Device& device, const std::vector<T>& x, const char* name) {
  void* memory = device.allocate(x.size() * sizeof(T), name);
  device.upload(memory, x.data(), x.size() * sizeof(T));
  return static_cast<T*>(memory);
}

// New memory for O and LSE, which hold NaN.
Tensors with_new_outputs(Tensors t, const Problem& p, Device& device) {
  t.O = device.allocate(static_cast<size_t>(p.query_rows() * p.dim) * 2, "O");
  t.LSE = static_cast<float*>(device.allocate(static_cast<size_t>(p.query_rows()) * 4, "LSE"));
  return t;
}

course::Outputs outputs(const Tensors& t, const Problem& p, Device& device) {
  return {downloaded(device, static_cast<const uint16_t*>(t.O), p.query_rows() * p.dim),
          downloaded(device, t.LSE, p.query_rows())};
}

}  // namespace

// --- given tensors ---------------------------------------------------------------------------------------------------

namespace {

// e4m3 numbers of all mantissas and of seven exponents, 1/8 to 15, as no quantizer leaves them: none is 448.
std::vector<uint8_t> codes(int64_t count, uint64_t seed) {
  std::vector<uint8_t> x;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = (static_cast<uint64_t>(i) + seed * 1000003) * 0x9E3779B97F4A7C15u;
    bits ^= bits >> 31, bits *= 0xBF58476D1CE4E5B9u, bits ^= bits >> 29;
    x.push_back(static_cast<uint8_t>((bits & 0x87) | (4 + (bits >> 8) % 7) << 3));
  }
  return x;
}

struct Given {
  std::vector<uint8_t> Q, K, V;  // [B, H, N, d]
  std::vector<float> descales;   // [3, B, H]
};

attention::Rows exact(const Problem& p, const Given& given, const std::vector<float>& descales) {
  const auto heads = static_cast<size_t>(p.batch * p.heads);
  auto numbers = [&](const std::vector<uint8_t>& x, size_t tensor) {
    std::vector<float> all;
    for (size_t i = 0; i < x.size(); ++i)
      all.push_back(attention::from_e4m3(x[i]) * descales[tensor * heads + i / (x.size() / heads)]);
    return all;
  };
  return attention::exact(p, numbers(given.Q, 0).data(), numbers(given.K, 1).data(), numbers(given.V, 2).data(),
                          attention::all_rows(p));
}

struct Errors {
  double O = 0, LSE = 0;  // the relative RMS of O's worst head, the largest difference in LSE
};
Errors errors(const Problem& p, const course::Outputs& out, const attention::Rows& exact) {
  Errors worst;
  const auto of_head = static_cast<size_t>(p.seq_q * p.dim);
  for (size_t first = 0; first < exact.O.size(); first += of_head) {
    double wrong = 0, all = 0;
    for (size_t i = first; i < first + of_head; ++i) {
      const double error = attention::from_half(out.O[i]) - exact.O[i];
      wrong += error * error, all += exact.O[i] * exact.O[i];
    }
    const double rms = std::sqrt(wrong / all);
    if (!(rms <= worst.O)) worst.O = rms;
  }
  for (size_t i = 0; i < exact.LSE.size(); ++i) {
    const double error = std::fabs(out.LSE[i] - exact.LSE[i]);
    if (!(error <= worst.LSE)) worst.LSE = error;
  }
  return worst;
}

}  // namespace

// 37 says how e4m3 tensors and descales must lie; other FP8 steps take what they have made themselves.
TEST_CASE("37: attention of given e4m3 tensors, whose descales are none that the quantizer would choose") {
  for (const Step& step : fp8_steps()) {
    const StepLibrary library(step.library(machine()));
    if (library.precision() != "fp8") continue;
    for (const Problem& p : {Problem{2, 3, 70, 300, 64, true, 0x1p-9f}, Problem{1, 6, 200, 150, 128, false, 0x1p-10f},
                             Problem{3, 2, 65, 129, 256, true, 0x1p-11f}, Problem{1, 6, 1, 1, 128, false, 0x1p-10f}}) {
      INFO(step.name, " d=", p.dim);
      Given given{codes(p.query_rows() * p.dim, 1), codes(p.key_rows() * p.dim, 2), codes(p.key_rows() * p.dim, 3), {}};
      given.descales = {0.5f, 3, 1 / 7.0f, 3,    0.5f, 1,      // Q's heads
                        3,    1, 0.5f,     0.5f, 1,    3,      // K's
                        1,    3, 0.5f,     7,    0.1f, 0.25f};  // V's
      const auto device = course::open_device(machine());
      Tensors t{.workspace_bytes = library.workspace_bytes(p)};
      t.workspace = device->allocate(t.workspace_bytes, "workspace");
      t.Q = uploaded(*device, given.Q, "Q"), t.K = uploaded(*device, given.K, "K"), t.V = uploaded(*device, given.V, "V");
      t.descales = uploaded(*device, given.descales, "descales");
      t = with_new_outputs(t, p, *device);
      launch(library, p, t, *device);
      const course::Outputs out = outputs(t, p, *device);
      const Errors found = errors(p, out, exact(p, given, given.descales));
      CHECK(found.O < 0.05);  // P is rounded to e4m3
      CHECK(found.LSE < 0.01);
      CHECK(downloaded(*device, static_cast<const uint8_t*>(t.Q), p.query_rows() * p.dim) == given.Q);
      CHECK(downloaded(*device, static_cast<const uint8_t*>(t.V), p.key_rows() * p.dim) == given.V);
      // Another head's descale would show.
      for (int tensor = 0; tensor < 3; ++tensor) {
        std::vector<float> turned = given.descales;
        std::rotate(turned.begin() + tensor * 6, turned.begin() + tensor * 6 + 1, turned.begin() + tensor * 6 + 6);
        const Errors other = errors(p, out, exact(p, given, turned));
        if (tensor < 2) CHECK(other.LSE > 0.1);
        else CHECK(other.O > 0.5);
      }
    }
  }
}

TEST_CASE("attention of flash_quantized() tensors is the whole run, bit for bit") {
  for (const Question& q : {question({2, 2, 70, 300, 64, true, 0}, "gaussian"), question({1, 3, 200, 150, 128, false, 0}, "outliers"),
                            question({1, 2, 40, 300, 256, true, -0.1f}, "gaussian")})
    for (const Step& step : fp8_steps()) {
      const Problem& p = q.problem;
      INFO(step.name, " d=", p.dim);
      const StepLibrary library(step.library(machine()));
      const auto device = course::open_device(machine());
      course::Placed placed(*device, q, library.workspace_bytes(p));
      launch(library, p, placed.tensors(), *device);
      const course::Outputs whole = placed.outputs();
      CHECK(std::isfinite(whole.LSE[0]));
      Tensors t = with_new_outputs(library.quantized(p, placed.tensors()), p, *device);
      CHECK(t.Q != placed.tensors().Q);
      launch(library, p, t, *device);
      CHECK(outputs(t, p, *device) == whole);
      if (library.precision() != "fp8") continue;  // only 37 says how its tensors lie
      const int64_t heads = p.batch * p.heads;
      auto moved = [&](const void* x, int64_t count, const char* name) {
        return uploaded(*device, downloaded(*device, static_cast<const uint8_t*>(x), count), name);
      };
      t.Q = moved(t.Q, p.query_rows() * p.dim, "Q"), t.K = moved(t.K, p.key_rows() * p.dim, "K");
      t.V = moved(t.V, p.key_rows() * p.dim, "V");
      t.descales = uploaded(*device, downloaded(*device, t.descales, 3 * heads), "descales");
      t = with_new_outputs(t, p, *device);
      device->poison(t.workspace, t.workspace_bytes);  // what is given is what is read
      launch(library, p, t, *device);
      CHECK(outputs(t, p, *device) == whole);
    }
}

TEST_CASE("an FP16 step refuses what belongs to FP8, in a sentence") {
  const Question q = question({1, 1, 8, 8, 64, false, 0}, "gaussian");
  auto refusal = [](auto work) {
    try {
      work();
    } catch (const attention::Refused& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  for (const Step& step : chosen_steps()) {
    const StepLibrary library(step.library(machine()));
    if (library.is_fp8()) continue;
    INFO(step.name);
    const auto device = course::open_device(machine());
    course::Placed placed(*device, q, library.workspace_bytes(q.problem));
    CHECK(refusal([&] { library.quantized(q.problem, placed.tensors()); }) ==
          "This step multiplies FP16 numbers; it quantizes nothing.");
    Tensors t = placed.tensors();
    t.descales = uploaded(*device, std::vector<float>{1, 1, 1}, "descales");
    CHECK(refusal([&] { library.run(q.problem, t); }) ==
          "Q, K and V come with descales, as e4m3 tensors do; this step takes FP16. Pass FP16 tensors and no descales.");
  }
}

// --- what FP8 alone can get wrong: see also "the size of O where V has a mean" in test_steps.cpp --------------------------

TEST_CASE("FP8: logits eight times as large") {
  if (fp8_steps().empty()) return;
  for (Problem p : {Problem{1, 2, 200, 600, 64, false, 0}, Problem{1, 2, 300, 300, 128, true, 0}, Problem{1, 1, 70, 300, 256, false, 0}}) {
    p.scale = attention::default_scale(p.dim);
    course::Inputs inputs = course::make_inputs("gaussian", p, 4);
    for (uint16_t& x : inputs.Q) x = attention::to_half(8 * attention::from_half(x));
    check_right(course::ask(p, inputs), "d=" + std::to_string(p.dim));
  }
}

// Each head has descales of its own: from 1/40 to 7 of what N(0, 1) would have. Q and K of a head change against each other.
TEST_CASE("FP8: heads of very different size") {
  if (fp8_steps().empty()) return;
  for (int64_t dim : {64, 128, 256}) {
    const Problem p{2, 2, 70, 200, dim, false, attention::default_scale(dim)};
    course::Inputs inputs = course::make_inputs("gaussian", p, 5);
    constexpr float Q[] = {0.5f, 3, 1 / 7.0f, 40}, V[] = {7, 1 / 3.0f, 100, 0.025f};
    auto times = [&](std::vector<uint16_t>& x, auto factor) {
      const size_t of_head = x.size() / 4;
      for (size_t i = 0; i < x.size(); ++i) x[i] = attention::to_half(attention::from_half(x[i]) * factor(i / of_head));
    };
    times(inputs.Q, [&](size_t head) { return Q[head]; });
    times(inputs.K, [&](size_t head) { return 1 / Q[head]; });
    times(inputs.V, [&](size_t head) { return V[head]; });
    const Question all = course::ask(p, inputs);
    check_right(all, "d=" + std::to_string(dim));
    // Head by head too, since the largest V decides what is allowed.
    for (size_t head = 0; head < 4; ++head) {
      auto of_head = [&](const std::vector<uint16_t>& x) {
        return std::vector<uint16_t>(x.begin() + static_cast<int64_t>(head * x.size() / 4),
                                     x.begin() + static_cast<int64_t>((head + 1) * x.size() / 4));
      };
      const Problem one{1, 1, 70, 200, dim, false, p.scale};
      check_right(course::ask(one, {of_head(inputs.Q), of_head(inputs.K), of_head(inputs.V)}), "head " + std::to_string(head));
    }
  }
}

// The steps walk from the last key block to the first. Here each block's scores are higher than the last one's, by so much in
// log2, in every other row; in the others they are lower. A maximum that stays behind makes P as much larger.
TEST_CASE("FP8: rising maxima, which would push P past 448") {
  if (fp8_steps().empty()) return;
  for (double rise : {0.7, 3.9, 4.1, 8.5, 30.0})
    for (int64_t dim : {64, 128}) {
      const Problem p{1, 1, 70, 850, dim, false, static_cast<float>(rise * std::log(2))};
      course::Inputs inputs = course::make_inputs("gaussian", p, 6);
      const auto d = static_cast<size_t>(dim);
      for (auto* x : {&inputs.Q, &inputs.K}) std::fill(x->begin(), x->end(), uint16_t{0});
      for (size_t i = 0; i < 70; ++i) inputs.Q[i * d] = attention::to_half(i % 2 ? 1.0f : -1.0f);
      for (size_t j = 0; j < 850; ++j) inputs.K[j * d] = attention::to_half(6 - static_cast<float>(j / 128));
      check_right(course::ask(p, inputs), "rise " + std::to_string(rise) + " d=" + std::to_string(dim));
    }
}

// O is 1; without 2^8 it would be 0.500, since the small weights are below e4m3's smallest number (test_fp8_answers.cpp). In one
// narrow accumulator the small products lose a seventh and more behind a sum that has the large one: 6 % of O, if it comes first.
TEST_CASE("FP8: one weight of 1 beside 2047 of 2^-11") {
  const std::vector<Step> steps = fp8_steps();
  for (int64_t large : {0, 1000, 2047})
    for (const Step& step : steps) {
      const Problem p{1, 1, 1, 2048, 64, false, 0.69314718f};
      course::Inputs inputs{std::vector<uint16_t>(64), std::vector<uint16_t>(2048 * 64),
                            std::vector<uint16_t>(2048 * 64, attention::to_half(1))};
      inputs.Q[0] = attention::to_half(1);
      for (int64_t j = 0; j < 2048; ++j)
        if (j != large) inputs.K[static_cast<size_t>(j) * 64] = attention::to_half(-11);
      const std::string precision = StepLibrary(step.library(machine())).precision();
      const double lost = precision.find("two_level") == std::string::npos ? 0.065 : 0.002;
      Question q{p, inputs, {64, {0}, std::vector<double>(64, 1), {std::log1p(2047 * 0x1p-11)}}, {lost, INFINITY, 2e-3}};
      q.fp8[precision] = std::make_shared<Question>(Question{p, inputs, q.exact, q.allowed});
      course::Setting setting;
      setting.machine = machine();
      const Outcome outcome = check(step.library(machine()), q, setting);
      INFO(step.name, " key ", large);
      CHECK_MESSAGE(outcome.right(), outcome.message);
    }
}

// --- e5m2 ------------------------------------------------------------------------------------------------------------

// Exercise 37.5 is unsolved in e5m2. Its error against exact attention of the FP16 tensors, beside e4m3's: the numbers stand in
// the lesson and in the exercise.
TEST_CASE("37: what e5m2 costs" * doctest::skip(machine() == Machine::gpu)) {
  for (const Step& step : chosen_steps()) {
    if (step.number() != "37") continue;
    const auto exercises = course::read_exercises(step.folder());
    const auto exercise = std::find_if(exercises.begin(), exercises.end(), [](const auto& e) { return e.id == "37.5"; });
    REQUIRE(exercise != exercises.end());
    const auto folder = std::filesystem::temp_directory_path() / ("e5m2-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    const std::string e4m3 = course::attention_of(*exercise), e5m2 = student_file(*exercise, e4m3, exercise->unsolved);
    std::string P_in_e5m2 = e4m3;  // and V in e4m3: wgmma takes both formats at once
    for (auto [from, to] : {std::pair{"wgmma_fp8<Number>(O,", "wgmma_fp8<e5m2, e4m3>(O,"}, {"= pack(S[x], ", "= pack_e5m2(S[x], "},
                            {"= pack(S[x + 2], ", "= pack_e5m2(S[x + 2], "}}) {
      const size_t at = P_in_e5m2.find(from);
      REQUIRE(at != std::string::npos);
      P_in_e5m2.replace(at, std::string(from).size(), to);
    }
    struct Variant {
      const char* name;
      const std::string& text;
      double gaussian, outliers;  // error in percent
    };
    for (const Variant& v : {Variant{"e4m3", e4m3, 5.2, 9.2}, {"P in e5m2", P_in_e5m2, 6.6, 9.4}, {"e5m2", e5m2, 10.3, 16.9}}) {
      const auto source = folder / "attention.cu", library = folder / (std::string(v.name) + ".so");
      std::ofstream(source) << v.text;
      REQUIRE(course::build_kernel(source, step.name, library, 120) == "");
      for (const char* input : {"gaussian", "outliers"}) {
        const Problem p{1, 2, 1024, 1024, 128, false, attention::default_scale(128)};
        const Question q = course::ask(p, course::make_inputs(input, p, 1));
        course::Setting setting;
        setting.O_file = folder / "O.npy";
        check(library, q, setting);  // that of e5m2 is not right: the answer is e4m3's
        CHECK(simulator::reports().empty());
        const std::vector<uint16_t> O = course::read_half_npy(setting.O_file).values;
        double wrong = 0, all = 0;
        for (size_t i = 0; i < O.size(); ++i) {
          const double error = attention::from_half(O[i]) - q.exact.O[i];
          wrong += error * error, all += q.exact.O[i] * q.exact.O[i];
        }
        const double percent = 100 * std::sqrt(wrong / all);
        std::printf("37, %s, %s: relative RMS error of O %.2f %%\n", v.name, input, percent);
        CHECK(std::fabs(percent - (std::string(input) == "gaussian" ? v.gaussian : v.outliers)) < 0.06);
      }
    }
    std::filesystem::remove_all(folder);
  }
}
