/// @file
/// One step's shared library, opened.
#include "step_library.h"

#include <dlfcn.h>

#include "failure.h"

namespace course {
namespace {

flash_problem to_c(const attention::Problem& p) {
  return {p.batch, p.heads, p.seq_q, p.seq_k, p.dim, p.causal, p.scale, static_cast<int32_t>(p.dtype)};
}

flash_tensors to_c(const attention::Tensors& t) {
  return {t.Q, t.K, t.V, t.O, t.LSE, t.workspace, t.workspace_bytes, t.descales};
}

template <typename Function>
void find(void* handle, const char* name, const std::filesystem::path& file, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function)
    throw Failure("The library " + file.string() + " is no step: it has no function " + name + ".");
}

}  // namespace

StepLibrary::StepLibrary(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file))
    throw Failure("The step's library " + file.string() + " does not exist; build the target course first.");
  void* handle = dlopen(file.c_str(), RTLD_LOCAL | RTLD_NOW);
  if (!handle) throw Failure("The step's library cannot be opened: " + std::string(dlerror()) + ".");
  find(handle, "flash_workspace_bytes", file, workspace_);
  find(handle, "flash_attention", file, attention_);
  find(handle, "flash_quantized", file, quantized_);
  find(handle, "flash_kernels", file, kernels_);
  find(handle, "flash_precision", file, precision_);
}

size_t StepLibrary::workspace_bytes(const attention::Problem& problem) const {
  char error[1024] = "";
  const flash_problem p = to_c(problem);
  const int64_t bytes = workspace_(&p, error, sizeof error);
  if (bytes < 0) throw attention::Refused(error);
  return static_cast<size_t>(bytes);
}

void StepLibrary::run(const attention::Problem& problem, const attention::Tensors& t, void* stream) const {
  char error[1024] = "";
  const flash_problem p = to_c(problem);
  const flash_tensors tensors = to_c(t);
  if (attention_(&p, &tensors, stream, error, sizeof error)) throw attention::Refused(error);
}

std::string StepLibrary::refusal(attention::Dtype dtype) const try {
  run({.batch = 0, .dim = 64, .dtype = dtype}, {});  // of an empty problem nothing is launched
  return "";
} catch (const attention::Refused& refused) {
  return refused.what();
}

attention::Tensors StepLibrary::quantized(const attention::Problem& problem, const attention::Tensors& tensors) const {
  char error[1024] = "";
  const flash_problem p = to_c(problem);
  flash_tensors t = to_c(tensors);
  if (quantized_(&p, &t, error, sizeof error)) throw attention::Refused(error);
  attention::Tensors result = tensors;
  result.Q = t.Q, result.K = t.K, result.V = t.V, result.descales = t.descales;
  return result;
}

}  // namespace course
