/// @file
/// Runs one step on one problem on one machine, and says whether it is right. The commands, the exercises and
/// the tests all come through here.
///
///     const Question question = ask(problem, make_inputs("gaussian", problem, 1));
///     const Outcome outcome = check_apart(find_step("10").library(Machine::simulated), question);
///     if (!outcome.right()) std::puts(outcome.message.c_str());
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "inputs.h"
#include "machine.h"
#include "reference_cpu/compare.h"
#include "reference_cpu/simulator/simulator.h"

namespace course {

/// One problem, its inputs and its exact answer. Making one is the slow part; it serves any number of steps.
struct Question {
  attention::Problem problem;
  Inputs inputs;
  attention::Rows exact;
  attention::Allowance allowed;
  mutable std::map<std::string, std::shared_ptr<Question>> fp8 = {};  ///< by precision; see in_fp8()
};

/// The answer that an FP8 step is held to: exact attention of Q, K and V as its quantization leaves them (reference_cpu/fp8.h),
/// and a multiple of the error of the twin that rounds and sums as the step does. Without two_level, also what the narrow
/// accumulator may lose. For a problem too large for the twin, a multiple of the error on N(0,1). It costs as much as ask(),
/// so the question keeps it.
/// @param precision  what flash_precision() says: "fp8" and words
/// @throws Failure   a word is not known
const Question& in_fp8(const Question& question, const std::string& precision = "fp8");

/// The answer for a step of any precision: the question's own for "fp16", else in_fp8().
const Question& answer_in(const Question& question, const std::string& precision);

/// Computes the exact answer.
/// @param most_rows  above so many rows of O, a sample of `sampled_rows` is checked, else all; 0 means no
/// limit
/// @throws attention::Refused  the problem breaks the contract
Question ask(const attention::Problem& problem, Inputs inputs, int64_t most_rows = 0,
             int64_t sampled_rows = 512, uint64_t seed = 1);

/// How to run.
struct Setting {
  Machine machine = Machine::simulated;
  simulator::Options simulator;  ///< schedule, seed, mutant; of no effect on the GPU
  double timing_seconds = 0;     ///< GPU: launch repeatedly for so long, then verify again
  std::string O_file, LSE_file;  ///< .npy files for the outputs, "" for none; BF16 is written as float32
};

/// What came of it.
struct Outcome {
  enum class Kind {
    right,
    wrong,    ///< a wrong number, a touched guard, a report of the simulator, a crash, a hang
    refused,  ///< the step or the machine refused before anything was computed
    skipped   ///< this machine is not here
  };
  Kind kind = Kind::wrong;
  std::string message;                     ///< one line; if not right, a full sentence that says why
  attention::Verdict verdict;              ///< of compare(), if the step ran to its end
  simulator::Ledger ledger;                ///< simulated: what one run asked of the machine
  std::vector<simulator::Report> reports;  ///< simulated: all faults found
  std::vector<simulator::SyncSite> sites;  ///< simulated: the synchronization calls that ran
  double seconds = 0;                      ///< simulated: of the computer's time, for the run alone
  std::vector<double> ms;                  ///< GPU: of each timed launch
  std::string kernels;                     ///< GPU: see flash_kernels()
  bool right() const { return kind == Kind::right; }
};

/// Poisons O, LSE and workspace with NaN, runs the step, and compares everything that can be compared: rows
/// of O and LSE against the exact answer, the inputs against what they were, the guards, the simulator's
/// reports. On the GPU a timed run is followed by another check, whose outputs must be the same bit for bit.
/// It runs in this process: a crash or a hang of the step is one of this process. See check_apart().
/// @param library  Step::library(), or a student's own
Outcome check(const std::filesystem::path& library, const Question& question, const Setting& setting = {});

/// check() in a child process with a time limit; crashes and hangs become Outcome::message.
/// @param waiting  called about ten times a second with the seconds gone; may be empty
Outcome check_apart(const std::filesystem::path& library, const Question& question,
                    const Setting& setting = {}, double limit_seconds = 120,
                    const std::function<void(double)>& waiting = {});

/// "right", "wrong", "refused", "skipped"
const char* name_of(Outcome::Kind kind);

void to_json(nlohmann::json& j, const Outcome& outcome);
void from_json(const nlohmann::json& j, Outcome& outcome);

}  // namespace course

namespace simulator {
void to_json(nlohmann::json& j, const Ledger& ledger);
void from_json(const nlohmann::json& j, Ledger& ledger);
}  // namespace simulator
