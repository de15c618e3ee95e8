/// @file
/// The program on a machine with a GPU: device.gpu.so is a fake, and simulated steps stand in for those of
/// the GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/program.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A copy of the build, with a GPU.
struct Machine : Program {
  Machine() : Program("bin/course") {
    const fs::path build = fs::path(FLASH_COURSE).parent_path(), bin = fs::path(folder) / "bin";
    fs::create_directories(bin / "steps");
    fs::copy(FLASH_COURSE, bin);
    fs::copy(build / "libsimulator.so", bin);
    fs::copy(FLASH_FAKE_GPU, bin / "device.gpu.so");
    for (const auto& entry : fs::directory_iterator(build / "steps")) {
      const std::string name = entry.path().filename();
      const size_t end = name.find(".simulated.so");
      if (end == std::string::npos && entry.path().extension() != ".json") continue;
      fs::copy(entry.path(), bin / "steps");
      if (end != std::string::npos) fs::copy(entry.path(), bin / "steps" / (name.substr(0, end) + ".gpu.so"));
    }
  }
  void replace_first_step(const fs::path& library) const {
    fs::copy(library, fs::path(folder) / "bin/steps/00_naive.gpu.so", fs::copy_options::overwrite_existing);
  }
};

std::vector<std::vector<std::string>> read_csv(const std::string& file) {
  std::istringstream lines(content(file));
  std::vector<std::vector<std::string>> rows;
  for (std::string line, cell; std::getline(lines, line);) {
    rows.emplace_back();
    std::istringstream cells(line + ",");
    while (std::getline(cells, cell, ',')) rows.back().push_back(cell);
  }
  return rows;
}

}  // namespace

TEST_CASE("with a GPU, steps run there and are timed") {
  const Machine learn;
  const Answer a = learn("run 00 10 --seq 40 --heads 2 --batch 1 --dim 64");
  CAPTURE(a.out + a.err);
  CHECK(a.code == 0);
  CHECK(contains(a.out, "Fake GPU: B=1 H=2 Sq=40 Sk=40 D=64 full"));
  CHECK(contains(a.out, "TFLOP/s"));
  CHECK(!contains(a.out, "There is no GPU"));
  const json rows = json::parse(learn("run 00 --seq 40 --heads 2 --batch 1 --json").out);
  CHECK(rows[0]["device"] == "gpu");
  CHECK(rows[0]["ms"] == 2);  // the fake GPU: 100 launches of 1 ms, then 100 of 2 ms
  CHECK(!rows[0].contains("ledger"));
  CHECK(contains(learn("").out, "gpu, cpu"));
  CHECK(contains(learn("doctor").out, "Fake GPU, capability 9.0"));
}

TEST_CASE("a GPU that is too old for a step: it runs simulated, or is skipped") {
  const Machine learn;
  const std::string old = "FAKE_GPU_CAPABILITY=75", sizes = " --seq 40 --heads 2 --batch 1 --dim 64";
  const Answer both = learn("run 10 11" + sizes, old);
  CAPTURE(both.out);
  CHECK(both.code == 0);
  CHECK(contains(both.out, "Fake GPU: "));
  CHECK(contains(both.out, "Simulated GPU: "));
  const Answer skipped = learn("run 11 --device gpu" + sizes, old);
  CHECK(skipped.code == 77);
  CHECK(contains(skipped.out,
                 "has compute capability 7.5; this step needs 8.0 or newer. Use --device cpu for it."));
  CHECK(learn("run 10 11 --device gpu" + sizes, old).code == 0);  // one ran
}

TEST_CASE("a GPU that cannot be opened is named with its error") {
  const Machine learn;
  const Answer a = learn("run 00 --device gpu", "FAKE_GPU_ERROR=35");
  CHECK(a.code == 77);
  CHECK(contains(a.err, "(CUDA error 35). Use --device cpu"));
  const Answer automatic = learn("run 00 --seq 20", "FAKE_GPU_ERROR=35");
  CHECK(automatic.code == 0);
  CHECK(contains(automatic.out, "CUDA error 35"));
}

