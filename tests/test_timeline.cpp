/// @file
/// The timeline: its sums, its order of the steps, what a change of the model does, and the lessons' figures.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "reference_cpu/simulator/timeline.h"
#include "steps/course/check.h"
#include "steps/course/steps.h"
#include "tests/program.h"

namespace {

using namespace simulator;
using Kind = Span::Kind;
using Unit = Span::Unit;

// One CTA is the whole problem: 128 queries, 1024 keys, d = 128.
const attention::Problem problem{1, 1, 128, 1024, 128, false, 0.088f};

struct Run {
  Record record;
  Ledger ledger;
  double idle(const Model& model = {}) const { return steady_part(replay(record, model)).idle; }
};

course::Outcome check_step(const std::string& step, bool timeline) {
  static const course::Question question = course::ask(problem, course::make_inputs("gaussian", problem, 1));
  course::Setting setting;
  setting.simulator.timeline = timeline;
  return course::check(course::find_step(step).library(course::Machine::simulated), question, setting);
}

const Run& run(const std::string& step) {
  static std::map<std::string, Run> known;
  if (!known.contains(step)) {
    const course::Outcome outcome = check_step(step, true);
    REQUIRE_MESSAGE(outcome.right(), outcome.message);
    known[step] = {recorded(), outcome.ledger};
  }
  return known[step];
}

double sum(const Timeline& timeline, Kind kind, Unit unit) {
  double all = 0;
  for (const Span& s : timeline.spans)
    if (s.kind == kind && s.unit == unit) all += s.amount;
  return all;
}

}  // namespace

TEST_CASE("bars do not end before they begin, and nobody does two things at once") {
  for (const char* step : {"26", "30", "31", "32", "33", "34", "35", "36"}) {
    CAPTURE(step);
    const Timeline timeline = replay(run(step).record);
    std::map<std::pair<Unit, int>, double> last;
    CHECK(timeline.spans.size() > 50);
    for (const Span& s : timeline.spans) {
      CHECK(s.begin >= 0);
      CHECK(s.end > s.begin);
      CHECK(s.end <= timeline.end);
      if (s.unit == Unit::copy_engine) continue;  // latencies overlap
      CHECK(s.begin >= last[{s.unit, s.number}] - 1e-6);
      last[{s.unit, s.number}] = s.end;
    }
  }
}

TEST_CASE("every byte of every copy and every FLOP is in it, and busy and idle are the whole") {
  for (const char* step : {"26", "30", "31", "32", "33", "34", "35", "36"}) {
    CAPTURE(step);
    const Timeline timeline = replay(run(step).record);
    const Ledger& ledger = run(step).ledger;
    CHECK(sum(timeline, Kind::copy, Unit::copy_engine) == static_cast<double>(ledger.global_read));
    CHECK(sum(timeline, Kind::product, Unit::tensor) == static_cast<double>(ledger.tensor_flops));
    const double stored = step == std::string("35") || step == std::string("36") ? 128 * 128 * 2 : 0;
    CHECK(sum(timeline, Kind::store, Unit::copy_engine) == stored);

    // The gaps, one by one.
    double idle = 0, busy_until[4] = {};
    for (const Span& s : timeline.spans)
      if (s.unit == Unit::tensor) {
        idle += s.begin - busy_until[s.number];
        busy_until[s.number] = s.end;
      }
    for (double end : busy_until) idle += timeline.end - end;
    CHECK(tensor_busy(timeline, timeline.end) + idle / 4 == doctest::Approx(timeline.end));
    const Steady steady = steady_part(timeline);
    CHECK(steady.idle > 0);
    CHECK(tensor_busy(timeline, steady.end) - tensor_busy(timeline, steady.begin) ==
          doctest::Approx((1 - steady.idle) * (steady.end - steady.begin)));
  }
}

TEST_CASE("from 31 to 34 each step leaves the tensor core less idle, as on the H200") {
  // What ncu counts (docs/results/h200/ncu-2026-11-30-hopper.csv: 100 - tensor_pipe_pct).
  const std::pair<const char*, double> measured[] = {{"31", 0.485}, {"32", 0.354}, {"33", 0.290}, {"34", 0.216}};
  double before = 1;
  for (const auto& [step, idle] : measured) {
    CAPTURE(step);
    CHECK(run(step).idle() < before - 0.05);
    CHECK(std::abs(run(step).idle() - idle) < 0.07);
    before = run(step).idle();
  }
}

TEST_CASE("another model, another idle share") {
  Model free_exponentials, slow_copies, slow_tensor;
  free_exponentials.exponentials = 1e9;
  free_exponentials.instructions_an_exponential = 0;
  slow_copies.copy_bytes = 8;
  slow_tensor.tensor_flops /= 8;
  for (const char* step : {"31", "32", "33", "34"}) {
    CAPTURE(step);
    CHECK(run(step).idle(free_exponentials) < run(step).idle() - 0.05);
    CHECK(run(step).idle(slow_copies) > run(step).idle() + 0.2);
    CHECK(run(step).idle(slow_tensor) < run(step).idle() - 0.1);
  }
  Model half_copies;  // what timeline.h says of it
  half_copies.copy_bytes /= 2;
  CHECK(std::abs(run("34").idle(half_copies) - run("33").idle(half_copies)) < 0.03);
  Model slow_exponentials;  // the unit, not the instructions, is then what softmax waits for
  slow_exponentials.exponentials = 1;
  CHECK(run("34").idle(slow_exponentials) > run("34").idle() + 0.2);
}

TEST_CASE("without a timeline nothing is recorded, and the run counts the same") {
  const course::Outcome outcome = check_step("34", false);
  CHECK(outcome.right());
  CHECK(recorded().size() == 0);
  CHECK(nlohmann::json(outcome.ledger) == nlohmann::json(run("34").ledger));
}

TEST_CASE("the command writes a trace and a picture, or says why not") {
  const Program learn(FLASH_COURSE);
  const Answer a = learn("timeline 33 --seq 512");
  CAPTURE(a.err);
  CHECK(a.code == 0);
  CHECK(contains(a.out, "The tensor core is idle "));
  CHECK(contains(a.out, "factor of two"));
  double bytes = 0;
  const auto trace = nlohmann::json::parse(content(learn.folder + "/trace.json"));
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == "X") {
      CHECK(e.at("dur").get<double>() > 0);
      if (e.at("name") == "copy") bytes += e.at("args").at("bytes").get<double>();
    }
  CHECK(bytes == (128 + 2 * 512) * 128 * 2);
  const std::string svg = content(learn.folder + "/timeline.svg");
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(contains(svg, "warpgroup 2"));

  const Answer nothing = learn("timeline 10 --seq 64");
  CHECK(nothing.code == 77);
  CHECK(contains(nothing.err, "10_tiling has nothing to show"));
  CHECK(learn("timeline 33 34").code == 1);
  CHECK(learn("timeline 33 --figures no/such").code == 1);
}

// If this fails after a change of a kernel or of the model: ./learn timeline 31 32 33 34 --figures docs/figures
TEST_CASE("the lessons' figures are fresh") {
  const Program learn(FLASH_COURSE);
  const Answer a = learn("timeline 31 32 33 34 --figures .");
  REQUIRE_MESSAGE(a.code == 0, a.err);
  for (const char* step : {"31", "32", "33", "34"}) {
    CAPTURE(step);
    const std::string file = "/timeline-" + std::string(step) + ".svg";
    CHECK(content(learn.folder + file) == content(FLASH_FIGURES + file));
  }
}
