/// @file
/// Q, K and V by name: the inputs that make wrong kernels show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference_cpu/attention.h"

namespace course {

/// The input tensors of one problem on the host, bit patterns of its dtype.
struct Inputs {
  std::vector<uint16_t> Q;  ///< [batch, heads, seq_q, dim]
  std::vector<uint16_t> K;  ///< [batch, heads, seq_k, dim]
  std::vector<uint16_t> V;  ///< [batch, heads, seq_k, dim]
};

/// A generator's name and what it is good for.
struct InputKind {
  const char* name;
  const char* what;
};

/// All generators: gaussian, outliers, growing, negative, last_key_wins, fingerprint, zeros_q.
const std::vector<InputKind>& input_kinds();

/// Makes inputs. The same name, problem and seed give the same bits on every machine, whatever its number of
/// cores.
/// @throws Failure  for an unknown name, or if the tensors do not fit into this machine's memory
Inputs make_inputs(const std::string& name, const attention::Problem& problem, uint64_t seed);

}  // namespace course
