/// @file
/// Reading numbers, and the options that describe a problem.
#include "options.h"

#include <charconv>
#include <cmath>
#include <iostream>
#include <sstream>

#include "failure.h"
#include "npy.h"

namespace course {
namespace {

using attention::Problem;
using Text = std::optional<std::string>;

template <typename T>
std::optional<T> parse(const std::string& text) {
  const char *begin = text.data(), *end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  T value{};
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

void read_size(const char* option, const Text& text, int64_t& size) {
  if (!text) return;
  size = whole_number(option, *text);
  if (size < 0) throw Failure(std::string(option) + " is " + std::to_string(size) + "; a size is 0 or more.");
}

// What a user who lays tensors out as [batch, sequence, heads, dim] should read, or "".
std::string layout_hint(const HalfTensor& q) {
  if (q.shape[1] <= q.shape[2] || q.shape[1] < 64) return "";
  return " If the files are [batch, sequence, heads, dim], transpose them first: "
         "numpy.ascontiguousarray(x.transpose(0, 2, 1, 3)).";
}

void check_shapes(const HalfTensor& q, const HalfTensor& k, const HalfTensor& v, const ProblemOptions& o) {
  const std::string shapes = "Q is " + shape_text(q.shape) + " (" + o.Q_file + "), K is " +
                             shape_text(k.shape) + " (" + o.K_file + ") and V is " + shape_text(v.shape) +
                             " (" + o.V_file + ")";
  const char* rule = "; the shapes are [batch, heads, sequence, dim], where ";
  if (k.shape != v.shape)
    throw Failure("K and V differ: " + shapes + rule + "K and V are equal." + layout_hint(q));
  if (q.shape[0] != k.shape[0] || q.shape[1] != k.shape[1] || q.shape[3] != k.shape[3])
    throw Failure("Q does not fit K: " + shapes + rule + "batch, heads and dim are equal." + layout_hint(q));
}

Given read_files(const ProblemOptions& o) {
  if (o.Q_file.empty() || o.K_file.empty() || o.V_file.empty()) {
    const std::string missing = o.Q_file.empty() ? "--q" : o.K_file.empty() ? "--k" : "--v";
    throw Failure(missing + " is missing: give --q, --k and --v together, or none of them.");
  }
  const std::pair<const char*, const Text&> sizes[] = {
      {"--batch", o.batch}, {"--heads", o.heads}, {"--seq", o.seq},    {"--seq-q", o.seq_q},
      {"--seq-k", o.seq_k}, {"--dim", o.dim},     {"--input", o.input}};
  for (const auto& [option, text] : sizes)
    if (text)
      throw Failure(std::string(option) +
                    " cannot be given together with --q, --k and --v: the files say it.");
  const attention::Dtype dtype = read_dtype(o.dtype);
  HalfTensor q = read_half_npy(o.Q_file, dtype), k = read_half_npy(o.K_file, dtype), v = read_half_npy(o.V_file, dtype);
  check_shapes(q, k, v, o);
  if (const std::string hint = layout_hint(q); !hint.empty())
    std::cerr << "Note: Q is " << shape_text(q.shape) << ", so it is read as " << q.shape[1] << " heads of "
              << q.shape[2] << " queries." << hint << "\n";
  Given given;
  given.problem = {q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], o.causal, 0, dtype};
  given.inputs = {std::move(q.values), std::move(k.values), std::move(v.values)};
  return given;
}

// Most steps support 64 and 128, so that is what the sentence names; a step that supports 256 is asked
// itself.
void check_problem(const Problem& p) { attention::check_sizes(p, p.dim == 256 ? 256 : 128); }

float read_scale(const Text& text, int64_t dim) {
  return text ? static_cast<float>(number("--scale", *text)) : attention::default_scale(dim);
}

}  // namespace

int64_t whole_number(const std::string& option, const std::string& text) {
  if (const auto value = parse<int64_t>(text)) return *value;
  throw Failure(option + " takes a whole number; '" + text + "' is none.");
}

double number(const std::string& option, const std::string& text) {
  const auto value = parse<double>(text);
  if (value && !std::isnan(*value)) return *value;
  throw Failure(option + " takes a number; '" + text + "' is none.");
}

const char* name_of(attention::Dtype dtype) { return dtype == attention::Dtype::bf16 ? "bf16" : "fp16"; }

attention::Dtype read_dtype(const std::string& name) {
  for (attention::Dtype dtype : {attention::Dtype::fp16, attention::Dtype::bf16})
    if (name == name_of(dtype)) return dtype;
  throw Failure("There is no dtype '" + name + "'; the dtypes are fp16 and bf16.");
}

void ProblemOptions::add_to(CLI::App& app) {
  app.add_option("--batch", batch, "Batch size B")->group("Problem");
  app.add_option("--heads", heads, "Heads H")->group("Problem");
  app.add_option("--seq", seq, "Queries and keys a head, both")->group("Problem");
  app.add_option("--seq-q", seq_q, "Queries a head, Sq")->group("Problem");
  app.add_option("--seq-k", seq_k, "Keys a head, Sk")->group("Problem");
  app.add_option("--dim", dim, "Head dimension D: 64, 128 or, from 36 on, 256")->group("Problem");
  app.add_flag("--causal", causal, "Key j is visible to query i iff j <= i + Sk - Sq")->group("Problem");
  app.add_option("--scale", scale, "Scale of the scores; default 1/sqrt(D)")->group("Problem");
  app.add_option("--dtype", dtype, "Elements of Q, K, V and O: fp16 (default) or, from 40 on, bf16")->group("Problem");
  std::string names;
  for (const InputKind& kind : input_kinds()) names += (names.empty() ? "" : ", ") + std::string(kind.name);
  app.add_option("--input", input, "Inputs by name: " + names)->group("Problem");
  app.add_option("--seed", seed, "Seed of the inputs and of the random schedule; default 1")
      ->group("Problem");
  app.add_option("--q", Q_file, "Q from a .npy file, float16 [batch, heads, sequence, dim]; for bf16 float32, rounded to it")
      ->group("Files");
  app.add_option("--k", K_file, "K from a .npy file")->group("Files");
  app.add_option("--v", V_file, "V from a .npy file")->group("Files");
}

uint64_t ProblemOptions::seed_value() const {
  return seed ? static_cast<uint64_t>(whole_number("--seed", *seed)) : 1;
}

Given read_problem(const ProblemOptions& o, Machine machine) {
  if (o.from_files()) {
    Given given = read_files(o);
    given.problem.scale = read_scale(o.scale, given.problem.dim);
    check_problem(given.problem);
    return given;
  }
  Problem p = machine == Machine::gpu ? Problem{2, 16, 8192, 8192, 128, false, 0}
                                      : Problem{1, 2, 256, 256, 64, false, 0};
  read_size("--batch", o.batch, p.batch);
  read_size("--heads", o.heads, p.heads);
  read_size("--seq", o.seq, p.seq_q);
  read_size("--seq", o.seq, p.seq_k);
  read_size("--seq-q", o.seq_q, p.seq_q);
  read_size("--seq-k", o.seq_k, p.seq_k);
  read_size("--dim", o.dim, p.dim);
  p.causal = o.causal;
  p.scale = read_scale(o.scale, p.dim);
  p.dtype = read_dtype(o.dtype);
  check_problem(p);
  return {p, make_inputs(o.input.value_or("gaussian"), p, o.seed_value())};
}

std::string describe(const Problem& p) {
  std::ostringstream text;  // six significant digits at most, no trailing zeros
  text << "B=" << p.batch << " H=" << p.heads << " Sq=" << p.seq_q << " Sk=" << p.seq_k << " D=" << p.dim
       << (p.causal ? " causal" : " full") << " scale=" << p.scale
       << (p.dtype == attention::Dtype::fp16 ? "" : std::string(" ") + name_of(p.dtype));
  return text.str();
}

double matmul_flops(const Problem& p) {
  return 4.0 * static_cast<double>(p.query_rows()) * static_cast<double>(p.seq_k) *
         static_cast<double>(p.dim) * (p.causal ? 0.5 : 1);
}

}  // namespace course
