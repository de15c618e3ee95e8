/// @file
/// The numbers behind a predict exercise.
#include "exercise_numbers.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>
#include <vector>

#include "check.h"
#include "failure.h"
#include "reference_cpu/twins.h"
#include "steps.h"

namespace course {
namespace {

using attention::Problem;
using Table = std::map<std::string, double>;

// The sum's grammar: sum = term {+- term}, term = factor {*/ factor}, factor = number | ( sum ) | - factor.
class Sum {
public:
  explicit Sum(const std::string& text) : text_(text) {}

  double value() {
    const double x = sum();
    if (next() != 0) fail();
    return x;
  }

private:
  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  double sum() {
    double x = term();
    for (char c = next(); c == '+' || c == '-'; c = next()) {
      ++at_;
      const double y = term();
      x = c == '+' ? x + y : x - y;
    }
    return x;
  }
  double term() {
    double x = factor();
    for (char c = next(); c == '*' || c == '/'; c = next()) {
      ++at_;
      const double y = factor();
      x = c == '*' ? x * y : x / y;
    }
    return x;
  }
  double factor() {
    if (++depth_ > 1000) fail();
    const char c = next();
    double x = 0;
    if (c == '-') {
      ++at_;
      x = -factor();
    } else if (c == '(') {
      ++at_;
      x = sum();
      if (next() != ')') fail();
      ++at_;
    } else {
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), x);
      if (error != std::errc()) fail();
      at_ = static_cast<size_t>(end - text_.data());
    }
    --depth_;
    return x;
  }
  [[noreturn]] void fail() const {
    throw Failure("'" + text_ + "' is no number; write one like 4096 or 0.83, or a sum like 2 * (256 + 64).");
  }

  const std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

[[noreturn]] void not_understood(const std::string& source) {
  throw Failure("The source of numbers '" + source + "' is not understood.");
}

// "run 10 --heads 1 ...": the step's name and the problem.
Problem problem_of(std::istringstream& words, const std::string& source) {
  Problem p;
  const std::map<std::string, int64_t*> sizes{{"--batch", &p.batch},
                                              {"--heads", &p.heads},
                                              {"--seq-q", &p.seq_q},
                                              {"--seq-k", &p.seq_k},
                                              {"--dim", &p.dim}};
  for (std::string word; words >> word;) {
    if (word == "--causal") {
      p.causal = true;
      continue;
    }
    if (word == "--seq") {
      if (!(words >> p.seq_q)) not_understood(source);
      p.seq_k = p.seq_q;
      continue;
    }
    const auto size = sizes.find(word);
    if (size == sizes.end() || !(words >> *size->second)) not_understood(source);
  }
  p.scale = attention::default_scale(p.dim);
  return p;
}

Table count(std::istringstream& words, const std::string& source) {
  std::string name;
  words >> name;
  const Problem p = problem_of(words, source);
  const Outcome outcome =
      check_apart(find_step(name).library(Machine::simulated), ask(p, make_inputs("gaussian", p, 1)), {}, 60);
  if (!outcome.right()) throw Failure(outcome.message);
  Table table;
  const nlohmann::json ledger = outcome.ledger;
  for (const auto& [key, value] : ledger.items()) table[key] = value.get<double>();
  const simulator::Ledger& l = outcome.ledger;
  table["bytes_asked"] = static_cast<double>(l.global_read + l.global_written);
  table["bytes_distinct"] = static_cast<double>(l.global_read_distinct + l.global_written_distinct);

  const auto rows = static_cast<double>(p.query_rows()), heads = static_cast<double>(p.batch * p.heads);
  const auto blocks = heads * static_cast<double>((p.seq_q + 63) / 64 * ((p.seq_k + 63) / 64));
  const double least = static_cast<double>(4 * p.dim * (p.query_rows() + p.key_rows())) + 4 * rows;
  const Table counted = table;
  for (const auto& [key, value] : counted) {
    table[key + "_per_row"] = value / rows;
    table[key + "_per_head"] = value / heads;
    table[key + "_per_block"] = value / blocks;
    table[key + "_over_least"] = value / least;
  }
  return table;
}

Table online(std::istringstream& words) {
  std::vector<double> x;
  for (double score; words >> score;) x.push_back(score);
  Table table;
  attention::twins::Running<double> row;
  for (size_t k = 0; k < x.size(); ++k) {
    row = attention::twins::push(row, x[k]);
    table["m_" + std::to_string(k + 1)] = row.m;
    table["l_" + std::to_string(k + 1)] = row.l;
  }
  for (size_t k = 0; k < x.size(); ++k) table["y_" + std::to_string(k + 1)] = std::exp(x[k] - row.m) / row.l;
  return table;
}

Table blocks(std::istringstream& words, const std::string& source) {
  int64_t elements = 0;
  if (!(words >> elements)) not_understood(source);
  Table table;
  for (const int64_t d : {64, 128}) {
    const attention::twins::Options sizes = attention::twins::paper_blocks(elements, d);
    table["Bc_" + std::to_string(d)] = static_cast<double>(sizes.Bc);
    table["Br_" + std::to_string(d)] = static_cast<double>(sizes.Br);
  }
  return table;
}

}  // namespace

NumberOf numbers_from(const std::string& source) {
  std::istringstream words(source);
  std::string kind;
  words >> kind;
  Table table;
  if (kind == "run")
    table = count(words, source);
  else if (kind == "online")
    table = online(words);
  else if (kind == "blocks")
    table = blocks(words, source);
  else
    not_understood(source);
  return [table](const std::string& name) {
    const auto number = table.find(name);
    if (number == table.end()) throw Failure("There is no number called '" + name + "' here.");
    return number->second;
  };
}

double evaluate(const std::string& text) { return Sum(text).value(); }

bool agrees(double guess, double truth) {
  const bool whole = std::fabs(truth - std::round(truth)) < 1e-9 * std::max(1.0, std::fabs(truth));
  return std::fabs(guess - truth) <= (whole ? 1e-9 : 5e-3) * std::fabs(truth);
}

}  // namespace course
