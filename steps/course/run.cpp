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
#include "report.h"
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

// The jobs of one machine, which all answer the same question.
struct Group {
  Machine machine;
  std::vector<Job> jobs;
  Given given;
};

simulator::Schedule read_schedule(const std::string& text) {
  if (text == "early") return simulator::Schedule::early;
  if (text == "late") return simulator::Schedule::late;
  if (text == "random") return simulator::Schedule::random;
  throw Failure("There is no schedule '" + text + "'; the schedules are early, late and random.");
}

// Which step runs where.
// @param note  receives what the user should know first
std::vector<Job> plan(const RunOptions& o, std::string& note) {
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
    note = "There is no GPU to use here, so the steps run on the simulated GPU. (" + gpu.why + ")\n\n";
    return jobs;
  }
  for (Job& job : jobs) {
    const std::string reason = why_not(job.step.arch, gpu.info);
    if (o.device == "gpu" && !reason.empty()) job.skipped = reason + " Use --device cpu for it.";
    if (o.device == "gpu" || reason.empty()) job.machine = Machine::gpu;
  }
  return jobs;
}

std::vector<Group> group(const std::vector<Job>& jobs, const ProblemOptions& options) {
  std::vector<Group> groups;
  for (Machine machine : {Machine::gpu, Machine::simulated}) {
    std::vector<Job> some;
    std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(some),
                 [&](const Job& j) { return j.machine == machine; });
    if (!some.empty()) groups.push_back({machine, some, read_problem(options, machine)});
  }
  return groups;
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

void print_head(const Group& g, const RunOptions& o) {
  const std::string machine = g.machine == Machine::gpu ? gpu_state().info.name : "Simulated GPU";
  const std::string inputs = o.problem.from_files()
                                 ? o.problem.Q_file + ", " + o.problem.K_file + ", " + o.problem.V_file
                                 : o.problem.input.value_or("gaussian");
  const std::string schedule =
      g.machine == Machine::simulated && o.schedule != "early"
          ? ", schedule: " + o.schedule +
                (o.schedule == "random" ? ", seed " + std::to_string(o.problem.seed_value()) : "")
          : "";
  std::printf("%s: %s, inputs: %s%s\n\n", machine.c_str(), describe(g.given.problem).c_str(), inputs.c_str(),
              schedule.c_str());
  std::fflush(stdout);
}

void warn_if_long(const Group& g) {
  double expected = 0;
  for (const Job& job : g.jobs) expected += expected_seconds(job, g.given.problem);
  if (expected > 60)
    std::cerr << "The simulated GPU will take about " << duration(expected)
              << " for this; shorter sequences or fewer heads take less.\n";
}

const char* footer(Machine machine) {
  return machine == Machine::gpu ? "Error share: the largest error over what is allowed; below 1 is right. "
                                   "./learn run --device cpu counts bytes "
                                   "and operations.\n"
                                 : "Error share: the largest error over what is allowed; below 1 is right. k "
                                   "= 10^3, M = 10^6, G = 10^9.\n";
}

void run_group(Group& g, const RunOptions& o, std::vector<Outcome>& outcomes, json& rows) {
  const attention::Problem problem = g.given.problem;
  if (!o.as_json) print_head(g, o);
  warn_if_long(g);
  const Question question =
      ask(problem, std::move(g.given.inputs), g.machine == Machine::gpu ? most_rows_checked_on_gpu : 0);
  const Table table = run_table(g.machine, g.jobs);
  if (!o.as_json) table.print_heading();
  std::string messages;
  for (const Job& job : g.jobs) {
    outcomes.push_back(run_job(job, question, o));
    const Outcome& outcome = outcomes.back();
    rows.push_back(run_json(job, problem, outcome));
    if (!o.as_json) table.print_row(run_row(job, problem, outcome));
    const std::string said =
        outcome.kind == Kind::wrong ? "is wrong" : std::string("was ") + name_of(outcome.kind);
    if (!outcome.right()) messages += job.step.name + " " + said + ": " + outcome.message + "\n";
  }
  if (!o.as_json) std::printf("\n%s%s\n", messages.c_str(), footer(g.machine));
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
  std::string note;
  std::vector<Group> groups = group(plan(o, note), o.problem);
  (o.as_json ? std::cerr : std::cout) << note << std::flush;
  std::vector<Outcome> outcomes;
  json rows = json::array();
  for (Group& g : groups) run_group(g, o, outcomes, rows);
  if (o.as_json) std::cout << rows.dump(2) << "\n";
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
  command->add_option("--out", o->O_file, "Write O to a .npy file, float16 [batch, heads, sequence, dim]; bf16 as float32")
      ->group("Files");
  command->add_option("--lse", o->LSE_file, "Write LSE to a .npy file, float32 [batch, heads, sequence]")
      ->group("Files");
  command->add_flag("--json", o->as_json, "Print a JSON array instead of the table");
  command->add_flag("--once", o->once, "GPU: launch once and do not time, for profilers");
  o->problem.add_to(*command);
  command->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace course
