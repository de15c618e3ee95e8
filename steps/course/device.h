/// @file
/// Device memory for one run, the same for both machines.
#pragma once

#include <memory>
#include <string>

#include "gpu.h"
#include "machine.h"

namespace course {

/// Memory of a machine. Every allocation starts as NaN (0xFF bytes) and has guards at both ends: on the GPU
/// bands of memory that must not change; the simulated machine itself reports each access outside an
/// allocation, reads too.
class Device {
public:
  virtual ~Device() = default;

  /// @param name  for messages: "Q", "workspace"
  virtual void* allocate(size_t bytes, const char* name) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  /// Fills memory with NaN again.
  virtual void poison(void* memory, size_t bytes) = 0;
  /// Waits for the kernels.
  /// @throws Failure  with the GPU's error
  virtual void synchronize() = 0;
  /// "" while all guards are intact; else a sentence that names the tensor and the first bad byte.
  virtual std::string damage() = 0;
  /// The GPU behind it, or null.
  virtual Gpu* gpu() { return nullptr; }
};

/// Opens a machine.
/// @throws Failure  with exit_skipped if there is no GPU
std::unique_ptr<Device> open_device(Machine machine);

}  // namespace course
