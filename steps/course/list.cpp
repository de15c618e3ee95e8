/// @file
/// The commands `list` and `diff`, and the ladder.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "exercise.h"
#include "failure.h"
#include "gpu.h"
#include "process.h"
#include "steps.h"
#include "table.h"
#include "units.h"

namespace course {
namespace {

int list(bool as_json) {
  if (as_json) {
    nlohmann::json steps = nlohmann::json::array();
    for (const Step& s : all_steps())
      steps.push_back({{"step", s.name}, {"prev", s.prev}, {"arch", s.arch}, {"title", s.title}});
    std::cout << steps.dump(2) << "\n";
    return exit_right;
  }
  const Table table({{"", "step", 22, true},
                     {"", "after", 22, true},
                     {"", "arch", 4, true},
                     {"", "the one idea", 0, true}});
  table.print_heading();
  for (const Step& s : all_steps()) table.print_row({s.name, s.prev.empty() ? "-" : s.prev, s.arch, s.title});
  return exit_right;
}

int diff(const std::string& name) {
  const Step& step = find_step(name);
  if (step.prev.empty())
    throw Failure(step.name + " is the first step; there is nothing to compare it with. Try ./learn diff " +
                  (all_steps().size() > 1 ? all_steps()[1].number() : "01") + ".");
  const std::string before = "steps/" + step.prev + "/attention.cu",
                    after = "steps/" + step.name + "/attention.cu";
  const std::filesystem::path root = step.folder().parent_path().parent_path();
  for (const std::string& file : {before, after})
    if (!std::filesystem::exists(root / file))
      throw Failure("The file " + (root / file).string() + " does not exist.");
  std::filesystem::current_path(root);
  const int code = run_program({"diff", "-u", isatty(STDOUT_FILENO) ? "--color=always" : "--color=never",
                                "--label", before, "--label", after, before, after});
  return code <= 1 ? exit_right : exit_wrong;
}

std::string where_it_runs(const Step& step) {
  const bool gpu = gpu_state().usable && why_not(step.arch, gpu_state().info).empty();
  return gpu ? "gpu, cpu" : "cpu";
}

}  // namespace

int show_ladder() {
  std::printf("FlashAttention, step by step\n\n");
  const Table table({{"", "step", 22, true},
                     {"runs", "here on", 8, true},
                     {"exer-", "cises", 5},
                     {"", "the one idea", 0, true}});
  table.print_heading();
  int done = 0, all = 0;
  for (const Step& step : all_steps()) {
    const ExerciseCount count = count_exercises(step);
    done += count.done;
    all += count.all;
    const std::string exercises =
        count.all ? std::to_string(count.done) + "/" + std::to_string(count.all) : "-";
    table.print_row({step.name, where_it_runs(step), exercises, step.title});
  }
  std::printf("\ngpu = %s; cpu = the simulated GPU.\n\n",
              gpu_state().usable ? gpu_state().info.name : "a graphics card (there is none to use here)");
  if (all_steps().empty()) return exit_right;
  const Step& first = all_steps().front();
  std::printf("What to do next\n");
  if (done == 0)
    std::printf("  read    steps/%s/README.md, then steps/%s/attention.cu\n  check   ./learn run %s\n",
                first.name.c_str(), first.name.c_str(), first.number().c_str());
  if (const std::string next = next_exercise(); !next.empty())
    std::printf("  solve   %s: ./learn exercise next\n", next.c_str());
  else if (all > 0)
    std::printf("  all %d exercises are solved.\n", all);
  if (all_steps().size() > 1) std::printf("  compare ./learn diff %s\n", all_steps()[1].number().c_str());
  std::printf("  more    ./learn --help\n");
  return exit_right;
}

void add_list(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("list", "The steps");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print a JSON array");
  command->callback([as_json, &chosen] { chosen = [as_json] { return list(*as_json); }; });
}

void add_diff(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("diff", "What a step changes in the kernel file of the step before it");
  auto step = std::make_shared<std::string>();
  command->add_option("step", *step, "The step, by number or name")->required();
  command->callback([step, &chosen] { chosen = [step] { return diff(*step); }; });
}

}  // namespace course
