/// @file
/// The CUDA runtime behind a C interface.
#include "device_gpu.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

#define FLASH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Writes the sentence, and returns the error number.
int32_t sentence(cudaError_t code, const char* doing, char* error, int64_t error_bytes) {
  if (code != cudaSuccess && error && error_bytes > 0)
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s failed: %s (CUDA error %d, %s).", doing,
                  cudaGetErrorString(code), static_cast<int>(code), cudaGetErrorName(code));
  return static_cast<int32_t>(code);
}

// NVML, NVIDIA's management library, comes with the driver; it knows the driver's version and the clocks.
class Nvml {
public:
  Nvml() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library_) return;
    const auto init = find<int (*)()>("nvmlInit_v2");
    if (!init || init() != 0) library_ = nullptr;
  }
  void driver_version(char* text, unsigned bytes) const {
    const auto get = find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
    if (!get || get(text, bytes) != 0) text[0] = 0;
  }
  // MHz, or 0. A GPU is named by its place on the PCI bus, since NVML and CUDA count in different orders.
  double sm_clock(int device) const {
    const auto handle_of = find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    const auto clock = find<int (*)(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    constexpr int sm = 1;  // NVML_CLOCK_SM
    char place[32];
    void* handle = nullptr;
    unsigned mhz = 0;
    if (!handle_of || !clock || cudaDeviceGetPCIBusId(place, sizeof place, device) != cudaSuccess) return 0;
    return handle_of(place, &handle) == 0 && clock(handle, sm, &mhz) == 0 ? mhz : 0;
  }

private:
  template <typename Function>
  Function find(const char* name) const {
    return library_ ? reinterpret_cast<Function>(dlsym(library_, name)) : nullptr;
  }
  void* library_ = nullptr;
};

const Nvml& nvml() {
  static const Nvml instance;
  return instance;
}

// What is launched: the work itself, or a graph of it.
class Launcher {
public:
  Launcher(flash_gpu_work work, void* context, cudaStream_t stream)
      : work_(work), context_(context), stream_(stream) {}
  ~Launcher() {
    if (graph_) cudaGraphExecDestroy(graph_);
  }
  cudaError_t capture() {
    cudaGraph_t graph = nullptr;
    if (cudaError_t code = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed)) return code;
    const int32_t failed = work_(context_, stream_);
    cudaError_t code = cudaStreamEndCapture(stream_, &graph);
    if (failed && !code) code = cudaErrorLaunchFailure;
    if (!code) code = cudaGraphInstantiate(&graph_, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    return code;
  }
  cudaError_t launch() const {
    if (graph_) return cudaGraphLaunch(graph_, stream_);
    return work_(context_, stream_) ? cudaErrorLaunchFailure : cudaSuccess;
  }

private:
  flash_gpu_work work_;
  void* context_;
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

cudaError_t time_launches(const Launcher& launcher, cudaStream_t stream, flash_gpu_timing& t,
                          std::vector<cudaEvent_t>& events) {
  constexpr int64_t ahead = 4;  // launches in the queue: enough to hide the host, few enough to stop in time
  auto record = [&] {
    events.push_back(nullptr);
    if (cudaError_t code = cudaEventCreate(&events.back())) return code;
    return cudaEventRecord(events.back(), stream);
  };
  if (cudaError_t code = record()) return code;
  bool clock_read = t.clock_after <= 0;
  for (t.launches = 0; t.launches < t.capacity;) {
    if (cudaError_t code = launcher.launch()) return code;
    if (cudaError_t code = record()) return code;
    ++t.launches;
    if (t.launches < ahead) continue;
    cudaEvent_t done = events[static_cast<size_t>(t.launches - ahead + 1)];
    float ms = 0;
    if (cudaError_t code = cudaEventSynchronize(done)) return code;
    if (cudaError_t code = cudaEventElapsedTime(&ms, events[0], done)) return code;
    if (!clock_read && ms >= t.clock_after * 1000) {
      int device = 0;
      cudaGetDevice(&device);
      t.sm_clock_mhz = nvml().sm_clock(device);
      clock_read = true;
    }
    if (ms >= t.seconds * 1000) break;
  }
  if (cudaError_t code = cudaStreamSynchronize(stream)) return code;
  double begin = 0;
  for (int64_t i = 0; i < t.launches; ++i) {
    float length = 0;
    if (cudaError_t code =
            cudaEventElapsedTime(&length, events[static_cast<size_t>(i)], events[static_cast<size_t>(i + 1)]))
      return code;
    t.start_ms[i] = begin;
    t.ms[i] = length;
    begin += length;
  }
  return cudaSuccess;
}

}  // namespace

