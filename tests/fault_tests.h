/// @file
/// Runs the kernels of a module of faults on the simulated GPU and judges what it reports. The including test defines
/// `words`, the size of the data, and FLASH_TEST_KERNELS, the path of the kernels' source.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "reference_cpu/simulator/simulator.h"
#include "tests/simulator_kernels.h"

using simulator::Schedule;

namespace {

const std::vector<simulator::Options> all_schedules = {{Schedule::early, 1, {}},
                                                       {Schedule::late, 1, {}},
                                                       {Schedule::random, 1, {}},
                                                       {Schedule::random, 2, {}},
                                                       {Schedule::random, 3, {}}};

std::string words_of(const simulator::Options& o) {
  return o.schedule == Schedule::early  ? "early"
         : o.schedule == Schedule::late ? "late"
                                        : "random, seed " + std::to_string(o.seed);
}

struct Outcome {
  std::string error;  // of the launch
  std::vector<simulator::Report> reports;
  std::vector<uint32_t> data;
};

Outcome run(const std::string& kernel, bool right, const simulator::Options& options = {}) {
  simulator::free_all();
  simulator::reset(options);
  simulator::allocate(100, "before");
  auto* data = static_cast<uint32_t*>(simulator::allocate(words * 4, "data"));
  std::iota(data, data + words, 0u);
  const char* error = flash_test_launch(kernel.c_str(), right, data, words);
  return {error ? error : "", simulator::reports(), std::vector<uint32_t>(data, data + words)};
}

// The lines of the kernels' source that end in this comment.
std::vector<int> marked_lines(const std::string& comment) {
  std::ifstream file(FLASH_TEST_KERNELS);
  std::vector<int> lines;
  int number = 1;
  for (std::string line; std::getline(file, line); ++number)
    if (line.ends_with("// " + comment)) lines.push_back(number);
  return lines;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// The kernels' file as reports name it, with its folder.
const std::string file_name = [] {
  const std::string path = FLASH_TEST_KERNELS;
  return path.substr(path.rfind('/', path.rfind('/') - 1) + 1);
}();

// A report names who and where. (A line's number must not be the beginning of a longer one.)
void check_names(const std::string& text, const std::string& kernel) {
  INFO(text);
  CHECK(contains(text, kernel + ", CTA "));
  CHECK(contains(text, "warp "));
  CHECK(contains(text, "lane"));
  const std::vector<int> lines = marked_lines("in report: " + kernel);
  REQUIRE(!lines.empty());
  for (int line : lines) {
    CAPTURE(line);
    const std::string place = file_name + ":" + std::to_string(line);
    const size_t at = text.find(place);
    REQUIRE(at != text.npos);
    CHECK(!std::isdigit(static_cast<unsigned char>(text[std::min(at + place.size(), text.size() - 1)])));
  }
}

// Each schedule reports the wrong kernel once, as one of these kinds, and the right one never.
void check_fault(const std::string& kernel, const std::string& kinds) {
  std::vector<uint32_t> result;
  for (const simulator::Options& options : all_schedules) {
    INFO(kernel, ", ", words_of(options));
    const Outcome wrong = run(kernel, false, options);
    std::string all;
    for (const simulator::Report& r : wrong.reports) all += "\n[" + r.kind + "] " + r.text;
    INFO(all);
    REQUIRE(wrong.reports.size() == 1);
    CHECK(contains(kinds, wrong.reports[0].kind));
    check_names(wrong.reports[0].text, kernel);
    // A launch that cannot go on throws what it reports.
    if (!wrong.error.empty()) CHECK(wrong.error == wrong.reports[0].text);

    const Outcome right = run(kernel, true, options);
    CHECK(right.error == "");
    CHECK_MESSAGE(right.reports.empty(), (right.reports.empty() ? "" : right.reports[0].text));
    if (!result.empty()) CHECK(right.data == result);  // without a fault, no schedule changes the results
    result = right.data;
  }
}

}  // namespace
