/// @file
/// Which steps there are.
#include "steps.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "failure.h"
#include "paths.h"

namespace course {
namespace {

namespace fs = std::filesystem;

std::vector<Step> discover() {
  std::vector<Step> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(bin_dir() / "steps", error)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const auto j = nlohmann::json::parse(file, nullptr, false);
    if (!j.is_object())
      throw Failure("The file " + entry.path().string() + " is damaged; configure the build again.");
    Step step{j.value("step", ""), j.value("prev", ""), j.value("arch", ""), j.value("title", "")};
    if (step.name.size() < 4) continue;
    const bool removed = fs::exists(source_dir() / "steps") && !fs::exists(step.folder());  // or renamed
    if (removed) continue;
    steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.name < b.name; });
  return steps;
}

}  // namespace

fs::path Step::folder() const { return source_dir() / "steps" / name; }

fs::path Step::library(Machine machine) const {
  return bin_dir() / "steps" / (name + (machine == Machine::gpu ? ".gpu.so" : ".simulated.so"));
}

const std::vector<Step>& all_steps() {
  static const std::vector<Step> steps = discover();
  return steps;
}

const Step& find_step(const std::string& name) {
  std::string names;
  for (const Step& step : all_steps()) {
    if (name == step.name || name == step.number()) return step;
    names += (names.empty() ? "" : ", ") + step.name;
  }
  if (names.empty())
    throw Failure("No step was built yet: there is none in " + (bin_dir() / "steps").string() + ".");
  throw Failure("There is no step '" + name + "'; the steps are " + names + " (the number alone will do).");
}

std::vector<Step> find_steps(const std::vector<std::string>& names) {
  if (names.empty()) {
    if (all_steps().empty()) find_step("");
    return all_steps();
  }
  std::vector<Step> steps;
  for (const std::string& name : names) steps.push_back(find_step(name));
  return steps;
}

}  // namespace course
