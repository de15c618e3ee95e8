/// @file
/// Device memory for one run.
#include "device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "failure.h"
#include "reference_cpu/simulator/simulator.h"

namespace course {
namespace {

constexpr int poison_byte = 0xFF;  // NaN in FP16 and in float

class SimulatedDevice : public Device {
public:
  SimulatedDevice() { simulator::free_all(); }
  void* allocate(size_t bytes, const char* name) override { return simulator::allocate(bytes, name); }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void poison(void* memory, size_t bytes) override {
    if (bytes) std::memset(memory, poison_byte, bytes);
  }
  void synchronize() override {}
  std::string damage() override { return ""; }

private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes) std::memcpy(to, from, bytes);
  }
};

class GpuDevice : public Device {
public:
  ~GpuDevice() override {
    try {
      for (const Guarded& g : guarded_) gpu_.free(g.base);
    } catch (
        const Failure&) {  // after a kernel's fault nothing can be freed, and the fault has been reported
    }
  }
  void* allocate(size_t bytes, const char* name) override {
    auto* base = static_cast<char*>(gpu_.allocate(bytes + 2 * guard_bytes));
    gpu_.fill(base, poison_byte, bytes + 2 * guard_bytes);
    guarded_.push_back({name, base, bytes});
    return base + guard_bytes;
  }
  void upload(void* to, const void* from, size_t bytes) override { gpu_.copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { gpu_.copy(to, from, bytes); }
  void poison(void* memory, size_t bytes) override { gpu_.fill(memory, poison_byte, bytes); }
  void synchronize() override { gpu_.synchronize(); }
  Gpu* gpu() override { return &gpu_; }

  std::string damage() override {
    for (const Guarded& g : guarded_) {
      if (const long i = first_changed(g.base); i >= 0)
        return "The kernel wrote " + std::to_string(guard_bytes - static_cast<size_t>(i)) +
               " bytes before the begin of " + g.name + ".";
      if (const long i = first_changed(g.base + guard_bytes + g.bytes); i >= 0)
        return "The kernel wrote past the end of " + g.name + ", at byte " +
               std::to_string(g.bytes + static_cast<size_t>(i)) + " of " + std::to_string(g.bytes) + ".";
    }
    return "";
  }

private:
  // A multiple of 256, so that tensors stay aligned. Under compute-sanitizer FLASH_GUARDS=0 leaves the guards out: what
  // is read from a guard lies within the allocation, and memcheck would not see it.
  const size_t guard_bytes = std::getenv("FLASH_GUARDS") && std::string(std::getenv("FLASH_GUARDS")) == "0" ? 0 : 64 << 10;
  struct Guarded {
    std::string name;
    char* base;
    size_t bytes;
  };

  long first_changed(const char* band) {
    std::vector<unsigned char> host(guard_bytes);
    gpu_.copy(host.data(), band, guard_bytes);
    const auto i = std::find_if(host.begin(), host.end(), [](unsigned char b) { return b != poison_byte; });
    return i == host.end() ? -1 : i - host.begin();
  }

  Gpu gpu_;
  std::vector<Guarded> guarded_;
};

}  // namespace

std::unique_ptr<Device> open_device(Machine machine) {
  if (machine == Machine::gpu) return std::make_unique<GpuDevice>();
  return std::make_unique<SimulatedDevice>();
}

}  // namespace course
