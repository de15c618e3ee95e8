/// @file
/// Which steps a test program looks at, so that ctest can run parts of it side by side.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "steps/course/steps.h"

/// Is it this step's turn? FLASH_TEST_STEPS=10,11 limits the tests to these steps.
inline bool is_chosen(const std::string& step) {
  const char* names = std::getenv("FLASH_TEST_STEPS");
  return !names || std::string(names).find(step.substr(0, 2)) != std::string::npos;
}

inline std::vector<course::Step> chosen_steps() {
  std::vector<course::Step> chosen;
  for (const course::Step& step : course::all_steps())
    if (is_chosen(step.name)) chosen.push_back(step);
  return chosen;
}
