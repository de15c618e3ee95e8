/// @file
/// Timing a step on the GPU by a named protocol.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check.h"

namespace course {

/// The launches of one window of time.
struct Window {
  std::string protocol;  ///< "burst", "steady" or "three runs"
  double ms_median = 0, ms_p10 = 0, ms_p90 = 0;
  int launches = 0;
  double sm_clock_mhz = 0;  ///< 0 if unknown
};

/// A step on one problem.
struct Measurement {
  Outcome::Kind kind = Outcome::Kind::wrong;  ///< right: verified before and after; refused: the dtype
  std::string message;
  std::vector<Window> windows;
  std::string kernels;  ///< see flash_kernels()
};

/// Median and spread of the launches that begin between two moments after the first one's begin.
Window window(const std::string& protocol, const std::vector<double>& start_ms, const std::vector<double>& ms,
              double from_ms, double to_ms);

/// Verifies, measures, and verifies again, in a child process.
///
/// *burst*: the GPU idles for 0.4 s, then runs the step alone; the launches that begin 10 to 40 ms after the
/// start, while the clock is still high. *steady*: the same run's last 0.3 s of 0.7 s, at the clock that the
/// power limit allows. A launch too long for the burst window gets *three runs* instead, each after 0.4 s of
/// idling. The inputs stay in L2 as far as they fit.
Measurement measure(const std::filesystem::path& library, const Question& question);

}  // namespace course