TEST_CASE("faults on the GPU are wrong, by guards, comparison and child process") {
  const Machine learn;
  learn.replace_first_step(FLASH_FAULTY_STEP);
  const std::pair<int, const char*> faults[] = {{1, "O: "},  // zeros
                                                {2, "nan"},  // nothing written
                                                {5, "wrote past the end of O, at byte 3200 of 3200"},
                                                {7, "wrote to its input Q"},
                                                {8, "crashed: signal 6"},
                                                {10, "was refused: Ten heads are too many"}};
  for (const auto& [heads, part] : faults) {
    const Answer a = learn("run 00 --device gpu --batch 1 --seq 5 --dim 64 --heads " + std::to_string(heads));
    CAPTURE(heads);
    CAPTURE(a.out + a.err);
    CHECK(a.code == 1);
    CHECK(contains(a.out, part));
    CHECK(!contains(a.out, "right,"));
  }
  const Answer bench = learn("bench 00 --shapes 1x1x5x64 --csv wrong.csv");
  CHECK(bench.code == 1);
  CHECK(contains(bench.out, "is not right, so it has no time"));
  CHECK(read_csv(learn.folder + "/wrong.csv").size() == 1);  // the heading
}

TEST_CASE("bench measures burst and steady, and writes a CSV file") {
  const Machine learn;
  const Answer a = learn("bench 00 10 --shapes 1x2x40x64 --csv bench.csv");
  CAPTURE(a.out + a.err);
  CHECK(a.code == 0);
  const auto rows = read_csv(learn.folder + "/bench.csv");
  REQUIRE(rows.size() == 1 + 2 * 2 * 2);  // steps, masks, protocols
  auto column = [&](size_t row, const std::string& name) {
    const auto at = std::find(rows[0].begin(), rows[0].end(), name);
    REQUIRE(at != rows[0].end());
    return rows[row].at(static_cast<size_t>(at - rows[0].begin()));
  };
  for (size_t i = 1; i < rows.size(); ++i) CHECK(rows[i].size() == rows[0].size());
  CHECK(column(1, "gpu") == "Fake GPU");
  CHECK(column(1, "toolkit") == "13.0");
  CHECK(column(1, "protocol") == "burst");
  CHECK(column(2, "protocol") == "steady");
  CHECK(std::stod(column(1, "ms_median")) == 1);
  CHECK(std::stod(column(2, "ms_median")) == 2);
  CHECK(column(1, "sm_clock_mhz") == "");
  CHECK(column(2, "sm_clock_mhz") == "1600");
  CHECK(column(1, "launches") == "30");
  CHECK(column(1, "dtype") == "fp16");
  CHECK(column(1, "causal") == "0");
  CHECK(column(5, "causal") == "1");
  CHECK(column(1, "verified") == "yes");
  const double full = std::stod(column(1, "tflops")), causal = std::stod(column(5, "tflops"));
  CHECK(full == 4.0 * 2 * 40 * 40 * 64 / 1e-3 * 1e-12);
  CHECK(causal == full / 2);
}

TEST_CASE("bench in both types: who does not take BF16 has no row, and says so") {
  const Machine learn;
  const Answer a = learn("bench 00 10 --dtype both --causal no --shapes 1x2x40x64 --csv bench.csv");
  CAPTURE(a.out + a.err);
  CHECK(a.code == 0);
  CHECK(contains(a.out, "10_tiling at 1x2x40x64 full bf16 was refused: Q, K and V are BF16; this step takes FP16."));
  const auto rows = read_csv(learn.folder + "/bench.csv");
  CHECK(rows.size() == 1 + 2 * 2);  // FP16, two protocols each
  CHECK(learn("bench 10 --dtype bf16 --shapes 1x2x40x64").code == 77);
  // 40 does take it, and cannot run on this GPU: an error, not a refusal.
  const Answer broken = learn("bench 40 --dtype bf16 --shapes 1x2x40x64");
  CHECK(broken.code == 1);
  CHECK(contains(broken.out, "40_late_rescale at 1x2x40x64 full bf16 is not right, so it has no time"));
}

TEST_CASE("bench: launches too long for the burst window get three runs; a debug build is refused") {
  const Machine learn;
  const Answer slow = learn("bench 00 --shapes 1x2x40x64 --causal no --csv bench.csv", "FAKE_GPU_MS=45");
  CHECK(slow.code == 0);
  const auto rows = read_csv(learn.folder + "/bench.csv");
  REQUIRE(rows.size() == 2);
  CHECK(std::find(rows[1].begin(), rows[1].end(), "three runs") != rows[1].end());
  const Answer debug = learn("bench 00", "FAKE_GPU_DEBUG=1");
  CHECK(debug.code == 1);
  CHECK(contains(debug.err, "debug build"));
}
