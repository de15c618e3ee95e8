/// @file
/// The commands that hand over to other programs: `test`, `docs`, `profile`.
#include <cstdio>
#include <thread>

#include "command.h"
#include "failure.h"
#include "gpu.h"
#include "paths.h"
#include "process.h"
#include "steps.h"

namespace course {
namespace {

// Builds; the output of a build that succeeds is of no interest.
void build(const std::string& target) {
  const int code = run_program({FLASH_CMAKE, "--build", build_dir().string(), "--target", target});
  if (code != 0)
    throw Failure("The target " + target + " could not be built (exit code " + std::to_string(code) +
                  "); the reason stands above.");
}

int test(const std::vector<std::string>& arguments) {
  build("all");
  std::vector<std::string> command = {FLASH_CTEST,
                                      "--test-dir",
                                      build_dir().string(),
                                      "--output-on-failure",
                                      "--no-tests=error",
                                      "--parallel",
                                      std::to_string(std::max(1u, std::thread::hardware_concurrency()))};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command) == 0 ? exit_right : exit_wrong;
}

int docs() {
  build("docs");
  return exit_right;
}

// All of one launch of each kernel: speed of light, memory, stalls, source lines.
int profile(const std::string& name) {
  const Step& step = find_step(name);
  const std::vector<std::string> command = {"ncu",
                                            "--target-processes",
                                            "all",
                                            "--set",
                                            "full",
                                            "--import-source",
                                            "yes",
                                            "--launch-count",
                                            "3",
                                            "--force-overwrite",
                                            "--export",
                                            step.name,
                                            (bin_dir() / "course").string(),
                                            "run",
                                            step.number(),
                                            "--device",
                                            "gpu",
                                            "--once"};
  std::printf("%s\n", command_line(command).c_str());
  std::fflush(stdout);
  if (find_program("ncu").empty())
    throw Failure(
        "ncu (NVIDIA Nsight Compute) is not installed, so the line above was not run; it comes with the CUDA "
        "Toolkit.",
        exit_skipped);
  if (!gpu_state().usable) throw Failure("There is no GPU to profile on. " + gpu_state().why, exit_skipped);
  if (const std::string reason = why_not(step.arch, gpu_state().info); !reason.empty())
    throw Failure(reason, exit_skipped);
  const int code = run_program(command);
  if (code == 0)
    std::printf("Written: %s.ncu-rep; read it with ncu --import %s.ncu-rep, or open it in ncu-ui.\n",
                step.name.c_str(), step.name.c_str());
  return code == 0 ? exit_right : exit_wrong;
}

}  // namespace

void add_test(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("test", "All tests; further arguments go to ctest, as in: ./learn test -R npy");
  command->prefix_command();
  command->callback([command, &chosen] { chosen = [command] { return test(command->remaining()); }; });
}

void add_docs(CLI::App& app, Command& chosen) {
  app.add_subcommand("docs", "Build the documentation")->callback([&chosen] { chosen = docs; });
}

void add_profile(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("profile", "GPU: print and run the profiler's line for a step");
  auto step = std::make_shared<std::string>();
  command->add_option("step", *step, "The step, by number or name")->required();
  command->callback([step, &chosen] { chosen = [step] { return profile(*step); }; });
}

}  // namespace course
