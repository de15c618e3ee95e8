/// @file
/// What `run` prints.
#include "report.h"

#include <algorithm>

#include "gpu.h"
#include "options.h"
#include "units.h"

namespace course {
namespace {

using Kind = Outcome::Kind;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double tflops(const attention::Problem& problem, double ms) { return matmul_flops(problem) / ms * 1e-9; }

std::string verdict_text(const Outcome& outcome) {
  if (!outcome.right()) return name_of(outcome.kind);
  return "right, " + digits(outcome.verdict.margin, 2);
}

}  // namespace

Table run_table(Machine machine, const std::vector<Job>& jobs) {
  size_t longest = 0;
  for (const Job& job : jobs) longest = std::max(longest, job.step.name.size());
  std::vector<Table::Column> columns = {
      {"", "step", longest, true}, {"", "on", 3, true}, {"verdict and", "error share", 11, true}};
  if (machine == Machine::gpu) {
    columns.insert(columns.end(), {{"", "ms", 8}, {"", "TFLOP/s", 8}, {"% of", "peak", 6}});
    return Table(columns);
  }
  constexpr const char* headings[][2] = {
      {"bytes", "asked"}, {"dis-", "tinct"}, {"tensor", "FLOPs"}, {"scalar", "FLOPs"}, {"expo-", "nent."},
      {"divi-", "sions"}, {"re-", "scales"}, {"bar-", "riers"},   {"bank", "confl."},  {"", "sec."}};
  for (const auto& [above, title] : headings) columns.push_back({above, title, 6});
  return Table(columns);
}

std::vector<std::string> run_row(const Job& job, const attention::Problem& problem, const Outcome& outcome) {
  std::vector<std::string> row = {job.step.name, name_of(job.machine), verdict_text(outcome)};
  if (outcome.kind == Kind::skipped || outcome.kind == Kind::refused) return row;
  if (job.machine == Machine::gpu) {
    if (outcome.ms.empty()) return row;
    const double ms = median(outcome.ms), speed = tflops(problem, ms), peak = peak_tflops(gpu_state().info);
    row.insert(row.end(), {digits(ms, 4), digits(speed, 4), peak > 0 ? digits(100 * speed / peak, 3) : "-"});
    return row;
  }
  const simulator::Ledger& l = outcome.ledger;
  for (uint64_t count :
       {l.global_read + l.global_written, l.global_read_distinct + l.global_written_distinct, l.tensor_flops,
        l.scalar_flops, l.exponentials, l.divisions, l.rescales, l.barriers, l.bank_conflicts})
    row.push_back(short_count(count));
  row.push_back(digits(outcome.seconds, 2));
  return row;
}

nlohmann::json run_json(const Job& job, const attention::Problem& p, const Outcome& outcome) {
  nlohmann::json row = outcome;
  for (const char* internal : {"right", "sites", "ms"}) row.erase(internal);
  row["step"] = job.step.name;
  row["device"] = name_of(job.machine);
  row["problem"] = {{"batch", p.batch}, {"heads", p.heads},   {"seq_q", p.seq_q}, {"seq_k", p.seq_k},
                    {"dim", p.dim},     {"causal", p.causal}, {"scale", p.scale},
                    {"dtype", name_of(p.dtype)}};
  if (job.machine == Machine::gpu) row.erase("ledger");
  if (!outcome.ms.empty()) {
    row["ms"] = median(outcome.ms);
    row["launches"] = outcome.ms.size();
    row["tflops"] = tflops(p, median(outcome.ms));
  }
  return row;
}

}  // namespace course
