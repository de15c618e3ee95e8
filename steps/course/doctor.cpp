/// @file
/// The command `doctor`: what is installed, what runs here, and the fix for what does not.
#include <cstdio>
#include <regex>
#include <sstream>

#include "command.h"
#include "failure.h"
#include "gpu.h"
#include "process.h"
#include "steps.h"
#include "table.h"
#include "units.h"

namespace course {
namespace {

struct Row {
  std::string part, found, verdict, fix;
};

// The first thing in a program's answer that looks like a version, or "".
std::string version_of(const std::vector<std::string>& command) {
  static const std::regex version("[0-9]+\\.[0-9]+(\\.[0-9]+)*");
  const std::string text = output_of(command);
  std::smatch match;
  return std::regex_search(text, match, version) ? match.str() : "";
}

std::string nvcc() {
  const std::string in_path = find_program("nvcc");
  return in_path.empty() ? find_program("/usr/local/cuda/bin/nvcc") : in_path;
}

Row toolkit_row() {
  const std::string
      program = nvcc(),
      fix = "to build for a GPU too: CUDA Toolkit 13.0 or newer from developer.nvidia.com/cuda-downloads";
  if (program.empty()) return {"nvcc", "not found", "optional", fix};
  static const std::regex release("release ([0-9]+)\\.([0-9]+)");
  const std::string text = output_of({program, "--version"});
  std::smatch match;
  if (!std::regex_search(text, match, release)) return {"nvcc", program, "broken", fix};
  const std::string found = match[1].str() + "." + match[2].str();
  if (std::stoi(match[1]) < 13) return {"nvcc", found, "too old", fix};
  if (!FLASH_WITH_CUDA)
    return {"nvcc", found, "not used",
            "this build is without it: delete the folder build/ and run ./learn again"};
  return {"nvcc", found, "ok", ""};
}

std::vector<Row> gpu_rows() {
  const GpuState& gpu = gpu_state();
  if (!gpu.usable) {
    std::string found = "none usable";
    const std::string listed = output_of({"nvidia-smi", "--query-gpu=name", "--format=csv,noheader"});
    if (!listed.empty()) found = listed.substr(0, listed.find('\n'));
    return {{"GPU", found, "optional", gpu.why + " Without a GPU the steps run simulated."}};
  }
  const flash_gpu_info& g = gpu.info;
  std::string runs;
  for (const Step& step : all_steps())
    if (!why_not(step.arch, g).empty()) runs += (runs.empty() ? "" : ", ") + step.name;
  return {{"driver",
           std::string(g.driver) + " (CUDA " + std::to_string(g.driver_cuda / 1000) + "." +
               std::to_string(g.driver_cuda % 1000 / 10) + ")",
           "ok", ""},
          {"GPU",
           std::string(g.name) + ", capability " + std::to_string(g.major) + "." + std::to_string(g.minor) +
               ", " + bytes(static_cast<double>(g.memory_bytes)) + ", " + std::to_string(g.sm_count) + " SMs",
           "ok", runs.empty() ? "" : "too old for " + runs + "; they run simulated"}};
}

Row program_row(const std::string& name, const std::string& program, bool needed, const std::string& fix) {
  const std::string version = find_program(program).empty() ? "" : version_of({program, "--version"});
  if (!version.empty()) return {name, version, "ok", ""};
  return {name, "not found", needed ? "missing" : "optional", fix};
}

int doctor() {
  std::vector<Row> rows = {
      program_row("C++ compiler", FLASH_COMPILER, true, "apt-get install g++"),
      program_row("CMake", FLASH_CMAKE, true, "apt-get install cmake"),
      program_row("Ninja", "ninja", true, "apt-get install ninja-build"),
  };
  std::istringstream versions(
      FLASH_VERSIONS);  // "Eigen 3.4.0|doctest 2.4.9|...", found when the build was made
  for (std::string entry; std::getline(versions, entry, '|');) {
    const size_t space = entry.find(' ');
    const std::string version = entry.substr(space + 1);
    rows.push_back({entry.substr(0, space), version.empty() ? "not found" : version,
                    version.empty() ? "missing" : "ok",
                    version.empty() ? "apt-get install doctest-dev" : ""});
  }
  rows.push_back(toolkit_row());
  for (const Row& row : gpu_rows()) rows.push_back(row);
  rows.push_back(program_row("ncu", "ncu", false, "./learn profile needs it: part of the CUDA Toolkit"));
  rows.push_back(program_row("Doxygen", "doxygen", false, "./learn docs needs it: apt-get install doxygen"));

  size_t simulated = 0;
  for (const Step& step : all_steps()) simulated += std::filesystem::exists(step.library(Machine::simulated));
  const bool works = simulated > 0 && simulated == all_steps().size();
  rows.push_back({"simulated GPU",
                  std::to_string(simulated) + " of " + std::to_string(all_steps().size()) + " steps built",
                  works ? "ok" : "broken", works ? "" : "run ./learn again, which builds what is missing"});

  size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.found.size());
  const Table table({{"", "part", 14, true},
                     {"", "found", width, true},
                     {"", "verdict", 8, true},
                     {"", "what to do", 0, true}});
  table.print_heading();
  for (const Row& row : rows) table.print_row({row.part, row.found, row.verdict, row.fix});
  return works ? exit_right : exit_wrong;
}

}  // namespace

void add_doctor(CLI::App& app, Command& chosen) {
  app.add_subcommand("doctor", "What runs here, what does not, and the fix")->callback([&chosen] {
    chosen = doctor;
  });
}

}  // namespace course
