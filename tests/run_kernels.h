/// @file
/// How a module of kernels that need Hopper runs one by its name, on each machine. All take words in and give words out.
#pragma once

#include <hardware/launch.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/hardware_kernels.h"

namespace {

struct Words {
  const uint32_t* in;
  uint32_t* out;
  int in_words, out_words;
};

struct Entry {
  const char* name;
  void (*go)(const char* name, const Device& device, const Words& words);
};

#ifdef __CUDACC__
// Runs on the GPU and returns when it is done.
void run(const Entry& e, const std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
  void *device_in = nullptr, *device_out = nullptr;
  check_cuda(cudaMalloc(&device_in, in.size() * 4 + 4), "Allocating");
  check_cuda(cudaMalloc(&device_out, out.size() * 4), "Allocating");
  check_cuda(cudaMemcpy(device_in, in.data(), in.size() * 4, cudaMemcpyHostToDevice), "Copying in");
  check_cuda(cudaMemcpy(device_out, out.data(), out.size() * 4, cudaMemcpyHostToDevice), "Copying in");
  e.go(e.name, current_device(nullptr),
       {static_cast<const uint32_t*>(device_in), static_cast<uint32_t*>(device_out), static_cast<int>(in.size()),
        static_cast<int>(out.size())});
  check_cuda(cudaMemcpy(out.data(), device_out, out.size() * 4, cudaMemcpyDeviceToHost), std::string("Running ") + e.name);
  check_cuda(cudaFree(device_in), "Freeing");
  check_cuda(cudaFree(device_out), "Freeing");
}
#else
bool narrow_fp8_sums = true;

// In the schedules early and late, and in four drawn ones. All must agree.
void run(const Entry& e, const std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
  const std::vector<uint32_t> before = out;
  for (uint64_t i = 0; i < 6; ++i) {
    simulator::free_all();
    simulator::Options options;
    options.schedule = i == 0   ? simulator::Schedule::early
                       : i == 1 ? simulator::Schedule::late
                                : simulator::Schedule::random;
    options.seed = i;
    options.narrow_fp8_sums = narrow_fp8_sums;
    simulator::reset(options);
    auto* device_in = static_cast<uint32_t*>(simulator::allocate(in.size() * 4, "in"));
    auto* device_out = static_cast<uint32_t*>(simulator::allocate(out.size() * 4, "out"));
    std::copy(in.begin(), in.end(), device_in);
    std::copy(before.begin(), before.end(), device_out);
    e.go(e.name, current_device(nullptr),
         {device_in, device_out, static_cast<int>(in.size()), static_cast<int>(out.size())});
    for (const simulator::Report& r : simulator::reports()) throw std::runtime_error(r.kind + ": " + r.text);
    const std::vector<uint32_t> now(device_out, device_out + out.size());
    if (i > 0 && now != out)
      throw std::runtime_error(std::string(e.name) + " gives different results in different schedules.");
    out = now;
  }
}
#endif

const char* keep(const std::string& sentence) {
  static std::string kept;
  kept = sentence;
  return kept.c_str();
}

// The body of flash_test_run.
template <size_t count>
const char* run_named(const Entry (&entries)[count], const char* kernel, const uint32_t* in, int in_words, uint32_t* out,
                      int out_words) {
  for (const Entry& e : entries)
    if (std::strcmp(e.name, kernel) == 0) {
      try {
        std::vector<uint32_t> result(out, out + out_words);
        run(e, std::vector<uint32_t>(in, in + in_words), result);
        std::memcpy(out, result.data(), result.size() * 4);
        return nullptr;
      } catch (const std::exception& error) {
        return keep(error.what());
      }
    }
  return keep(std::string("There is no kernel ") + kernel + ".");
}

}  // namespace

#define TEST_EXPORT extern "C" __attribute__((visibility("default")))

TEST_EXPORT const char* flash_test_unavailable(void) {
#ifdef __CUDACC__
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return cudaGetErrorString(code);
  if (count == 0) return "there is no GPU";
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (major != 9) return "the GPU is no Hopper (compute capability 9.0)";
#endif
  return nullptr;
}
