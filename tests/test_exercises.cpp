/// @file
/// The exercises: every answer is right, every unsolved file and every plausible wrong answer is not, and
/// whatever a student writes ends in a sentence and an exit code.
#include "steps/course/exercise_build.h"
#include "steps/course/exercise_desk.h"
#include "steps/course/failure.h"
#include "steps/course/paths.h"
#include "steps/course/steps.h"
#include "tests/chosen_steps.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

using namespace course;
namespace fs = std::filesystem;

namespace {

constexpr ExerciseLimits limits{60, 20};

/// A student's folder that is removed at the end.
struct Desk {
  fs::path my = fs::temp_directory_path() / ("exercises-" + std::to_string(getpid()));
  ExerciseDesk desk{my, own_desk().exercises()};
  std::ostringstream out;

  Desk() {
    REQUIRE_FALSE(all_steps().empty());
    REQUIRE_FALSE(desk.exercises().empty());
    fs::create_directories(my);
  }
  ~Desk() { fs::remove_all(my); }

  const Exercise& exercise(const std::string& id) const {
    for (const Exercise& e : desk.exercises())
      if (e.id == id) return e;
    throw Failure("no exercise " + id);
  }
  void write(const std::string& id, const std::string& text) const {
    const fs::path file = desk.file_of(exercise(id));
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// What `check` prints, with the exit code in front.
  std::string check(const std::string& id, const ExerciseLimits& within = limits) {
    out.str("");
    const int code = desk.check(id, out, within);
    return std::to_string(code) + " " + out.str();
  }
};

/// What is thrown at a command.
template <typename Work>
std::string failure_of(Work work) {
  try {
    work();
  } catch (const Failure& failure) {
    return std::to_string(failure.exit_code) + " " + failure.what();
  }
  return "nothing was thrown";
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  REQUIRE_MESSAGE(at != std::string::npos, what);
  return text.replace(at, what.size(), with);
}

std::string without_markers(const std::string& source) {
  return std::regex_replace(source, std::regex(" *//(! \\[\\w+\\]| Exercise [^\n]*)\n"), "");
}

bool matches(const std::string& text, const std::string& expression) {
  return std::regex_search(text, std::regex(expression));
}

}  // namespace

TEST_CASE("exercises: every step has two or more, and one that is about code") {
  const Desk student;
  for (const Step& step : all_steps()) {
    CAPTURE(step.name);
    int all = 0, code = 0;
    for (const Exercise& e : student.desk.exercises()) {
      all += e.step == step.name;
      code += e.step == step.name && e.is_code();
    }
    CHECK(all >= 2);
    CHECK(code >= 1);
  }
}

TEST_CASE("exercises: the numbers are those that are counted, and no wrong ones are") {
  Desk student;
  for (const Exercise& e : student.desk.exercises()) {
    if (e.is_code() || !is_chosen(e.step)) continue;
    CAPTURE(e.id);
    const NumberOf truth = numbers_from(e.run);
    const ExerciseVerdict verdict = check_numbers(e, e.answer, truth);
    CHECK_MESSAGE(verdict.right, verdict.message);
    // The unsolved file.
    student.out.str("");
    student.desk.show(e.id, student.out);
    CHECK(matches(student.check(e.id),
                  "^1 " + e.id + " is not right yet. The number \\w+ is still a question mark."));
    for (const WrongAnswer& wrong : e.wrong) {
      CAPTURE(wrong.block);
      Numbers given = e.answer;
      for (const auto& [name, number] : parse_numbers(wrong.block))
        for (auto& [right_name, right_number] : given)
          if (name == right_name) right_number = number;
      const ExerciseVerdict rejected = check_numbers(e, given, truth);
      CHECK_FALSE(rejected.right);
      CHECK(rejected.message.find(wrong.sentence) != std::string::npos);
      CHECK(matches(rejected.message, "is too (large|small)"));
    }
  }
}

TEST_CASE("exercises: the kernel of every step passes the check") {
  REQUIRE_FALSE(all_steps().empty());
  for (const Step& step : chosen_steps()) {
    const ExerciseVerdict verdict = check_kernel(step.name, step.library(Machine::simulated), limits);
    CHECK_MESSAGE(verdict.right, step.name << ": " << verdict.message);
  }
}

TEST_CASE("exercises: attention.cu is the student's file with the answer filled in") {
  const Desk student;
  for (const Exercise& e : student.desk.exercises()) {
    if (!e.is_code()) continue;
    CAPTURE(e.id);
    const std::string attention = attention_of(e), region = region_of(attention, e.region);
    CHECK(student_file(e, attention, region) != student_file(e, attention, e.unsolved));
    CHECK(without_markers(student_file(e, attention, region)) == without_markers(attention));
    // Filled in by hand, too.
    const std::string by_hand = replaced(student_file(e, attention, e.unsolved), e.unsolved, region);
    CHECK(without_markers(by_hand) == without_markers(attention));
    CHECK(by_hand.find("//! [") == std::string::npos);
  }
}

TEST_CASE("exercises: no unsolved file and no wrong lines pass") {
  Desk student;
  for (const Exercise& e : student.desk.exercises()) {
    if (!e.is_code() || !is_chosen(e.step)) continue;
    CAPTURE(e.id);
    student.out.str("");
    REQUIRE(student.desk.show(e.id, student.out) == 0);
    const std::string unsolved = student.check(e.id);
    CHECK_MESSAGE(matches(unsolved, "^1 " + e.id + " is not right yet\\."), unsolved);
    CHECK_MESSAGE(matches(unsolved, e.expect), unsolved);
    for (const WrongAnswer& wrong : e.wrong) {
      student.write(e.id, student_file(e, attention_of(e), wrong.block));
      const std::string rejected = student.check(e.id);
      CHECK_MESSAGE(matches(rejected, "^1 " + e.id + " is not right yet\\."), rejected);
      CHECK_MESSAGE(!matches(rejected, "does not compile"), rejected);
      CHECK_MESSAGE(rejected.find(wrong.sentence) != std::string::npos, rejected);
    }
  }
}

TEST_CASE("exercises: the way of a student from the first to the second") {
  Desk student;
  std::ostringstream& out = student.out;
  CHECK(student.desk.next() == "00.1");
  CHECK(failure_of([&] { student.desk.check("00.1", out); }) ==
        "1 There is no " + (student.my / "00.1/answer.txt").string() +
            " yet; ./learn exercise 00.1 makes it.");
  CHECK(student.desk.show("00.1", out) == 0);
  CHECK(student.desk.hint("00.1", out) == 0);
  CHECK(matches(failure_of([&] { student.desk.answer("00.1", false, out); }), "^1 00.1 is not solved yet"));
  CHECK(student.desk.answer("00.1", true, out) == 0);
  student.write(
      "00.1", "bytes_distinct = 16 * 256 * 256 + 8 * 256 * 64 + 4 * 256\nbytes_distinct_over_least = 8.94\n");
  CHECK(matches(student.check("00.1"), "^0 00.1 is right\\.[\\s\\S]*Next: 00.2 "));
  CHECK(student.desk.answer("00.1", false, out) == 0);
  CHECK(student.desk.next() == "00.2");

  // It is remembered, and forgotten when the file changes.
  CHECK(ExerciseDesk(student.my, student.desk.exercises()).next() == "00.2");
  student.write("00.1", "bytes_distinct = 3\n");
  CHECK(student.desk.next() == "00.1");
  out.str("");
  CHECK(student.desk.list(out) == 0);
  CHECK(matches(out.str(), "00.1 .* changed since it was right\n[\\s\\S]*0 of \\d+ are solved"));

  // A reset keeps the file.
  CHECK(student.desk.reset("00.1", out) == 0);
  CHECK(read_text(student.my / "00.1/answer.txt.bak") == "bytes_distinct = 3\n");
  CHECK(matches(read_text(student.my / "00.1/answer.txt"), "bytes_distinct = \\?"));

  // A right kernel.
  const Exercise& e = student.exercise("10.4");
  student.write("10.4", student_file(e, attention_of(e), region_of(attention_of(e), e.region)));
  CHECK(matches(student.check("10.4"), "^0 10.4 is right\\."));
}

TEST_CASE("exercises: bad input is answered in a sentence") {
  Desk student;
  CHECK(matches(failure_of([&] { student.desk.show("99.1", student.out); }),
                "^1 There is no exercise '99.1'; the exercises are 00.1, 00.2"));
  student.write("10.1", "bytes_asked = lots\n");
  CHECK(matches(failure_of([&] { student.check("10.1"); }), "^1 'lots' is no number"));
  student.write("10.1", "bytes_asked is 3\n");
  CHECK(matches(failure_of([&] { student.check("10.1"); }),
                "^1 The line 'bytes_asked is 3' should be 'name = number'"));
  student.write("10.1", "");
  CHECK(matches(student.check("10.1"), "^1 10.1 is not right yet. The line 'bytes_asked = ...' is missing."));
  student.write("10.1", "bytes_asked = 0 / 0\n");
  CHECK(matches(student.check("10.1"), "^1 10.1 is not right yet. bytes_asked = 0 / 0 is no number"));
  std::ofstream(student.my / "progress.json") << "{ damaged";
  CHECK(ExerciseDesk(student.my, student.desk.exercises()).next() == "00.1");
}

TEST_CASE("exercises: a student's kernel that is not even wrong is answered in a sentence") {
  Desk student;
  const Exercise& e = student.exercise("10.4");
  const std::string attention = student_file(e, attention_of(e), region_of(attention_of(e), e.region));
  const std::string place = "10.4/attention.cu:\\d+";
  auto answer = [&](const std::string& what, const std::string& with, double seconds = 10) {
    student.write("10.4", replaced(attention, what, with));
    return student.check("10.4", {60, seconds});
  };
  const std::string barrier = "    __syncthreads();  // K and V are complete";
  const std::string store = "LSE[q0 + lane] = l_new";

  const std::string broken = answer("const int lane =", "const int lane = banana +");
  CHECK_MESSAGE(matches(broken, "^1 10.4 is not right yet. It does not compile: .*" + place +
                                    ": 'banana' was not declared"),
                broken);
  CHECK(std::count(broken.begin(), broken.end(), '\n') == 2);
  const std::string missing =
      answer("namespace step_10 {", "void nowhere();\nnamespace step_10 {\nvoid call() { nowhere(); }\n");
  CHECK_MESSAGE(
      matches(
          missing,
          "^1 10.4 is not right yet. It does not compile: nowhere\\(\\) is declared, but defined nowhere"),
      missing);
  const std::string deadlock = answer(barrier, "    if (lane == 0) __syncwarp();\n" + barrier);
  CHECK_MESSAGE(matches(deadlock, "^1 10.4 is not right yet. deadlock .*" + place), deadlock);
  const std::string endless = answer(barrier, "    while (lane >= 0) __syncwarp();\n" + barrier, 1);
  CHECK_MESSAGE(matches(endless,
                        "^1 10.4 is not right yet. Your kernel did not end within 1.* s; it was stopped in "
                        "attention_kernel, .*"),
                endless);
  const std::string silent = answer(barrier, "    for (volatile int x = 0; x == 0;) {}\n" + barrier, 1);
  CHECK_MESSAGE(matches(silent, "^1 10.4 is not right yet. Your kernel did not end within 1.* s"), silent);
  const std::string outside = answer(store, "LSE[1000000 + q0 + lane] = l_new");
  CHECK_MESSAGE(matches(outside, "^1 10.4 is not right yet. .*" + place + ".* outside every allocation"),
                outside);
  const std::string wild = answer(store, "LSE[-(int64_t{1} << 36)] = l_new");
  CHECK_MESSAGE(matches(wild, "^1 10.4 is not right yet. .*" + place), wild);
  const std::string exits = answer("SharedMemory<d>& tiles =", "exit(0);\n  SharedMemory<d>& tiles =");
  CHECK_MESSAGE(matches(exits, "^1 10.4 is not right yet. .*exit code 0"), exits);
}
