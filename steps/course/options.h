/// @file
/// What the commands have in common: reading numbers, and the options that describe a problem.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "check.h"
#include "command.h"

namespace course {

/// A whole number.
/// @param option  for the sentence: "--batch"
/// @throws Failure  the text is no whole number, or does not fit into 64 bits
int64_t whole_number(const std::string& option, const std::string& text);

/// A number.
/// @throws Failure  the text is none, "nan" included
double number(const std::string& option, const std::string& text);

/// "fp16" or "bf16".
const char* name_of(attention::Dtype dtype);

/// The type of such a name.
/// @throws Failure  for another name
attention::Dtype read_dtype(const std::string& name);

/// The options --batch, --heads, --seq, --seq-q, --seq-k, --dim, --causal, --scale, --dtype, --input, --seed,
/// --q, --k, --v.
struct ProblemOptions {
  std::optional<std::string> batch, heads, seq, seq_q, seq_k, dim, scale, input, seed;
  bool causal = false;
  std::string dtype = "fp16";
  std::string Q_file, K_file, V_file;

  void add_to(CLI::App& app);
  bool from_files() const { return !Q_file.empty() || !K_file.empty() || !V_file.empty(); }
  uint64_t seed_value() const;
};

/// A problem and its inputs, not yet answered.
struct Given {
  attention::Problem problem;
  Inputs inputs;
};

/// What the options describe; what they leave open is the machine's default: B=1 H=2 S=256 D=64 simulated,
/// and the ladder's standard shape B=2 H=16 S=8192 D=128 on the GPU.
/// @throws Failure            options that contradict each other, a bad number, a bad file
/// @throws attention::Refused  a problem that the contract refuses
Given read_problem(const ProblemOptions& options, Machine machine);

/// "B=1 H=2 Sq=256 Sk=256 D=64 full scale=0.125", and " bf16" if it is
std::string describe(const attention::Problem& problem);

/// Floating-point operations of the two matrix products: 4 * B * H * Sq * Sk * D, halved if causal.
double matmul_flops(const attention::Problem& problem);

}  // namespace course
