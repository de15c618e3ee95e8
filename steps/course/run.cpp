/// @file
/// The command `run`: check steps against the exact answer, and print what they asked of the machine.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "command.h"
#include "failure.h"
#include "gpu.h"
#include "npy.h"
#include "options.h"
#include "steps.h"
#include "table.h"
#include "units.h"

namespace course {
namespace {

using nlohmann::json;
using Kind = Outcome::Kind;

constexpr int64_t most_rows_checked_on_gpu = 4096;  // above, a sample of 512 rows is

struct RunOptions {
  std::vector<std::string> steps;
  ProblemOptions problem;
  std::string device = "auto", schedule = "early", O_file, LSE_file;
  bool as_json = false, once = false;
};

// A step, and where it runs.
struct Job {
  Step step;
  Machine machine;
  std::string skipped;  // why it cannot run, or ""
};

simulator::Schedule read_schedule(const std::string& text) {
  if (text == "early") return simulator::Schedule::early;
  if (text == "late") return simulator::Schedule::late;
  if (text == "random") return simulator::Schedule::random;
  throw Failure("There is no schedule '" + text + "'; the schedules are early, late and random.");
}

std::vector<Job> plan(const RunOptions& o) {
  if (o.device != "auto" && o.device != "cpu" && o.device != "gpu")
    throw Failure("There is no device '" + o.device +
                  "'; the devices are auto, cpu (the simulated GPU) and gpu.");
  std::vector<Job> jobs;
  for (const Step& step : find_steps(o.steps)) jobs.push_back({step, Machine::simulated, ""});
  if (o.device == "cpu") return jobs;
  const GpuState& gpu = gpu_state();
  if (!gpu.usable && o.device == "gpu")
    throw Failure("No step can run on a GPU here. " + gpu.why +
                      " Use --device cpu to run on the simulated GPU; ./learn doctor says what is missing.",
                  exit_skipped);
  if (!gpu.usable) {
    (o.as_json ? std::cerr : std::cout)
        << "There is no GPU to use here, so the steps run on the simulated GPU. (" << gpu.why << ")\n\n";
    return jobs;
  }
  for (Job& job : jobs) {
    const std::string reason = why_not(job.step.arch, gpu.info);
    if (o.device == "gpu") job.skipped = reason.empty() ? "" : reason + " Use --device cpu for it.";
    if (o.device == "gpu" || reason.empty()) job.machine = Machine::gpu;
  }
  return jobs;
}

void check_output_files(const RunOptions& o) {
  if (o.O_file.empty() && o.LSE_file.empty()) return;
  if (find_steps(o.steps).size() != 1)
    throw Failure(
        "--out and --lse take the outputs of one step; name exactly one, as in: ./learn run 10 --out o.npy.");
  const std::string* files[] = {&o.problem.Q_file, &o.problem.K_file, &o.problem.V_file, &o.O_file,
                                &o.LSE_file};
  for (int out = 3; out < 5; ++out)
    for (int other = 0; other < out; ++other)
      if (!files[out]->empty() && *files[out] == *files[other])
        throw Failure("The file " + *files[out] + " is named twice; an output needs a file of its own.");
  for (const std::string& file : {o.O_file, o.LSE_file})
    if (!file.empty()) check_writable(file);
}

// Seconds that the simulated GPU takes for the step, from its speed in multiply-adds a second.
double expected_seconds(const Job& job, const attention::Problem& problem) {
  if (job.machine == Machine::gpu) return 0;
  const double rate = job.step.number() < "11" ? 15e6 : 60e6;
  return matmul_flops(problem) / 2 / rate;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string verdict_text(const Outcome& outcome) {
  if (!outcome.right()) return name_of(outcome.kind);
  return "right, " + digits(outcome.verdict.margin, 2);
}

Table make_table(Machine machine, const std::vector<Job>& jobs) {
  size_t longest = 0;
  for (const Job& job : jobs) longest = std::max(longest, job.step.name.size());
  std::vector<Table::Column> columns = {
      {"", "step", longest, true}, {"", "on", 3, true}, {"verdict and", "error share", 11, true}};
  if (machine == Machine::gpu) {
    columns.insert(columns.end(), {{"", "ms", 8}, {"", "TFLOP/s", 8}, {"% of", "peak", 6}});
  } else {
    for (const auto& [above, title] : {std::pair{"bytes", "asked"},
                                       {"dis-", "tinct"},
                                       {"tensor", "FLOPs"},
                                       {"scalar", "FLOPs"},
                                       {"expo-", "nent."},
                                       {"divi-", "sions"},
                                       {"re-", "scales"},
                                       {"bar-", "riers"},
                                       {"bank", "confl."},
                                       {"", "sec."}})
      columns.push_back({above, title, 6});
  }
  return Table(columns);
}

std::vector<std::string> cells(const Job& job, const attention::Problem& problem, const Outcome& outcome) {
  std::vector<std::string> row = {job.step.name, name_of(job.machine), verdict_text(outcome)};
  if (outcome.kind == Kind::skipped || outcome.kind == Kind::refused) return row;
  if (job.machine == Machine::gpu) {
    if (outcome.ms.empty()) return row;
    const double ms = median(outcome.ms), tflops = matmul_flops(problem) / ms * 1e-9,
                 peak = peak_tflops(gpu_state().info);
    row.insert(row.end(),
               {digits(ms, 4), digits(tflops, 4), peak > 0 ? digits(100 * tflops / peak, 3) : "-"});
    return row;
  }
  const simulator::Ledger& l = outcome.ledger;
  for (uint64_t count :
       {l.global_read + l.global_written, l.global_read_distinct + l.global_written_distinct, l.tensor_flops,
        l.scalar_flops, l.exponentials, l.divisions, l.rescales, l.barriers, l.bank_conflicts})
    row.push_back(short_count(count));
  row.push_back(digits(outcome.seconds, 3));
  return row;
}

json to_json(const Job& job, const attention::Problem& p, const Outcome& outcome) {
  json row = outcome;
  row.erase("right");
  row.erase("sites");
  row["step"] = job.step.name;
  row["device"] = name_of(job.machine);
  row["problem"] = {{"batch", p.batch}, {"heads", p.heads},   {"seq_q", p.seq_q}, {"seq_k", p.seq_k},
                    {"dim", p.dim},     {"causal", p.causal}, {"scale", p.scale}};
  if (job.machine == Machine::gpu) row.erase("ledger");
  if (!outcome.ms.empty()) {
    row["ms"] = median(outcome.ms);
    row["launches"] = outcome.ms.size();
    row["tflops"] = matmul_flops(p) / median(outcome.ms) * 1e-9;
  } else {
    row.erase("ms");
  }
  return row;
}

Outcome run_job(const Job& job, const Question& question, const RunOptions& o) {
  if (!job.skipped.empty()) {
    Outcome outcome;
    outcome.kind = Kind::skipped;
    outcome.message = job.skipped;
    return outcome;
  }
  Setting setting;
  setting.machine = job.machine;
  setting.simulator.schedule = read_schedule(o.schedule);
  setting.simulator.seed = o.problem.seed_value();
  setting.timing_seconds = o.once ? 0 : 0.3;
  setting.O_file = o.O_file;
  setting.LSE_file = o.LSE_file;
  const double expected = expected_seconds(job, question.problem);
  Progress progress(job.step.name + " on " + name_of(job.machine), expected);
  return check_apart(job.step.library(job.machine), question, setting, 120 + 20 * expected,
                     [&](double seconds) { progress.update(seconds); });
}

// Runs the jobs of one machine, all on the same question.
void run_group(Machine machine, const std::vector<Job>& jobs, const RunOptions& o,
               std::vector<Outcome>& outcomes, json& rows) {
  Given given = read_problem(o.problem, machine);
  const attention::Problem problem = given.problem;
  double expected = 0;
  for (const Job& job : jobs) expected += expected_seconds(job, problem);
  if (!o.as_json)
    std::printf(
        "%s: %s, inputs: %s\n", machine == Machine::gpu ? gpu_state().info.name : "Simulated GPU",
        describe(problem).c_str(),
        o.problem.from_files() ? o.problem.Q_file.c_str() : o.problem.input.value_or("gaussian").c_str());
  if (expected > 60)
    std::fprintf(
        stderr,
        "The simulated GPU will take about %s for this; smaller sequences or fewer heads take less.\n",
        duration(expected).c_str());
  std::fflush(stdout);
  const Question question =
      ask(problem, std::move(given.inputs), machine == Machine::gpu ? most_rows_checked_on_gpu : 0);
  const Table table = make_table(machine, jobs);
  if (!o.as_json) {
    std::printf("\n");
    table.print_heading();
  }
  std::string messages;
  for (const Job& job : jobs) {
    outcomes.push_back(run_job(job, question, o));
    const Outcome& outcome = outcomes.back();
    rows.push_back(to_json(job, problem, outcome));
    if (!o.as_json) table.print_row(cells(job, problem, outcome));
    if (!outcome.right())
      messages += job.step.name + " " +
                  (outcome.kind == Kind::wrong ? "is wrong" : std::string("was ") + name_of(outcome.kind)) +
                  ": " + outcome.message + "\n";
  }
  if (o.as_json) return;
  std::printf("\n%s", messages.c_str());
  std::printf("Error share: the largest error over what is allowed; below 1 is right.%s\n\n",
              machine == Machine::gpu
                  ? " Bytes and operations are counted by the simulated GPU: --device cpu."
                  : " Counts: k = 10^3, M = 10^6, G = 10^9.");
}

int exit_code(const std::vector<Outcome>& outcomes) {
  auto any = [&](Kind kind) {
    return std::any_of(outcomes.begin(), outcomes.end(), [&](auto& o) { return o.kind == kind; });
  };
  if (any(Kind::wrong) || any(Kind::refused)) return exit_wrong;
  return any(Kind::right) ? exit_right : exit_skipped;
}

int run(const RunOptions& o) {
  read_schedule(o.schedule);
  check_output_files(o);
  const std::vector<Job> jobs = plan(o);
  std::vector<Outcome> outcomes;
  json rows = json::array();
  for (Machine machine : {Machine::gpu, Machine::simulated}) {
    std::vector<Job> group;
    std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(group),
                 [&](const Job& j) { return j.machine == machine; });
    if (!group.empty()) run_group(machine, group, o, outcomes, rows);
  }
  if (o.as_json) std::cout << rows.dump(2) << "\n";
  for (const std::string& file : {o.O_file, o.LSE_file})
    if (!o.as_json && !file.empty() && outcomes.front().kind != Kind::refused &&
        outcomes.front().kind != Kind::skipped && std::filesystem::exists(file))
      std::printf("Written: %s\n", file.c_str());
  return exit_code(outcomes);
}

}  // namespace

void add_run(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Check steps against the exact answer; print what they cost");
  command->add_option("step", o->steps, "Steps, by number or name; all if none is named");
  command->add_option("--device", o->device, "auto, cpu (the simulated GPU) or gpu; default auto");
  command->add_option("--schedule", o->schedule,
                      "Simulated: early, late or random effects and threads; default early");
  command->add_option("--out", o->O_file, "Write O to a .npy file, float16 [batch, heads, sequence, dim]")
      ->group("Files");
  command->add_option("--lse", o->LSE_file, "Write LSE to a .npy file, float32 [batch, heads, sequence]")
      ->group("Files");
  command->add_flag("--json", o->as_json, "Print a JSON array instead of the table");
  command->add_flag("--once", o->once, "GPU: launch once and do not time, for profilers");
  o->problem.add_to(*command);
  command->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace course
