/// @file
/// Which steps there are. Each one that was built left a small JSON file beside its libraries.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "check.h"

namespace course {

/// One step of the ladder.
struct Step {
  std::string name;   ///< its folder: "10_tiling"
  std::string prev;   ///< the step it is compared with, "" for the first
  std::string arch;   ///< the least GPU architecture: "75", "80", or "90a" (Hopper alone)
  std::string title;  ///< its one idea

  std::string number() const { return name.substr(0, 2); }
  /// Its lesson, kernel file and exercises.
  std::filesystem::path folder() const;
  /// The shared library for a machine; it need not exist.
  std::filesystem::path library(Machine machine) const;
};

/// All steps that were built, in the order of the ladder.
const std::vector<Step>& all_steps();

/// The step of a number ("10") or full name ("10_tiling").
/// @throws Failure  naming the steps that exist
const Step& find_step(const std::string& name);

/// The steps of these names, in the order given; all of them for an empty list.
std::vector<Step> find_steps(const std::vector<std::string>& names);

}  // namespace course
