/// @file
/// Which machine a test program runs the steps on: the simulated GPU, or with FLASH_TEST_MACHINE=gpu the real one. Where there
/// is none, the program ends with 77, ctest's "skipped": nothing was tested, and that is not a pass.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "steps/course/gpu.h"
#include "steps/course/machine.h"

inline course::Machine machine() {
  const char* name = std::getenv("FLASH_TEST_MACHINE");
  return name && std::string(name) == "gpu" ? course::Machine::gpu : course::Machine::simulated;
}

[[maybe_unused]] inline const bool looked_for_gpu = [] {
  if (machine() == course::Machine::simulated || course::gpu_state().usable) return true;
  std::puts(course::gpu_state().why.c_str());
  std::exit(77);
}();
