/// @file
/// Runs one step on one problem on one machine, and says whether it is right.
#include "check.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <sstream>

#include "child.h"
#include "device.h"
#include "failure.h"
#include "npy.h"
#include "placed.h"
#include "reference_cpu/fp8.h"
#include "reference_cpu/twins.h"
#include "step_library.h"

namespace course {
namespace {

using attention::Problem;
using Kind = Outcome::Kind;

void conclude(Outcome& outcome, Kind kind, const std::string& message) {
  outcome.kind = kind;
  outcome.message = message;
}

void write_outputs(const Problem& p, const Outputs& out, const Setting& setting) {
  if (!setting.O_file.empty()) write_npy(setting.O_file, {p.batch, p.heads, p.seq_q, p.dim}, out.O.data(), p.dtype);
  if (!setting.LSE_file.empty()) write_npy(setting.LSE_file, {p.batch, p.heads, p.seq_q}, out.LSE.data());
}

void time_on_gpu(const StepLibrary& step, const Problem& problem, Device& device, Placed& placed,
                 const Outputs& first, double seconds, Outcome& outcome) {
  auto launch = [&](void* stream) { step.run(problem, placed.tensors(), stream); };
  outcome.ms = device.gpu()->time(launch, seconds, 100000).ms;
  placed.poison_outputs();
  step.run(problem, placed.tensors());
  device.synchronize();
  if (!(placed.outputs() == first))
    conclude(outcome, Kind::wrong,
             "The outputs after the timed launches differ from the first launch's; they must be equal bit "
             "for bit.");
}

// The twin of an FP8 step, from the words of flash_precision().
attention::twins::Options twin_of(const std::string& precision) {
  attention::twins::Options twin{.Br = 128, .Bc = 128, .sum_bits = 13, .last_to_first = true};
  std::istringstream words(precision);
  std::string word;
  words >> word;
  bool known = word == "fp8";
  while (known && words >> word) {
    if (word == "blocks") twin.quantization.blocks = true;
    else if (word == "hadamard") twin.quantization.hadamard = true;
    else if (word == "two_level") twin.two_level = true;
    else if (word == "rounded_l") twin.rounded_l = true;
    else if (word == "slack") twin.slack = 4, twin.P_log2 = 4, twin.vote_rows = 16;
    else known = false;
  }
  if (!known)
    throw Failure("The step's precision '" + precision + "' has the word '" + word +
                  "'; it is fp16, or fp8 and any of blocks, hadamard, two_level, rounded_l and slack.");
  return twin;
}

}  // namespace

Question ask(const Problem& problem, Inputs inputs, int64_t most_rows, int64_t sampled_rows, uint64_t seed) {
  attention::check_sizes(problem, 256);
  Question q{problem, std::move(inputs), {}, {}};
  const bool sample = most_rows > 0 && problem.query_rows() > most_rows;
  const uint16_t *Q = q.inputs.Q.data(), *K = q.inputs.K.data(), *V = q.inputs.V.data();
  q.exact = attention::exact(
      problem, Q, K, V,
      sample ? attention::sample_rows(problem, sampled_rows, seed) : attention::all_rows(problem));
  q.allowed = attention::allowance(problem, Q, K, V, q.exact);
  return q;
}

const Question& in_fp8(const Question& question, const std::string& precision) {
  if (const auto kept = question.fp8.find(precision); kept != question.fp8.end()) return *kept->second;
  namespace twins = attention::twins;
  const twins::Options options = twin_of(precision);
  const Problem& p = question.problem;
  const auto& [Q, K, V] = question.inputs;
  auto fp8 = std::make_shared<Question>(Question{p, question.inputs, {}, {}});
  const auto q = attention::dequantized(Q, p.seq_q, p.dim, options.quantization),
             k = attention::dequantized(K, p.seq_k, p.dim, options.quantization),
             v = attention::dequantized(V, p.seq_k, p.dim, options.quantization.of_V());
  fp8->exact = attention::exact(p, q.data(), k.data(), v.data(), question.exact.index);
  double largest = 0;
  for (double x : fp8->exact.O)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  attention::Allowance& allowed = fp8->allowed;
  constexpr int64_t most_scores = 1 << 26;
  if (p.query_rows() * p.seq_k <= most_scores) {
    const auto twin = twins::every_head<float>(p, Q.data(), K.data(), V.data(), [&](const auto& head) {
      return twins::flash_attention_3_fp8(head, options);
    });
    attention::Rows rows{p.dim, question.exact.index, {}, {}};
    for (int64_t row : rows.index) {
      for (int64_t c = 0; c < p.dim; ++c) rows.O.push_back(attention::from_half(attention::to_half(twin.O(row, c))));
      rows.LSE.push_back(twin.LSE(row));
    }
    allowed = attention::allowance(rows, fp8->exact);
    // Without two_level a step may cut its keys into other blocks than the twin, so the narrow accumulator cuts elsewhere.
    if (!options.two_level) allowed = {2 * allowed.O, 1.5 * allowed.rms_relative, 2 * allowed.LSE};
  } else {
    // Twice the errors on N(0,1). An l of rounded weights is a sixteenth off at most, and it may be one of few keys.
    allowed = {0.08 * largest, 0.06, options.rounded_l ? 1.0 / 16 : 0.008};
  }
  if (!options.two_level) {
    // Where values have one sign, the narrow accumulator loses up to 2^-16 of the sum a key (FlashAttention-3 on an H200: 10 %
    // of 8192 keys).
    const double lost = static_cast<double>(p.seq_k) * 0x1p-16;
    allowed.O += lost * largest;
    allowed.rms_relative += lost;
    allowed.LSE += 0x1p-9;
  }
  return *(question.fp8[precision] = fp8);
}

const Question& answer_in(const Question& question, const std::string& precision) {
  return precision == "fp16" ? question : in_fp8(question, precision);
}

Outcome check(const std::filesystem::path& library, const Question& question, const Setting& setting) {
  const Problem& problem = question.problem;
  const bool simulated = setting.machine == Machine::simulated;
  Outcome outcome;
  std::unique_ptr<Device> device;
  try {
    device = open_device(setting.machine);
  } catch (const Failure& failure) {
    if (failure.exit_code != exit_skipped) throw;
    conclude(outcome, Kind::skipped, failure.what());
    return outcome;
  }
  const StepLibrary step(library);
  try {
    Placed placed(*device, question, step.workspace_bytes(problem));
    if (simulated) simulator::reset(setting.simulator);
    const auto start = std::chrono::steady_clock::now();
    step.run(problem, placed.tensors());
    device->synchronize();
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const Outputs out = placed.outputs();
    write_outputs(problem, out, setting);
    const Question& answer = answer_in(question, step.precision());
    outcome.verdict = attention::compare(problem, answer.exact, answer.allowed, out.O.data(), out.LSE.data());
    conclude(outcome, outcome.verdict.right ? Kind::right : Kind::wrong, outcome.verdict.message);
    if (const std::string damage = placed.damage(); !damage.empty()) conclude(outcome, Kind::wrong, damage);
    if (outcome.right() && !simulated && setting.timing_seconds > 0 && problem.query_rows() > 0)
      time_on_gpu(step, problem, *device, placed, out, setting.timing_seconds, outcome);
    if (outcome.right() && !simulated)
      if (const std::string damage = placed.damage(); !damage.empty()) conclude(outcome, Kind::wrong, damage);
  } catch (const attention::Refused& refused) {
    conclude(outcome, Kind::refused, refused.what());
  } catch (const Failure& failure) {
    conclude(outcome, Kind::wrong, failure.what());
  }
  outcome.kernels = step.kernels();
  if (simulated) {
    outcome.ledger = simulator::ledger();
    outcome.reports = simulator::reports();
    outcome.sites = simulator::sync_sites();
    if (!outcome.reports.empty()) conclude(outcome, Kind::wrong, outcome.reports.front().text);
  }
  return outcome;
}

Outcome check_apart(const std::filesystem::path& library, const Question& question, const Setting& setting,
                    double limit_seconds, const std::function<void(double)>& waiting) {
  const std::string name = library.stem().stem().string();  // without .simulated.so
  const ChildResult child = run_in_child(
      name, limit_seconds, [&] { return nlohmann::json(check(library, question, setting)); }, waiting);
  if (child.ok) return child.value.get<Outcome>();
  Outcome outcome;
  conclude(outcome, Kind::wrong, child.sentence);
  return outcome;
}

const char* name_of(Outcome::Kind kind) {
  constexpr const char* names[] = {"right", "wrong", "refused", "skipped"};
  return names[static_cast<int>(kind)];
}

// JSON has no infinity, which a margin can be; null stands for it.
static nlohmann::json finite_or_null(double x) {
  return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json();
}
static double null_is_infinity(const nlohmann::json& j) { return j.is_null() ? INFINITY : j.get<double>(); }

void to_json(nlohmann::json& j, const Outcome& o) {
  j = {{"verdict", name_of(o.kind)},
       {"message", o.message},
       {"right", o.verdict.right},
       {"margin", finite_or_null(o.verdict.margin)},
       {"max_error", finite_or_null(o.verdict.max_error)},
       {"rms_relative", finite_or_null(o.verdict.rms_relative)},
       {"comparison", o.verdict.message},
       {"ledger", o.ledger},
       {"seconds", o.seconds},
       {"ms", o.ms},
       {"kernels", o.kernels},
       {"reports", nlohmann::json::array()},
       {"sites", nlohmann::json::array()}};
  for (const auto& r : o.reports) j["reports"].push_back({{"kind", r.kind}, {"text", r.text}});
  for (const auto& s : o.sites)
    j["sites"].push_back({{"file", s.file}, {"line", s.line}, {"call", s.call}, {"kinds", s.kinds}});
}

void from_json(const nlohmann::json& j, Outcome& o) {
  for (Kind kind : {Kind::right, Kind::wrong, Kind::refused, Kind::skipped})
    if (j.at("verdict") == name_of(kind)) o.kind = kind;
  o.message = j.at("message");
  o.verdict = {j.at("right"), null_is_infinity(j.at("margin")), null_is_infinity(j.at("max_error")),
               null_is_infinity(j.at("rms_relative")), j.at("comparison")};
  o.ledger = j.at("ledger");
  o.seconds = j.at("seconds");
  o.ms = j.at("ms").get<std::vector<double>>();
  o.kernels = j.at("kernels");
  for (const auto& r : j.at("reports")) o.reports.push_back({r.at("kind"), r.at("text")});
  for (const auto& s : j.at("sites"))
    o.sites.push_back({s.at("file"), s.at("line"), s.at("call"), s.at("kinds")});
}

}  // namespace course

namespace simulator {

// Every field of the ledger, by name.
template <typename L, typename Visit>
static void each_field(L& l, Visit visit) {
  visit("global_read", l.global_read);
  visit("global_written", l.global_written);
  visit("global_read_distinct", l.global_read_distinct);
  visit("global_written_distinct", l.global_written_distinct);
  visit("shared_read", l.shared_read);
  visit("shared_written", l.shared_written);
  visit("bank_conflicts", l.bank_conflicts);
  visit("tensor_flops", l.tensor_flops);
  visit("scalar_flops", l.scalar_flops);
  visit("exponentials", l.exponentials);
  visit("divisions", l.divisions);
  visit("rescales", l.rescales);
  visit("barriers", l.barriers);
  visit("shuffles", l.shuffles);
  visit("copy_instructions", l.copy_instructions);
  visit("atomics", l.atomics);
  visit("launches", l.launches);
  visit("ctas", l.ctas);
}

void to_json(nlohmann::json& j, const Ledger& ledger) {
  each_field(ledger, [&](const char* name, uint64_t value) { j[name] = value; });
}

void from_json(const nlohmann::json& j, Ledger& ledger) {
  each_field(ledger, [&](const char* name, uint64_t& value) { value = j.at(name); });
}

}  // namespace simulator
