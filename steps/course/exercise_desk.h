/// @file
/// The student's desk: the folder with the files that are being worked in, and what has been solved.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "exercise_check.h"

namespace course {

/// All exercises, and a folder of the student's. Its commands print, and return the exit code.
///
/// The folder holds ID/attention.cu or ID/answer.txt, and progress.json: of every exercise that was right
/// the fingerprint of the file that was.
class ExerciseDesk {
public:
  /// @param my  the folder; it is made when first needed
  explicit ExerciseDesk(std::filesystem::path my, std::vector<Exercise> exercises);

  /// Prints an exercise and puts its file on the desk, unless one lies there.
  int show(const std::string& id, std::ostream& out);
  int list(std::ostream& out) const;
  /// 0 only for a right answer.
  int check(const std::string& id, std::ostream& out, const ExerciseLimits& limits = {});
  int hint(const std::string& id, std::ostream& out) const;
  /// Prints the answer; before the exercise is solved, only if asked twice.
  int answer(const std::string& id, bool show_anyway, std::ostream& out) const;
  /// Puts a fresh file on the desk; the old one gets the ending .bak.
  int reset(const std::string& id, std::ostream& out);

  /// The first exercise that is not solved, or "".
  std::string next() const;
  bool solved(const Exercise& exercise) const;
  const std::vector<Exercise>& exercises() const { return exercises_; }
  std::filesystem::path file_of(const Exercise& exercise) const;

private:
  const Exercise& find(const std::string& id) const;
  void lay_out(const Exercise& exercise) const;
  std::string state(const Exercise& exercise) const;

  std::filesystem::path my_;
  std::vector<Exercise> exercises_;
  std::map<std::string, std::string> progress_;  // id -> fingerprint
};

/// The desk of this checkout: its folder my/, and the exercises of all steps that were built.
ExerciseDesk own_desk();

}  // namespace course
