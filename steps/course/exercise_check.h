/// @file
/// Is a student's answer right?
#pragma once

#include <filesystem>
#include <string>

#include "exercise_file.h"
#include "exercise_numbers.h"

namespace course {

/// How long things may take, in seconds.
struct ExerciseLimits {
  double compile = 120;
  double run = 20;  ///< one problem, all schedules
};

/// What came of a check.
struct ExerciseVerdict {
  bool right = false;
  std::string message;  ///< if wrong: what is wrong, in full sentences
};

/// Checks a student's file: attention.cu is compiled and run on the simulated GPU, each problem in a child
/// process and in every schedule; the numbers of answer.txt are compared with what is counted now. Ends in
/// bounded time whatever the file holds.
/// @param scratch  a folder for what is compiled
/// @throws Failure  the file cannot be read, or this machine cannot check it
ExerciseVerdict check_exercise(const Exercise& exercise, const std::filesystem::path& student_file,
                               const std::filesystem::path& scratch, const ExerciseLimits& limits = {});

/// The part that runs a kernel: small problems with odd sizes, both masks, both dimensions, rows that see
/// nothing, large scores, all-negative scores and NaN at hidden keys.
/// @param step     "10_tiling"; in a step before 10, a NaN in V at a hidden key must not reach O either
/// @param library  its shared library for the simulated GPU
ExerciseVerdict check_kernel(const std::string& step, const std::filesystem::path& library,
                             const ExerciseLimits& limits = {});

/// The part that compares numbers: a missing or unreadable one, a known mistake, or which one is too large or
/// too small; never the right number itself.
ExerciseVerdict check_numbers(const Exercise& exercise, const Numbers& given, const NumberOf& truth);

}  // namespace course
