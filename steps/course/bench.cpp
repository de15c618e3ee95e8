/// @file
/// The command `bench`: TFLOP/s on the GPU, by shape and protocol.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>

#include "command.h"
#include "child.h"
#include "failure.h"
#include "gpu.h"
#include "measure.h"
#include "npy.h"
#include "options.h"
#include "paths.h"
#include "process.h"
#include "steps.h"
#include "table.h"
#include "units.h"

namespace course {
namespace {

using attention::Problem;

struct BenchOptions {
  std::vector<std::string> steps;
  std::string csv, shapes = "ladder", causal = "both", dtype = "fp16";
};

struct Shape {
  int64_t batch, heads, seq, dim;
};

// ladder: the standard shape of the README's table. quick: a short and a long one. standard: 16k tokens of
// hidden size 2048, cut into batches in six ways, for both head dimensions. Or shapes like 2x16x8192x128.
std::vector<Shape> read_shapes(const std::string& text) {
  if (text == "ladder") return {{2, 16, 8192, 128}};
  if (text == "quick") return {{16, 16, 1024, 128}, {2, 16, 8192, 128}};
  std::vector<Shape> shapes;
  if (text == "standard") {
    for (int64_t dim : {64, 128})
      for (int64_t batch = 32; batch >= 1; batch /= 2)
        shapes.push_back({batch, 2048 / dim, 16384 / batch, dim});
    return shapes;
  }
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ',');) {
    std::vector<int64_t> n;
    std::istringstream sizes(one);
    for (std::string size; std::getline(sizes, size, 'x');) n.push_back(whole_number("--shapes", size));
    if (n.size() != 4)
      throw Failure(
          "'" + one +
          "' is no shape; --shapes takes ladder, quick, standard, or shapes BxHxSxD like 2x16x8192x128.");
    shapes.push_back({n[0], n[1], n[2], n[3]});
  }
  return shapes;
}

std::vector<bool> read_masks(const std::string& text) {
  if (text == "both") return {false, true};
  if (text == "yes" || text == "no") return {text == "yes"};
  throw Failure("--causal takes yes, no or both; '" + text + "' is none of them.");
}

std::vector<attention::Dtype> read_dtypes(const std::string& text) {
  if (text == "both") return {attention::Dtype::fp16, attention::Dtype::bf16};
  return {read_dtype(text)};
}

std::string one_line(std::string text) { return text.substr(0, text.find('\n')); }

// What the run as a whole is: date, commit, GPU, driver, toolkit.
std::string environment_columns(const flash_gpu_info& gpu) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const std::string root = source_dir().string();
  std::string commit;
  if (const char* told = std::getenv("FLASH_COMMIT")) {  // a copy of another checkout: whoever copied it says what it is
    commit = told;
  } else {
    commit = one_line(output_of({"git", "-C", root, "rev-parse", "--short=12", "HEAD"}));
    if (commit.empty())
      commit = "unknown";
    else if (!output_of({"git", "-C", root, "status", "--porcelain", "--untracked-files=no"}).empty())
      commit += "-changed";
  }
  return std::string(date) + "," + commit + "," + gpu.name + "," + gpu.driver + "," +
         std::to_string(gpu.toolkit / 1000) + "." + std::to_string(gpu.toolkit % 1000 / 10);
}

// One attribute of all kernels of a step, joined: "40/32/38".
std::string kernel_column(const std::string& kernels, const std::string& attribute) {
  std::istringstream lines(kernels);
  std::string joined;
  for (std::string line; std::getline(lines, line);) {
    std::string value = line.substr(0, line.find(' '));
    if (!attribute.empty()) {
      const size_t at = line.find(" " + attribute + "=");
      if (at == std::string::npos) continue;
      const size_t begin = at + attribute.size() + 2;
      value = line.substr(begin, line.find(' ', begin) - begin);
    }
    joined += (joined.empty() ? "" : "/") + value;
  }
  return joined;
}

