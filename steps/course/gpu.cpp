/// @file
/// The GPU, reached through device.gpu.so.
#include "gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "child.h"
#include "failure.h"
#include "paths.h"

namespace course {

struct Gpu::Functions {
  decltype(&flash_gpu_open) open;
  decltype(&flash_gpu_allocate) allocate;
  decltype(&flash_gpu_free) free;
  decltype(&flash_gpu_copy) copy;
  decltype(&flash_gpu_fill) fill;
  decltype(&flash_gpu_synchronize) synchronize;
  decltype(&flash_gpu_time) time;
  decltype(&flash_gpu_copy_within) copy_within;

  Functions() {
    const auto file = bin_dir() / "device.gpu.so";
    if (!std::filesystem::exists(file))
      throw Failure("This build has no GPU code: it was configured without CUDA Toolkit 13.0 or newer.",
                    exit_skipped);
    void* library = dlopen(file.c_str(), RTLD_LOCAL | RTLD_NOW);
    if (!library)
      throw Failure("The library for the GPU cannot be opened: " + std::string(dlerror()) + ".",
                    exit_skipped);
    find(library, "flash_gpu_open", open);
    find(library, "flash_gpu_allocate", allocate);
    find(library, "flash_gpu_free", free);
    find(library, "flash_gpu_copy", copy);
    find(library, "flash_gpu_fill", fill);
    find(library, "flash_gpu_synchronize", synchronize);
    find(library, "flash_gpu_time", time);
    find(library, "flash_gpu_copy_within", copy_within);
  }

  static const Functions& instance() {
    static const Functions functions;
    return functions;
  }

private:
  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function)
      throw Failure("device.gpu.so has no function " + std::string(name) +
                    "; build the target course again.");
  }
};

namespace {

// Calls a function of the C interface; its sentence becomes an exception.
template <typename Function, typename... Arguments>
void call(int exit_code, Function function, Arguments... arguments) {
  char error[1024] = "";
  if (function(arguments..., error, sizeof error) != 0) throw Failure(error, exit_code);
}

struct Work {
  const std::function<void(void*)>& function;
  std::string error;
};

int32_t do_work(void* context, void* stream) {
  Work& work = *static_cast<Work*>(context);
  try {
    work.function(stream);
    return 0;
  } catch (const std::exception& e) {
    work.error = e.what();
    return 1;
  }
}

}  // namespace

Gpu::Gpu() : f_(Functions::instance()) { call(exit_skipped, f_.open, &info_); }

void* Gpu::allocate(size_t bytes) {
  void* pointer = nullptr;
  call(exit_wrong, f_.allocate, &pointer, bytes);
  return pointer;
}

void Gpu::free(void* pointer) { call(exit_wrong, f_.free, pointer); }
void Gpu::copy(void* to, const void* from, size_t bytes) { call(exit_wrong, f_.copy, to, from, bytes); }
void Gpu::fill(void* pointer, int byte, size_t bytes) { call(exit_wrong, f_.fill, pointer, byte, bytes); }
void Gpu::synchronize() { call(exit_wrong, f_.synchronize); }

Gpu::Timing Gpu::time(const std::function<void(void*)>& function, double seconds, int64_t most_launches,
                      double clock_after, bool graph) {
  Timing result;
  result.start_ms.resize(static_cast<size_t>(most_launches));
  result.ms.resize(static_cast<size_t>(most_launches));
  flash_gpu_timing t{seconds, most_launches, graph, clock_after, result.start_ms.data(), result.ms.data(), 0,
                     0};
  Work work{function, ""};
  char error[1024] = "";
  if (f_.time(do_work, &work, &t, error, sizeof error) != 0)
    throw Failure(work.error.empty() ? error : work.error);
  result.start_ms.resize(static_cast<size_t>(t.launches));
  result.ms.resize(static_cast<size_t>(t.launches));
  result.sm_clock_mhz = t.sm_clock_mhz;
  return result;
}

double Gpu::copy_bandwidth() {
  constexpr size_t size = size_t{1} << 30;
  void *from = allocate(size), *to = allocate(size);
  fill(from, 0, size);
  auto copy = [&](void* stream) {
    if (f_.copy_within(to, from, size, stream) != 0) throw Failure("Copying within the GPU's memory failed.");
  };
  std::vector<double> ms = time(copy, 0.2, 10000, 0, false).ms;
  free(from);
  free(to);
  std::nth_element(ms.begin(), ms.begin() + static_cast<long>(ms.size() / 2), ms.end());
  return 2.0 * size / (ms[ms.size() / 2] * 1e-3);
}

const GpuState& gpu_state() {
  static const GpuState state = [] {
    GpuState s;
    const ChildResult child = run_in_child("Looking for a GPU", 60, [] {
      const flash_gpu_info info = Gpu().info();
      return nlohmann::json::binary(
          {reinterpret_cast<const uint8_t*>(&info), reinterpret_cast<const uint8_t*>(&info + 1)});
    });
    s.usable = child.ok;
    s.why = child.sentence;
    if (child.ok) {
      const auto bytes = child.value["bytes"].get<std::vector<uint8_t>>();
      std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof s.info), reinterpret_cast<uint8_t*>(&s.info));
    }
    return s;
  }();
  return state;
}

std::string why_not(const std::string& arch, const flash_gpu_info& gpu) {
  const int need = std::atoi(arch.c_str()), have = gpu.major * 10 + gpu.minor;
  const bool exact = !arch.empty() && arch.back() == 'a';
  if (exact ? have == need : have >= need) return "";
  const std::string needed = std::to_string(need / 10) + "." + std::to_string(need % 10);
  return std::string(gpu.name) + " has compute capability " + std::to_string(gpu.major) + "." +
         std::to_string(gpu.minor) + "; this step needs " + needed +
         (exact ? " itself (a Hopper GPU)." : " or newer.");
}

double peak_tflops(const flash_gpu_info& gpu) {
  // FP16 FLOPs a clock and SM with float sums, and the boost clock in GHz of the largest model's data sheet.
  struct Known {
    int major, minor;
    double flops, ghz;
  };
  constexpr Known known[] = {{7, 5, 1024, 1.59}, {8, 0, 2048, 1.41}, {9, 0, 4096, 1.83}};
  for (const Known& k : known)
    if (k.major == gpu.major && k.minor == gpu.minor) return gpu.sm_count * k.flops * k.ghz * 1e-3;
  return 0;
}

}  // namespace course
