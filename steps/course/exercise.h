/// @file
/// The command `exercise`, and what the ladder wants to know about exercises.
#pragma once

#include <string>

#include "command.h"
#include "steps.h"

namespace course {

void add_exercise(CLI::App& app, Command& chosen);

/// How many exercises of a step there are, and how many the student has solved.
struct ExerciseCount {
  int done = 0;
  int all = 0;
};
ExerciseCount count_exercises(const Step& step);

/// The id of the first exercise that is not solved, or "".
std::string next_exercise();

}  // namespace course