FLASH_EXPORT int32_t flash_gpu_open(flash_gpu_info* info, char* error, int64_t error_bytes) {
  *info = {};
  info->toolkit = CUDART_VERSION;
#if defined(__CUDACC_DEBUG__) || !defined(NDEBUG)
  info->debug = 1;
#endif
  int count = 0;
  if (cudaError_t code = cudaGetDeviceCount(&count))
    return sentence(code, "Looking for a GPU", error, error_bytes);
  if (count == 0) return sentence(cudaErrorNoDevice, "Looking for a GPU", error, error_bytes);
  if (cudaError_t code = cudaSetDevice(0)) return sentence(code, "Opening the GPU", error, error_bytes);
  cudaDeviceProp p{};
  if (cudaError_t code = cudaGetDeviceProperties(&p, 0))
    return sentence(code, "Opening the GPU", error, error_bytes);
  std::snprintf(info->name, sizeof info->name, "%s", p.name);
  nvml().driver_version(info->driver, sizeof info->driver);
  info->major = p.major;
  info->minor = p.minor;
  info->sm_count = p.multiProcessorCount;
  info->memory_bytes = p.totalGlobalMem;
  info->shared_bytes_per_cta = p.sharedMemPerBlockOptin;
  cudaDriverGetVersion(&info->driver_cuda);
  return 0;
}

FLASH_EXPORT int32_t flash_gpu_allocate(void** pointer, uint64_t bytes, char* error, int64_t error_bytes) {
  const cudaError_t code = cudaMalloc(pointer, bytes);
  char doing[80];
  std::snprintf(doing, sizeof doing, "Allocating %llu bytes on the GPU",
                static_cast<unsigned long long>(bytes));
  if (code) cudaGetLastError();  // it is reported here; the next call starts afresh
  return sentence(code, doing, error, error_bytes);
}

FLASH_EXPORT int32_t flash_gpu_free(void* pointer, char* error, int64_t error_bytes) {
  return sentence(cudaFree(pointer), "Freeing the GPU's memory", error, error_bytes);
}

FLASH_EXPORT int32_t flash_gpu_copy(void* to, const void* from, uint64_t bytes, char* error,
                                    int64_t error_bytes) {
  return sentence(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "Copying from or to the GPU", error,
                  error_bytes);
}

FLASH_EXPORT int32_t flash_gpu_fill(void* pointer, int32_t byte, uint64_t bytes, char* error,
                                    int64_t error_bytes) {
  return sentence(cudaMemset(pointer, byte, bytes), "Filling the GPU's memory", error, error_bytes);
}

FLASH_EXPORT int32_t flash_gpu_synchronize(char* error, int64_t error_bytes) {
  cudaError_t code = cudaGetLastError();
  if (!code) code = cudaDeviceSynchronize();
  return sentence(code, "Running the kernels", error, error_bytes);
}

FLASH_EXPORT int32_t flash_gpu_time(flash_gpu_work work, void* context, flash_gpu_timing* timing, char* error,
                                    int64_t error_bytes) {
  timing->launches = 0;
  timing->sm_clock_mhz = 0;
  cudaStream_t stream = nullptr;
  if (cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
    return sentence(code, "Making a stream", error, error_bytes);
  std::vector<cudaEvent_t> events;
  cudaError_t code = cudaSuccess;
  {
    Launcher launcher(work, context, stream);
    if (timing->graph) code = launcher.capture();
    if (!code) code = time_launches(launcher, stream, *timing, events);
  }
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  cudaStreamDestroy(stream);
  return sentence(code, "Timing the kernels", error, error_bytes);
}

FLASH_EXPORT int32_t flash_gpu_copy_within(void* to, const void* from, uint64_t bytes, void* stream) {
  return static_cast<int32_t>(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)));
}
