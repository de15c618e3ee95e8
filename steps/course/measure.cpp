/// @file
/// Timing a step on the GPU by a named protocol.
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "child.h"
#include "device.h"
#include "failure.h"
#include "placed.h"
#include "step_library.h"

namespace course {
namespace {

using nlohmann::json;

constexpr double burst_from = 10, burst_to = 40, run_ms = 700, steady_ms = 300, longest_launch_ms = 30;

void idle() { std::this_thread::sleep_for(std::chrono::milliseconds(400)); }

// Runs once on poisoned outputs.
// @return "" or a sentence that says what is wrong
std::string verify(const StepLibrary& step, const Question& q, Device& device, Placed& placed) {
  placed.poison_outputs();
  step.run(q.problem, placed.tensors());
  device.synchronize();
  const Outputs out = placed.outputs();
  const Question& answer = answer_in(q, step.precision());
  const attention::Verdict verdict =
      attention::compare(q.problem, answer.exact, answer.allowed, out.O.data(), out.LSE.data());
  return verdict.right ? placed.damage() : verdict.message;
}

std::vector<Window> windows(Gpu& gpu, const std::function<void(void*)>& launch) {
  const double once = gpu.time(launch, 0, 2).ms.back();
  if (once > longest_launch_ms) {
    Gpu::Timing three;
    for (int i = 0; i < 3; ++i) {
      idle();
      three.start_ms.push_back(0);
      three.ms.push_back(gpu.time(launch, 0, 1).ms[0]);
    }
    return {window("three runs", three.start_ms, three.ms, 0, 1)};
  }
  idle();
  const Gpu::Timing t = gpu.time(launch, run_ms * 1e-3, static_cast<int64_t>(2 * run_ms / once) + 1000,
                                 (run_ms - steady_ms / 2) * 1e-3);
  const double end = t.start_ms.back() + t.ms.back();
  std::vector<Window> both = {window("burst", t.start_ms, t.ms, burst_from, burst_to),
                              window("steady", t.start_ms, t.ms, end - steady_ms, end)};
  both[1].sm_clock_mhz = t.sm_clock_mhz;
  return both;
}

json measured(const std::filesystem::path& library, const Question& question) {
  const auto device = open_device(Machine::gpu);
  const StepLibrary step(library);
  if (const std::string refusal = step.refusal(question.problem.dtype); !refusal.empty()) return {{"refused", refusal}};
  Placed placed(*device, question, step.workspace_bytes(question.problem));
  json result = {{"wrong", verify(step, question, *device, placed)}, {"windows", json::array()}};
  if (result["wrong"] != "") return result;
  for (const Window& w :
       windows(*device->gpu(), [&](void* stream) { step.run(question.problem, placed.tensors(), stream); }))
    result["windows"].push_back({w.protocol, w.ms_median, w.ms_p10, w.ms_p90, w.launches, w.sm_clock_mhz});
  result["kernels"] = step.kernels();
  const std::string after = verify(step, question, *device, placed);
  if (!after.empty()) result["wrong"] = "After the timed launches: " + after;
  return result;
}

}  // namespace

Window window(const std::string& protocol, const std::vector<double>& start_ms, const std::vector<double>& ms,
              double from_ms, double to_ms) {
  std::vector<double> inside;
  for (size_t i = 0; i < ms.size(); ++i)
    if (start_ms[i] >= from_ms && start_ms[i] < to_ms) inside.push_back(ms[i]);
  if (inside.empty()) return {protocol};
  std::sort(inside.begin(), inside.end());
  auto quantile = [&](double q) {
    return inside[static_cast<size_t>(q * static_cast<double>(inside.size() - 1) + 0.5)];
  };
  return {protocol, quantile(0.5), quantile(0.1), quantile(0.9), static_cast<int>(inside.size()), 0};
}

Measurement measure(const std::filesystem::path& library, const Question& question) {
  const ChildResult child =
      run_in_child(library.stem().stem().string(), 300, [&] { return measured(library, question); });
  Measurement m;
  if (child.ok && child.value.contains("refused")) {
    m.kind = Outcome::Kind::refused;
    m.message = child.value["refused"];
    return m;
  }
  if (!child.ok || child.value["wrong"] != "") {
    m.message = child.ok ? child.value["wrong"].get<std::string>() : child.sentence;
    return m;
  }
  m.kind = Outcome::Kind::right;
  m.kernels = child.value["kernels"];
  for (const json& w : child.value["windows"]) m.windows.push_back({w[0], w[1], w[2], w[3], w[4], w[5]});
  return m;
}

}  // namespace course
