/// @file
/// Is a student's answer right?
#include "exercise_check.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "check.h"
#include "child.h"
#include "exercise_build.h"
#include "failure.h"
#include "options.h"
#include "steps.h"

namespace course {
namespace {

namespace fs = std::filesystem;
using attention::Problem;

constexpr float usual = 0;  // the scale 1 / sqrt(d)

// One problem and what its inputs bring out.
struct Trial {
  int64_t batch, heads, seq_q, seq_k, dim;
  bool causal;
  float scale;
  const char* input;
  bool hidden_nan = false;   // keys beyond a causal query's sight hold NaN
  const char* only = "";     // the one step that is asked, if not all are
};

// The cheap and telling ones first.
constexpr Trial trials[] = {
    {1, 1, 64, 64, 64, false, usual, "gaussian"},
    {1, 1, 33, 130, 64, false, usual, "growing"},      // the maximum rises from block to block
    {1, 2, 65, 63, 128, false, usual, "fingerprint"},  // heads, keys and columns change places
    {1, 1, 70, 70, 64, true, usual, "gaussian"},       // the diagonal block is cut twice
    {1, 1, 130, 60, 64, true, usual, "gaussian"},      // the first 70 rows see no key: a whole block, and a part
    {1, 1, 40, 100, 64, false, 8, "gaussian"},  // scores of hundreds: exp overflows without the maximum
    {1, 1, 40, 100, 64, false, 4, "negative"},  // all far below zero: exp underflows under a maximum of zero
    {1, 1, 40, 70, 64, false, -1, "gaussian"},  // the least score has the largest weight
    {2, 1, 20, 150, 128, true, usual, "last_key_wins"},
    {1, 1, 70, 70, 64, true, usual, "gaussian", true},
    {1, 1, 20, 650, 64, false, usual, "gaussian"},  // six key blocks of 128: a ring of two goes round three times
    {1, 1, 40, 300, 64, false, 2, "gaussian"},  // three key blocks of 128: some maxima rise by more than 2^8, some by less
    {1, 140, 5, 7, 64, false, usual, "fingerprint"},  // more query blocks than SMs: a CTA that stays gets a second
    {1, 1, 200, 450, 64, true, usual, "gaussian", false, "41"},  // consumers that see nothing of the last key blocks
    {1, 5, 1, 4200, 64, false, usual, "growing", false, "42"},  // 165 key blocks for 132 SMs: parts of pieces
    {1, 2, 3, 4100, 64, false, -1, "gaussian", false, "42"},
};

// Of every head the last key, which the last query alone sees: that row is NaN, and no other may be.
void hide_nan(Problem& p, Inputs& inputs, bool in_V) {
  constexpr uint16_t nan = 0x7E00;
  for (int64_t head = 0; head < p.batch * p.heads; ++head) {
    const auto last = static_cast<size_t>((head * p.seq_k + p.seq_k - 1) * p.dim);
    for (size_t c = 0; c < static_cast<size_t>(p.dim); ++c) {
      inputs.K[last + c] = nan;
      if (in_V) inputs.V[last + c] = nan;
    }
  }
}

Question question_of(const Trial& trial, const std::string& step) {
  Problem p{trial.batch, trial.heads, trial.seq_q, trial.seq_k, trial.dim, trial.causal, trial.scale};
  if (trial.scale == usual) p.scale = attention::default_scale(trial.dim);
  Inputs inputs = make_inputs(trial.input, p, 1);
  if (trial.hidden_nan) hide_nan(p, inputs, step < "10");
  return ask(p, std::move(inputs));
}

const char* name_of(simulator::Schedule schedule) {
  return schedule == simulator::Schedule::early  ? "early"
         : schedule == simulator::Schedule::late ? "late"
                                                 : "random";
}

// Source without comments and white space.
std::string bare(const std::string& source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0)
      i = std::min(source.find('\n', i), source.size());
    else if (!std::isspace(static_cast<unsigned char>(source[i])))
      text += source[i];
  }
  return text;
}

