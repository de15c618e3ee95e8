/// @file
/// Launching a kernel on the GPU.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "simt.h"

inline namespace gpu {

/// Where a step runs: the machine's sizes, and the stream.
struct Device {
  cudaStream_t stream;
  int sm_count;
  size_t shared_bytes_per_cta;  ///< the most that one CTA can have
  size_t memory_bytes;          ///< global memory that a workspace may take
};

/// @throws std::runtime_error  with the sentence `doing` and CUDA's reason, unless `code` is success
inline void check_cuda(cudaError_t code, const std::string& doing) {
  if (code != cudaSuccess)
    throw std::runtime_error(doing + " failed: " + cudaGetErrorString(code) + " (CUDA error " + std::to_string(code) + ").");
}

/// The sizes of the current CUDA device, asked for once. A workspace may take half of its memory.
inline Device current_device(void* stream) {
  static const Device first = [] {
    int id = 0, shared = 0, sms = 0;
    size_t free = 0, total = 0;
    check_cuda(cudaGetDevice(&id), "Asking for the current GPU");
    check_cuda(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), "Asking for the shared memory");
    check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, id), "Asking for the number of SMs");
    check_cuda(cudaMemGetInfo(&free, &total), "Asking for the memory");
    return Device{nullptr, sms, static_cast<size_t>(shared), total / 2};
  }();
  Device device = first;
  device.stream = static_cast<cudaStream_t>(stream);
  return device;
}

/// The CTA's dynamic shared memory, aligned to 1024 bytes.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

/// What was launched, for the lesson's table of registers and occupancy.
struct Launched {
  std::string name;
  const void* kernel;
  int threads;
  size_t shared_bytes;
};
inline std::vector<Launched> launched;

/// Enqueues `kernel` with `grid` CTAs of `threads` threads and `shared_bytes` of dynamic shared memory each.
/// @param name  of the kernel, for errors
/// @throws std::runtime_error  a full sentence if the GPU refuses
template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
            const Device& device, std::type_identity_t<Parameters>... arguments) {
  if (shared_bytes > device.shared_bytes_per_cta)
    throw std::runtime_error(std::string(name) + " needs " + std::to_string(shared_bytes) +
                             " bytes of shared memory a CTA; this GPU has " + std::to_string(device.shared_bytes_per_cta) + ".");
  const void* function = reinterpret_cast<const void*>(kernel);
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
             std::string("Reserving shared memory for ") + name);
  void* pointers[] = {&arguments...};
  check_cuda(cudaLaunchKernel(function, grid, dim3(threads), pointers, shared_bytes, device.stream),
             std::string("Launching ") + name);
  for (const Launched& l : launched)
    if (l.kernel == function && l.shared_bytes == shared_bytes) return;
  launched.push_back({name, function, static_cast<int>(threads), shared_bytes});
}

}  // namespace gpu
