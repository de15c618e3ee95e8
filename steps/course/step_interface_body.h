/// @file
/// The C interface of one step, compiled behind its attention.cu for each backend. STEP is the step's namespace.
#pragma once

#include <cstdio>

#include <hardware/launch.h>

#include "reference_cpu/attention.h"
#include "steps/course/step_interface.h"

namespace {

attention::Problem from_c(const flash_problem& p) {
  return {p.batch, p.heads, p.seq_q, p.seq_k, p.dim, p.causal != 0, p.scale, static_cast<attention::Dtype>(p.dtype)};
}
attention::Tensors from_c(const flash_tensors& t) {
  return {t.Q, t.K, t.V, t.O, t.LSE, t.workspace, t.workspace_bytes, t.descales};
}

// Runs `work`; a thrown sentence goes to the caller's buffer.
template <typename Work>
bool guarded(char* error, int64_t error_bytes, Work work) {
  try {
    work();
    return true;
  } catch (const std::exception& e) {
    if (error && error_bytes > 0) std::snprintf(error, static_cast<size_t>(error_bytes), "%s", e.what());
    return false;
  }
}

}  // namespace

#define FLASH_EXPORT extern "C" __attribute__((visibility("default")))

FLASH_EXPORT int64_t flash_workspace_bytes(const flash_problem* problem, char* error, int64_t error_bytes) {
  int64_t bytes = -1;
  guarded(error, error_bytes, [&] {
    attention::check_sizes(from_c(*problem), 256);
    bytes = static_cast<int64_t>(STEP::workspace_bytes(from_c(*problem), current_device(nullptr)));
  });
  return bytes;
}

FLASH_EXPORT int32_t flash_attention(const flash_problem* problem, const flash_tensors* t, void* stream, char* error,
                                     int64_t error_bytes) {
  return !guarded(error, error_bytes,
                  [&] { STEP::forward(from_c(*problem), from_c(*t), current_device(stream)); });
}

FLASH_EXPORT int32_t flash_quantized(const flash_problem* problem, flash_tensors* t, char* error, int64_t error_bytes) {
  return !guarded(error, error_bytes, [&] {
#ifdef FLASH_PRECISION
    const attention::Tensors q = STEP::quantized(from_c(*problem), from_c(*t));
    t->Q = q.Q, t->K = q.K, t->V = q.V, t->descales = q.descales;
#else
    (void)problem, (void)t;
    throw attention::Refused("This step multiplies FP16 numbers; it quantizes nothing.");
#endif
  });
}

#ifdef __CUDACC__
FLASH_EXPORT const char* flash_kernels(void) {
  static std::string text;
  text.clear();
  for (const Launched& l : launched) {
    cudaFuncAttributes a{};
    int ctas = 0;
    cudaFuncGetAttributes(&a, l.kernel);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, l.kernel, l.threads, l.shared_bytes);
    char line[256];
    std::snprintf(line, sizeof line,
                  "%s registers=%d spill_bytes=%zu static_shared=%zu dynamic_shared=%zu threads=%d ctas_per_sm=%d\n",
                  l.name.c_str(), a.numRegs, a.localSizeBytes, a.sharedSizeBytes, l.shared_bytes, l.threads, ctas);
    text += line;
  }
  return text.c_str();
}
#else
FLASH_EXPORT const char* flash_kernels(void) { return ""; }
#endif

#ifndef FLASH_PRECISION  // an FP8 step's attention.cu says so
#define FLASH_PRECISION "fp16"
#endif
FLASH_EXPORT const char* flash_precision(void) { return FLASH_PRECISION; }
