/// @file
/// An exercise is one Markdown file, steps/NN_name/exercises/K_name.md. This reads it, and makes of it and of
/// the step's attention.cu the file that the student works in.
///
///     # 10.3 Fill in: title      the kind is Predict, Fill in or Bug hunt
///     what the student reads
///     ## Hint                    one hint
///
/// Predict:
///     ## Run                     one line in backquotes: where the numbers come from, see exercise_numbers.h
///     ## Answer                  a fenced block of lines "name = number"
///     ## Wrong                   twice or more: which mistake it is, and a fenced block like Answer's
///
/// Fill in and Bug hunt:
///     ## Region                  a name in backquotes: the lines of attention.cu between two lines "//! [name]"
///     ## Unsolved                a fenced block that the student finds in their place
///     ## Expect                  a regular expression in backquotes: it finds the message of Unsolved
///     ## Wrong                   twice or more: which mistake it is, and a fenced block that looks right
///
/// The answer of these two is the region as it stands in attention.cu; there is no second copy of it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace course {

/// Lines "name = number" in their order. The number is text: what a student writes may be a sum or a question
/// mark.
using Numbers = std::vector<std::pair<std::string, std::string>>;

/// A plausible wrong answer.
struct WrongAnswer {
  std::string sentence;  ///< which mistake it is
  std::string block;     ///< numbers, or lines of code
};

/// One exercise, as its file says.
struct Exercise {
  enum class Kind { predict, fill_in, bug_hunt };

  std::string id;              ///< "10.3"
  std::string step;            ///< the folder of its step: "10_tiling"
  std::filesystem::path file;  ///< the Markdown file
  Kind kind = Kind::predict;
  std::string title;  ///< without number and kind
  std::string text;   ///< what the student reads
  std::string hint;
  std::vector<WrongAnswer> wrong;

  std::string run;  ///< predict: where the numbers come from
  Numbers answer;   ///< predict

  std::string region;    ///< the others: a marker's name
  std::string unsolved;  ///< what the student finds in the region's place
  std::string expect;    ///< regular expression of the message that the unsolved file gives

  bool is_code() const { return kind != Kind::predict; }
  /// "Predict", "Fill in", "Bug hunt"
  const char* kind_name() const;
};

/// Reads an exercise from the text of its file.
/// @throws Failure  for whatever is missing or superfluous, with the file's name
Exercise parse_exercise(const std::string& markdown, const std::filesystem::path& file);

/// The exercises of a step, in the order of their numbers; none if it has no folder for them.
/// @throws Failure  a file cannot be read, or two have one number
std::vector<Exercise> read_exercises(const std::filesystem::path& step_folder);

/// The lines "name = number" of a text; other lines may be empty or begin with '#'.
/// @throws Failure  for any other line
Numbers parse_numbers(const std::string& text);

/// The lines of a named region, without its markers.
/// @throws Failure  no such region, or a marker that is not there exactly twice
std::string region_of(const std::string& source, const std::string& name);

/// The student's file: attention.cu with `block` in the region's place and without its markers, except that a
/// fill-in says where its lines begin and end.
std::string student_file(const Exercise& exercise, const std::string& attention, const std::string& block);

/// The step's attention.cu, which holds the answer of a fill-in and of a bug hunt.
std::string attention_of(const Exercise& exercise);

/// The whole text of a file.
/// @throws Failure  it cannot be read
std::string read_text(const std::filesystem::path& file);

}  // namespace course