constexpr const char* csv_heading =
    "date,commit,gpu,driver,toolkit,sm_clock_mhz,protocol,step,batch,heads,seq_q,seq_k,dim,causal,dtype,ms_median,"
    "ms_p10,ms_p90,"
    "launches,tflops,pct_of_peak,verified,kernels,registers,spill_bytes,static_shared,dynamic_shared,threads,"
    "ctas_per_sm,l2\n";

std::string csv_row(const std::string& environment, const Step& step, const Problem& p, const Window& w,
                    const Measurement& m, double tflops, double peak) {
  std::ostringstream row;
  row << environment << ',' << (w.sm_clock_mhz > 0 ? digits(w.sm_clock_mhz, 4) : "") << ',' << w.protocol
      << ',' << step.name << ',' << p.batch << ',' << p.heads << ',' << p.seq_q << ',' << p.seq_k << ','
      << p.dim << ',' << p.causal << ',' << name_of(p.dtype) << ',' << digits(w.ms_median, 5) << ','
      << digits(w.ms_p10, 5) << ',' << digits(w.ms_p90, 5) << ',' << w.launches << ',' << digits(tflops, 4) << ','
      << (peak > 0 ? digits(100 * tflops / peak, 3) : "") << ",yes," << kernel_column(m.kernels, "");
  for (const char* attribute :
       {"registers", "spill_bytes", "static_shared", "dynamic_shared", "threads", "ctas_per_sm"})
    row << ',' << kernel_column(m.kernels, attribute);
  row << ",warm\n";
  return row.str();
}

// Speeds of the steps at one shape, mask and protocol, for the ratios.
std::string ratio(const std::map<std::string, double>& speeds, const std::string& other, double tflops) {
  const auto found = speeds.find(other);
  return found == speeds.end() ? "-" : digits(tflops / found->second, 3);
}

class Bench {
public:
  Bench(const BenchOptions& o, std::vector<Step> steps)
      : steps_(std::move(steps)),
        peak_(peak_tflops(gpu_state().info)),
        environment_(environment_columns(gpu_state().info)),
        table_({{"", "step", 22, true},
                {"", "shape BxHxSxD", 16, true},
                {"", "mask", 6, true},
                {"", "type", 4, true},
                {"", "protocol", 10, true},
                {"", "ms", 7},
                {"", "TFLOP/s", 7},
                {"% of", "peak", 5},
                {"x pre-", "vious", 6},
                {"x", "naive", 6}}) {
    if (o.csv.empty()) return;
    csv_.open(o.csv);
    csv_ << csv_heading;
  }

  int run(const std::vector<Shape>& shapes, const std::vector<bool>& masks, const std::vector<attention::Dtype>& dtypes) {
    table_.print_heading();
    for (const Shape& s : shapes)
      for (bool causal : masks)
        for (attention::Dtype dtype : dtypes) {
          const Problem p{s.batch, s.heads, s.seq, s.seq, s.dim, causal, attention::default_scale(s.dim), dtype};
          const Question question = ask(p, make_inputs("gaussian", p, 1), 4096);
          speeds_.clear();
          for (const Step& step : steps_) measure_one(step, question);
        }
    std::printf("\n%s", messages_.c_str());
    if (csv_.is_open() && !csv_.flush()) throw Failure("The CSV file could not be written in full.");
    return wrong_ ? exit_wrong : measured_ ? exit_right : exit_skipped;
  }

private:
  void measure_one(const Step& step, const Question& question) {
    const Problem& p = question.problem;
    const std::string shape = std::to_string(p.batch) + "x" + std::to_string(p.heads) + "x" +
                              std::to_string(p.seq_q) + "x" + std::to_string(p.dim);
    const std::string mask = p.causal ? "causal" : "full", type = name_of(p.dtype);
    if (const std::string reason = why_not(step.arch, gpu_state().info); !reason.empty()) {
      table_.print_row({step.name, shape, mask, type, "skipped"});
      messages_ += step.name + " was skipped: " + reason + "\n";
      return;
    }
    const Measurement m = measure(step.library(Machine::gpu), question);
    const std::string what = step.name + " at " + shape + " " + mask + " " + type;
    if (m.kind == Outcome::Kind::refused) {
      table_.print_row({step.name, shape, mask, type, "refused"});
      messages_ += what + " was refused: " + m.message + "\n";
      return;
    }
    if (m.kind != Outcome::Kind::right) {
      wrong_ = true;
      table_.print_row({step.name, shape, mask, type, "wrong"});
      messages_ += what + " is not right, so it has no time: " + m.message + "\n";
      return;
    }
    for (const Window& w : m.windows) {
      if (w.launches == 0) continue;
      measured_ = true;
      const double tflops = matmul_flops(p) / w.ms_median * 1e-9;
      // A slow step has one row; it stands for both protocols in the ratios.
      for (const std::string& protocol : w.protocol == "three runs"
                                             ? std::vector<std::string>{"burst", "steady"}
                                             : std::vector<std::string>{w.protocol})
        speeds_[protocol][step.name] = tflops;
      const auto& speeds = speeds_[w.protocol == "three runs" ? "burst" : w.protocol];
      table_.print_row({step.name, shape, mask, type, w.protocol, digits(w.ms_median, 4), digits(tflops, 4),
                        peak_ > 0 ? digits(100 * tflops / peak_, 3) : "-", ratio(speeds, step.prev, tflops),
                        ratio(speeds, all_steps().front().name, tflops)});
      if (csv_.is_open()) csv_ << csv_row(environment_, step, p, w, m, tflops, peak_);
    }
  }