// The sentence about a known mistake, if the student made exactly that.
std::string known_mistake(const Exercise& exercise, const std::string& student) {
  const std::string attention = attention_of(exercise);
  for (const WrongAnswer& wrong : exercise.wrong)
    if (bare(student_file(exercise, attention, wrong.block)) == bare(student)) return wrong.sentence;
  return "";
}

bool same_numbers(const Numbers& few, const Numbers& many) {
  return std::ranges::all_of(few, [&](const auto& number) {
    const auto found = std::ranges::find(many, number.first, &Numbers::value_type::first);
    return found != many.end() && agrees(evaluate(found->second), evaluate(number.second));
  });
}

}  // namespace

ExerciseVerdict check_kernel(const std::string& step, const fs::path& library, const ExerciseLimits& limits) {
  for (const Trial& trial : trials) {
    if (!step.starts_with(trial.only)) continue;
    const Question question = question_of(trial, step);
    const std::string where = "\n  The problem: " + describe(question.problem) + ", input " + trial.input +
                              (trial.hidden_nan ? " with NaN at hidden keys" : "");
    const ChildResult child = run_in_child("Your kernel", limits.run, [&] {
      for (const auto schedule :
           {simulator::Schedule::early, simulator::Schedule::late, simulator::Schedule::random}) {
        Setting setting;
        setting.simulator.schedule = schedule;
        const Outcome outcome = check(library, question, setting);
        if (outcome.right()) continue;
        return nlohmann::json(outcome.message + where + ", schedule " + name_of(schedule) + ".");
      }
      return nlohmann::json("");
    });
    if (!child.ok) return {false, child.sentence + where + "."};
    if (const std::string message = child.value; !message.empty()) return {false, message};
  }
  return {true, ""};
}

ExerciseVerdict check_numbers(const Exercise& exercise, const Numbers& given, const NumberOf& truth) {
  for (const auto& [name, unused] : exercise.answer) {
    const auto guess = std::ranges::find(given, name, &Numbers::value_type::first);
    if (guess == given.end()) return {false, "The line '" + name + " = ...' is missing."};
    if (guess->second == "?") return {false, "The number " + name + " is still a question mark."};
    if (guess->second.empty()) return {false, "The number " + name + " is missing."};
  }
  std::string message;
  for (const auto& [name, unused] : exercise.answer) {
    const std::string text = std::ranges::find(given, name, &Numbers::value_type::first)->second;
    const double guess = evaluate(text), right = truth(name);
    if (agrees(guess, right)) continue;
    const char* how = std::isnan(guess) ? " is no number."
                      : guess > right   ? " is too large."
                                        : " is too small.";
    message += (message.empty() ? "" : "\n") + name + " = " + text + how;
  }
  if (message.empty()) return {true, ""};
  for (const WrongAnswer& wrong : exercise.wrong)
    if (same_numbers(parse_numbers(wrong.block), given)) message += "\n" + wrong.sentence;
  return {false, message};
}

ExerciseVerdict check_exercise(const Exercise& exercise, const fs::path& student_file,
                               const fs::path& scratch, const ExerciseLimits& limits) {
  const std::string text = read_text(student_file);
  if (!exercise.is_code()) return check_numbers(exercise, parse_numbers(text), numbers_from(exercise.run));
  const fs::path library = scratch / (exercise.id + ".simulated.so");
  const std::string sentence = build_kernel(student_file, exercise.step, library, limits.compile);
  ExerciseVerdict verdict =
      sentence.empty() ? check_kernel(exercise.step, library, limits) : ExerciseVerdict{false, sentence};
  if (verdict.right) return verdict;
  if (const std::string mistake = known_mistake(exercise, text); !mistake.empty())
    verdict.message += "\n" + mistake;
  return verdict;
}

}  // namespace course
