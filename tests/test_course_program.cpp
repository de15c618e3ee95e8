/// @file
/// The program's command line: exit codes, and one sentence for everything that is wrong.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "steps/course/inputs.h"
#include "steps/course/npy.h"
#include "tests/program.h"

namespace {

const Program learn(FLASH_COURSE);

std::string folder() { return learn.folder; }

// A wrong command: exit code 1, nothing on standard output, one line on standard error, which is a sentence.
void check_refused(const std::string& arguments, const std::string& part, int code = 1) {
  const Answer a = learn(arguments);
  CAPTURE(arguments);
  CAPTURE(a.out);
  CAPTURE(a.err);
  CHECK(a.code == code);
  CHECK(a.out == "");
  CHECK(contains(a.err, part));
  CHECK(std::count(a.err.begin(), a.err.end(), '\n') == 1);
  CHECK(a.err.size() > 2);
  CHECK(a.err.substr(a.err.size() - 2) == ".\n");
}

void write_inputs() {
  const attention::Problem p{1, 2, 37, 41, 64, false, 0.125f};
  const course::Inputs x = course::make_inputs("gaussian", p, 1);
  course::write_npy(folder() + "/q.npy", {1, 2, 37, 64}, x.Q.data());
  course::write_npy(folder() + "/k.npy", {1, 2, 41, 64}, x.K.data());
  course::write_npy(folder() + "/v.npy", {1, 2, 41, 64}, x.V.data());
}

}  // namespace

TEST_CASE("a wrong command line is one sentence and exit code 1") {
  check_refused("frobnicate", "There is no command or option 'frobnicate'; the commands are run, ");
  check_refused("--frobnicate", "There is no command or option '--frobnicate'");
  check_refused("run 99", "There is no step '99'");
  check_refused("run 10_tilin", "There is no step '10_tilin'");
  check_refused("diff 99", "There is no step '99'");
  check_refused("profile 99", "There is no step '99'");
  check_refused("bench 99", "There is no step '99'");
  check_refused("diff", "step is required");
  check_refused("diff 00", "00_naive is the first step");
  check_refused("run --frobnicate", "Nothing is known about --frobnicate; see ./learn run --help");
  check_refused("run 10 --batch", "--batch needs a value");
  check_refused("run 10 --batch -3", "--batch is -3");
  check_refused("run 10 --heads two", "--heads takes a whole number; 'two' is none");
  check_refused("run 10 --seq -1", "--seq is -1");
  check_refused("run 10 --seq-k 1.5", "--seq-k takes a whole number");
  check_refused("run 10 --seq 1000000000000", "memory");
  check_refused("run 10 --dim 80", "The head dimension is 80");
  check_refused("run 10 --dim 0", "The head dimension is 0");
  check_refused("run 10 --scale abc", "--scale takes a number; 'abc' is none");
  check_refused("run 10 --scale nan", "--scale takes a number; 'nan' is none");
  check_refused("run 10 --scale inf", "The scale is inf");
  check_refused("run 10 --scale 1e30", "The scale is ");
  check_refused("run 10 --input uniform", "There is no input 'uniform'");
  check_refused("run 10 --seed x", "--seed takes a whole number");
  check_refused("run 10 --device tpu", "There is no device 'tpu'");
  check_refused("run 10 --schedule soon", "There is no schedule 'soon'");
  check_refused("bench --shapes 1x2x3", "'1x2x3' is no shape");
  check_refused("bench --causal maybe", "--causal takes yes, no or both");
  check_refused("exercise frobnicate", "frobnicate");
}

TEST_CASE("wrong files are one sentence and exit code 1") {
  write_inputs();
  check_refused("run 10 --q q.npy", "--k is missing");
  check_refused("run 10 --k k.npy --v v.npy", "--q is missing");
  check_refused("run 10 --q q.npy --k k.npy", "--v is missing");
  check_refused("run 10 --q q.npy --k k.npy --v absent.npy", "absent.npy does not exist");
  check_refused("run 10 --q q.npy --k k.npy --v q.npy", "K and V differ");
  check_refused("run 10 --q q.npy --k k.npy --v v.npy --seq 5", "--seq cannot be given together");
  check_refused("run 10 --q q.npy --k k.npy --v v.npy --out no/o.npy", "no/o.npy cannot be written");
  check_refused("run 10 --q q.npy --k k.npy --v v.npy --out q.npy", "q.npy is named twice");
  check_refused("run --out o.npy", "name exactly one");
  check_refused("run 00 10 --lse o.npy", "name exactly one");
  std::ofstream(folder() + "/empty.npy");
  check_refused("run 10 --q empty.npy --k k.npy --v v.npy", "empty.npy is empty");
  std::ofstream(folder() + "/short.npy", std::ios::binary) << content(folder() + "/q.npy").substr(0, 1000);
  check_refused("run 10 --q short.npy --k k.npy --v v.npy", "short.npy is truncated");
}

