/// @file
/// How the program fails: with one full sentence and an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace course {

/// The program's exit codes: everything was right; something was wrong or refused; nothing could run.
enum ExitCode { exit_right = 0, exit_wrong = 1, exit_skipped = 77 };

/// Thrown for everything that the user should read. what() is a full sentence: what was wrong, the number,
/// what to do.
class Failure : public std::runtime_error {
public:
  explicit Failure(const std::string& sentence, int exit_code = exit_wrong)
      : std::runtime_error(sentence), exit_code(exit_code) {}
  int exit_code;
};

}  // namespace course
