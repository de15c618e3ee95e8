/// @file
/// The tensors of one question on one device.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "device.h"

namespace course {

/// O and LSE on the host.
struct Outputs {
  std::vector<uint16_t> O;
  std::vector<float> LSE;
  /// Bit for bit: a NaN equals itself.
  bool operator==(const Outputs& other) const;
};

/// Q, K, V, O, LSE and workspace in a device's memory.
class Placed {
public:
  /// Allocates and uploads; O, LSE and workspace are NaN.
  Placed(Device& device, const Question& question, size_t workspace_bytes);

  const attention::Tensors& tensors() const { return t_; }

  /// Fills O, LSE and workspace with NaN again.
  void poison_outputs();

  Outputs outputs();

  /// "" unless the kernel wrote to its inputs or into a guard; else a full sentence.
  std::string damage();

private:
  void* place(const std::vector<uint16_t>& values, const char* name);

  Device& device_;
  const Question& question_;
  attention::Tensors t_;
  size_t O_bytes_, LSE_bytes_;
};

}  // namespace course
