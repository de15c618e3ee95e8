/// @file
/// One step's shared library, opened.
#pragma once

#include <filesystem>
#include <string>

#include "reference_cpu/attention.h"
#include "step_interface.h"

namespace course {

/// A step (or a student's version of one), behind its C interface. Open it in the process that runs it: a
/// simulated step shares the simulator with the program.
class StepLibrary {
public:
  /// @throws Failure  the file is absent, or is no step
  explicit StepLibrary(const std::filesystem::path& file);

  /// Bytes of scratch memory that the step wants.
  /// @throws attention::Refused  with the step's sentence
  size_t workspace_bytes(const attention::Problem& problem) const;

  /// Runs (on the GPU: enqueues on `stream`) the step.
  /// @throws attention::Refused  with the step's sentence
  void run(const attention::Problem& problem, const attention::Tensors& tensors,
           void* stream = nullptr) const;

  /// Why the step does not take tensors of a dtype: its own sentence, or "" if it does.
  std::string refusal(attention::Dtype dtype) const;

  /// Where in the workspace an FP8 step's last run left its e4m3 tensors; see flash_quantized().
  /// @throws attention::Refused  this step multiplies FP16
  attention::Tensors quantized(const attention::Problem& problem, const attention::Tensors& tensors) const;

  /// The kernels launched since the library was opened, one a line; see step_interface.h.
  std::string kernels() const { return kernels_(); }

  /// What the products multiply; see flash_precision().
  std::string precision() const { return precision_(); }

  /// Does it multiply FP8 numbers?
  bool is_fp8() const { return precision().starts_with("fp8"); }

private:
  // The library is never closed: what the simulator remembers of it (names of source files) stays valid.
  decltype(&flash_workspace_bytes) workspace_;
  decltype(&flash_attention) attention_;
  decltype(&flash_quantized) quantized_;
  decltype(&flash_kernels) kernels_;
  decltype(&flash_precision) precision_;
};

}  // namespace course
