/// @file
/// The tensors of one question on one device.
#include "placed.h"

#include <cstring>

namespace course {

bool Outputs::operator==(const Outputs& other) const {
  return O == other.O && LSE.size() == other.LSE.size() &&
         (LSE.empty() || std::memcmp(LSE.data(), other.LSE.data(), LSE.size() * sizeof(float)) == 0);
}

Placed::Placed(Device& device, const Question& question, size_t workspace_bytes)
    : device_(device), question_(question) {
  const attention::Problem& p = question.problem;
  O_bytes_ = static_cast<size_t>(p.query_rows() * p.dim) * sizeof(uint16_t);
  LSE_bytes_ = static_cast<size_t>(p.query_rows()) * sizeof(float);
  t_.Q = place(question.inputs.Q, "Q");
  t_.K = place(question.inputs.K, "K");
  t_.V = place(question.inputs.V, "V");
  t_.O = device.allocate(O_bytes_, "O");
  t_.LSE = static_cast<float*>(device.allocate(LSE_bytes_, "LSE"));
  t_.workspace = device.allocate(workspace_bytes, "workspace");
  t_.workspace_bytes = workspace_bytes;
}

void* Placed::place(const std::vector<uint16_t>& values, const char* name) {
  void* memory = device_.allocate(values.size() * sizeof(uint16_t), name);
  device_.upload(memory, values.data(), values.size() * sizeof(uint16_t));
  return memory;
}

void Placed::poison_outputs() {
  device_.poison(t_.O, O_bytes_);
  device_.poison(t_.LSE, LSE_bytes_);
  device_.poison(t_.workspace, t_.workspace_bytes);
}

Outputs Placed::outputs() {
  Outputs out{std::vector<uint16_t>(O_bytes_ / sizeof(uint16_t)),
              std::vector<float>(LSE_bytes_ / sizeof(float))};
  device_.download(out.O.data(), t_.O, O_bytes_);
  device_.download(out.LSE.data(), t_.LSE, LSE_bytes_);
  return out;
}

std::string Placed::damage() {
  struct {
    const char* name;
    const void* placed;
    const std::vector<uint16_t>& given;
  } const inputs[] = {
      {"Q", t_.Q, question_.inputs.Q}, {"K", t_.K, question_.inputs.K}, {"V", t_.V, question_.inputs.V}};
  for (const auto& input : inputs) {
    std::vector<uint16_t> now(input.given.size());
    device_.download(now.data(), input.placed, now.size() * sizeof(uint16_t));
    if (now != input.given)
      return "The kernel wrote to its input " + std::string(input.name) + ", which it may only read.";
  }
  return device_.damage();
}

}  // namespace course