TEST_CASE("where nothing can run, the exit code is 77") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // none, whatever this machine has
  check_refused("run 10 --device gpu", "Use --device cpu", 77);
  check_refused("bench", "Only a GPU can be timed", 77);
  const Answer profile = learn("profile 10");
  CHECK(profile.code == 77);
  CHECK(contains(profile.out, "ncu "));
  const Answer automatic = learn("run 00 --seq 20 --heads 1");
  CHECK(automatic.code == 0);
  CHECK(automatic.out.find("There is no GPU") == automatic.out.rfind("There is no GPU"));
  CHECK(contains(automatic.out, "There is no GPU"));
  CHECK(contains(automatic.out, "right, "));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE("every step is right on files, and writes what NumPy reads") {
  write_inputs();
  const auto steps = nlohmann::json::parse(learn("list --json").out);
  REQUIRE(steps.size() > 0);
  for (const auto& step : steps) {
    const std::string name = step["step"];
    CAPTURE(name);
    const Answer a = learn("run " + name +
                           " --device cpu --q q.npy --k k.npy --v v.npy --causal --out o.npy --lse lse.npy");
    CAPTURE(a.out);
    CHECK(a.code == 0);
    CHECK(a.err == "");
    CHECK(contains(a.out, "B=1 H=2 Sq=37 Sk=41 D=64 causal"));
    const course::HalfTensor O = course::read_half_npy(folder() + "/o.npy");
    CHECK(O.shape == std::array<int64_t, 4>{1, 2, 37, 64});
    CHECK(std::all_of(O.values.begin(), O.values.end(),
                      [](uint16_t x) { return std::isfinite(attention::from_half(x)); }));
    CHECK(content(folder() + "/lse.npy").size() == 128 + 4 * 74);
  }
}

TEST_CASE("NaN and infinity in files are data") {
  write_inputs();
  course::HalfTensor v = course::read_half_npy(folder() + "/v.npy");
  v.values[40 * 64] = 0x7E00;  // the last key of the first head
  course::write_npy(folder() + "/nan.npy", v.shape, v.values.data());
  const Answer a = learn("run 00 --device cpu --q q.npy --k k.npy --v nan.npy --causal --out o.npy");
  CAPTURE(a.out);
  CHECK(a.code == 0);
  const course::HalfTensor O = course::read_half_npy(folder() + "/o.npy");
  CHECK(std::isnan(attention::from_half(O.values[36 * 64])));     // the last query sees it
  CHECK(std::isfinite(attention::from_half(O.values[35 * 64])));  // the one before does not
}

TEST_CASE("BF16: files of float32, the table and JSON say so, and a step of FP16 refuses it") {
  write_inputs();
  check_refused("run 40 --device cpu --dtype bf16 --q q.npy --k k.npy --v v.npy", "for BF16, float32 ('<f4') is needed");
  for (const std::string name : {"q", "k", "v"}) {
    const course::HalfTensor x = course::read_half_npy(folder() + "/" + name + ".npy");
    std::vector<uint16_t> values;
    for (uint16_t bits : x.values) values.push_back(attention::to_bfloat16(attention::from_half(bits)));
    course::write_npy(folder() + "/" + name + "32.npy", x.shape, values.data(), attention::Dtype::bf16);
  }
  const std::string files = " --dtype bf16 --device cpu --q q32.npy --k k32.npy --v v32.npy";
  const Answer a = learn("run 40 --out o.npy" + files);
  CAPTURE(a.out + a.err);
  CHECK(a.code == 0);
  CHECK(contains(a.out, "D=64 full scale=0.125 bf16, inputs"));
  CHECK(course::read_half_npy(folder() + "/o.npy", attention::Dtype::bf16).shape == std::array<int64_t, 4>{1, 2, 37, 64});
  CHECK(nlohmann::json::parse(learn("run 40 --json" + files).out).at(0).at("problem").at("dtype") == "bf16");
  const Answer refused = learn("run 10" + files);
  CHECK(refused.code == 1);
  CHECK(contains(refused.out, "10_tiling was refused: Q, K and V are BF16; this step takes FP16."));
}

TEST_CASE("run prints JSON with exact counts, the table at most 120 columns") {
  const Answer a = learn("run 00 --device cpu --seq 20 --heads 1 --schedule random --seed 9 --json");
  CHECK(a.code == 0);
  const auto rows = nlohmann::json::parse(a.out);
  CHECK(rows.at(0).at("step") == "00_naive");
  CHECK(rows.at(0).at("verdict") == "right");
  CHECK(rows.at(0).at("problem").at("seq_q") == 20);
  CHECK(rows.at(0).at("ledger").at("global_written_distinct") > 0);
  for (const char* command : {"", "run --device cpu --seq 33", "list", "doctor"}) {
    const Answer table = learn(command);
    CAPTURE(command);
    CHECK(table.code == 0);
    std::istringstream lines(table.out);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 120);
  }
}

TEST_CASE("degenerate sizes are right") {
  for (const char* sizes :
       {"--seq 0", "--batch 0 --seq 4", "--seq-q 3 --seq-k 0", "--seq-q 5 --seq-k 2 --causal"}) {
    CAPTURE(sizes);
    CHECK(learn(std::string("run --device cpu ") + sizes).code == 0);
  }
}

TEST_CASE("help, the ladder and a diff") {
  CHECK(learn("--help").code == 0);
  CHECK(contains(learn("run --help").out, "--causal"));
  CHECK(contains(learn("").out, "What to do next"));
  const Answer diff = learn("diff 01");
  CHECK(diff.code == 0);
  CHECK(contains(diff.out, "+++ steps/01_"));
  CHECK(!contains(diff.out, "\x1b"));  // no colours in a pipe
}
