/// @file
/// What `run` prints: a table, a JSON array.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check.h"
#include "steps.h"
#include "table.h"

namespace course {

/// A step, and where it runs.
struct Job {
  Step step;
  Machine machine = Machine::simulated;
  std::string skipped;  ///< why it cannot run, or ""
};

/// The table of one machine: on the GPU time, simulated the ledger.
Table run_table(Machine machine, const std::vector<Job>& jobs);

/// A row of it.
std::vector<std::string> run_row(const Job& job, const attention::Problem& problem, const Outcome& outcome);

/// The same as JSON, with exact counts.
nlohmann::json run_json(const Job& job, const attention::Problem& problem, const Outcome& outcome);

}  // namespace course