  std::vector<Step> steps_;
  double peak_;
  std::string environment_;
  Table table_;
  std::ofstream csv_;
  std::map<std::string, std::map<std::string, double>> speeds_;  // protocol, step
  std::string messages_;
  bool wrong_ = false, measured_ = false;
};

// Numbers of a debug build mislead.
void refuse_debug_build() {
#ifdef NDEBUG
  const bool debug = gpu_state().info.debug;
#else
  const bool debug = true;
#endif
  if (debug)
    throw Failure("This build is a debug build (type '" FLASH_BUILD_TYPE
                  "'), whose times mislead; build with -DCMAKE_BUILD_TYPE=Release.");
}

int bench(const BenchOptions& o) {
  const std::vector<Step> steps = find_steps(o.steps);
  const std::vector<Shape> shapes = read_shapes(o.shapes);
  const std::vector<bool> masks = read_masks(o.causal);
  const std::vector<attention::Dtype> dtypes = read_dtypes(o.dtype);
  if (!o.csv.empty()) check_writable(o.csv);
  if (!gpu_state().usable)
    throw Failure("Only a GPU can be timed. " + gpu_state().why +
                      " ./learn run counts bytes and operations without one.",
                  exit_skipped);
  refuse_debug_build();
  std::printf("%s, driver %s\n", gpu_state().info.name, gpu_state().info.driver);
  const ChildResult copy =
      run_in_child("The copy", 60, [] { return nlohmann::json(Gpu().copy_bandwidth()); });
  if (copy.ok)
    std::printf("Copy within its memory: %s/s, read and written\n", bytes(copy.value.get<double>()).c_str());
  std::printf(
      "Peak: dense FP16 or BF16 on the tensor cores at the data sheet's clock, %s TFLOP/s\n\n",
      peak_tflops(gpu_state().info) > 0 ? digits(peak_tflops(gpu_state().info), 4).c_str() : "unknown");
  return Bench(o, steps).run(shapes, masks, dtypes);
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "GPU: TFLOP/s by shape");
  command->add_option("step", o->steps, "Steps, by number or name; all if none is named");
  command->add_option("--csv", o->csv, "Write all numbers to a CSV file");
  command->add_option("--shapes", o->shapes, "ladder (default), quick, standard, or BxHxSxD,...");
  command->add_option("--causal", o->causal, "yes, no or both (default)");
  command->add_option("--dtype", o->dtype, "fp16 (default), bf16 or both; a step that does not take it is left out");
  command->callback([o, &chosen] { chosen = [o] { return bench(*o); }; });
}

}  // namespace course
