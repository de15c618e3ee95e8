/// @file
/// The GPU, reached through device.gpu.so. Only child processes open it: a process that has used CUDA cannot
/// fork.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device_gpu.h"

namespace course {

/// device.gpu.so, opened, with errors as exceptions.
class Gpu {
public:
  /// Opens the library and the first GPU.
  /// @throws Failure  with exit_skipped: no library (built without CUDA), no driver, no GPU
  Gpu();

  const flash_gpu_info& info() const { return info_; }
  void* allocate(size_t bytes);
  void free(void* pointer);
  void copy(void* to, const void* from, size_t bytes);
  void fill(void* pointer, int byte, size_t bytes);
  void synchronize();

  /// Launches `work` (which enqueues on the stream that it is given) over and over; see flash_gpu_timing.
  struct Timing {
    std::vector<double> start_ms, ms;
    double sm_clock_mhz = 0;
  };
  Timing time(const std::function<void(void* stream)>& work, double seconds, int64_t most_launches,
              double clock_after = 0, bool graph = true);

  /// Bytes a second that a copy within the GPU's memory reads and writes, together.
  double copy_bandwidth();

private:
  struct Functions;
  const Functions& f_;
  flash_gpu_info info_{};
};

/// Whether there is a GPU, as a child process saw it.
struct GpuState {
  bool usable = false;
  flash_gpu_info info{};
  std::string why;  ///< a full sentence if it is not usable
};

/// Looks once a process.
const GpuState& gpu_state();

/// "" if a GPU of this compute capability runs code for architecture `arch` ("75", "80", "90a"); else a
/// sentence.
std::string why_not(const std::string& arch, const flash_gpu_info& gpu);

/// Dense FP16 tensor-core peak in TFLOP/s at the data sheet's clock, or 0 if this program does not know the
/// GPU.
double peak_tflops(const flash_gpu_info& gpu);

}  // namespace course
