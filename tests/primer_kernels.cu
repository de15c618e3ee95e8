/// @file
/// The kernels of docs/primer.md, word for word (tests/test_prose.py compares), so that they run.
#include "tests/run_kernels.h"

#include <hardware/launch.h>
#include <hardware/simt.h>

// out[i] = factor * in[i]: one thread an element.
__global__ void scale_kernel(const float* in, float* out, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = factor * in[i];
}

void scale(const float* in, float* out, float factor, int count, const Device& device) {
  launch("scale_kernel", scale_kernel, (count + 255) / 256, 256, 0, device, in, out, factor, count);
}

// Each CTA reverses the order of its 256 numbers.
__global__ void reverse_kernel(float* x) {
  float* tile = dynamic_shared<float>();  // 256 floats, which all threads of the CTA share
  float* mine = x + 256 * blockIdx.x;
  tile[threadIdx.x] = mine[threadIdx.x];
  __syncthreads();  // all 256 have written before any of them reads
  mine[threadIdx.x] = tile[255 - threadIdx.x];
}

void reverse(float* x, int count, const Device& device) {
  launch("reverse_kernel", reverse_kernel, count / 256, 256, 256 * sizeof(float), device, x);
}

namespace {

const Entry entries[] = {
    {"scale", [](const char*, const Device& device, const Words& w) {
       scale(reinterpret_cast<const float*>(w.in), reinterpret_cast<float*>(w.out), 3, w.in_words, device);
     }},
    {"reverse", [](const char*, const Device& device, const Words& w) {
       reverse(reinterpret_cast<float*>(w.out), w.out_words, device);
     }},
};

}  // namespace

TEST_EXPORT const char* flash_test_run(const char* kernel, const uint32_t* in, int in_words, uint32_t* out, int out_words) {
  return run_named(entries, kernel, in, in_words, out, out_words);
}
