/// @file
/// A device.gpu.so without a GPU: host memory, and a clock that goes by launches. With simulated steps in the
/// place of GPU steps, everything of the program but the CUDA calls themselves runs on any machine.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "steps/course/device_gpu.h"

#define FLASH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// The environment says how long a launch takes, and what the GPU is.
double setting(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atof(text) : otherwise;
}

}  // namespace

FLASH_EXPORT int32_t flash_gpu_open(flash_gpu_info* info, char* error, int64_t error_bytes) {
  *info = {};
  if (const int code = static_cast<int>(setting("FAKE_GPU_ERROR", 0))) {
    std::snprintf(error, static_cast<size_t>(error_bytes),
                  "Looking for a GPU failed: the fake says so (CUDA error %d).", code);
    return code;
  }
  std::strcpy(info->name, "Fake GPU");
  std::strcpy(info->driver, "1.2.3");
  const int capability = static_cast<int>(setting("FAKE_GPU_CAPABILITY", 90));
  info->major = capability / 10;
  info->minor = capability % 10;
  info->sm_count = 132;
  info->memory_bytes = uint64_t{1} << 30;
  info->shared_bytes_per_cta = 232448;
  info->driver_cuda = 13000;
  info->toolkit = 13000;
  info->debug = static_cast<int32_t>(setting("FAKE_GPU_DEBUG", 0));
  return 0;
}

FLASH_EXPORT int32_t flash_gpu_allocate(void** pointer, uint64_t bytes, char*, int64_t) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *pointer ? 0 : 2;
}
FLASH_EXPORT int32_t flash_gpu_free(void* pointer, char*, int64_t) {
  std::free(pointer);
  return 0;
}
FLASH_EXPORT int32_t flash_gpu_copy(void* to, const void* from, uint64_t bytes, char*, int64_t) {
  if (bytes) std::memcpy(to, from, bytes);
  return 0;
}
FLASH_EXPORT int32_t flash_gpu_fill(void* pointer, int32_t byte, uint64_t bytes, char*, int64_t) {
  if (bytes) std::memset(pointer, byte, bytes);
  return 0;
}
FLASH_EXPORT int32_t flash_gpu_synchronize(char*, int64_t) { return 0; }

FLASH_EXPORT int32_t flash_gpu_time(flash_gpu_work work, void* context, flash_gpu_timing* t, char*, int64_t) {
  const double burst_ms = setting("FAKE_GPU_MS", 1),
               steady_ms = 2 * burst_ms;  // the clock falls after 100 ms
  double begin = 0;
  for (t->launches = 0; t->launches < t->capacity; ++t->launches) {
    if (t->launches == 0 && work(context, nullptr)) return 719;
    t->start_ms[t->launches] = begin;
    t->ms[t->launches] = begin < 100 ? burst_ms : steady_ms;
    begin += t->ms[t->launches];
    if (begin >= t->seconds * 1000) {
      ++t->launches;
      break;
    }
  }
  t->sm_clock_mhz = t->clock_after > 0 ? 1600 : 0;
  return 0;
}

FLASH_EXPORT int32_t flash_gpu_copy_within(void*, const void*, uint64_t, void*) { return 0; }
