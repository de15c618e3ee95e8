/// @file
/// Q, K and V by name.
///
/// Every element is computed from its own place (tensor, batch, head, row, column) and the seed, with no
/// state carried from one to the next; so the tensors can be filled by many cores, and are the same
/// everywhere.
#include "inputs.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>

#include "failure.h"
#include "units.h"

namespace course {
namespace {

using attention::Problem;

enum Tensor { Q, K, V };

// Where an element lies: its batch b, head h, row (a query i or a key j) and column c.
struct Place {
  Tensor tensor;
  int64_t b, h, row, c;
  uint64_t index;  // in its tensor
};

// 64 well-mixed bits of 64 (the finalizer of SplitMix64).
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// N(0, 1) from 64 random bits, by Box and Muller: a radius from the upper half, an angle from the lower.
double normal(uint64_t bits) {
  const double u = (static_cast<double>(bits >> 32) + 1) * 0x1p-32;  // in (0, 1]
  const double angle = static_cast<double>(bits & 0xFFFFFFFFu) * 0x1p-32 * 2 * std::numbers::pi;
  return std::sqrt(-2 * std::log(u)) * std::cos(angle);
}

class Generator {
public:
  Generator(const Problem& problem, uint64_t seed) : problem_(problem), seed_(mix(seed)) {}
  virtual ~Generator() = default;
  virtual double value(const Place& p) const = 0;

protected:
  // Random bits of an element; `stream` tells several draws of one element apart.
  uint64_t bits(const Place& p, uint64_t stream = 0) const {
    return mix(mix(seed_ + 8 * stream + p.tensor) ^ p.index);
  }
  double gauss(const Place& p, uint64_t stream = 0) const { return normal(bits(p, stream)); }

  const Problem& problem_;
  const uint64_t seed_;
};

struct Gaussian : Generator {
  using Generator::Generator;
  double value(const Place& p) const override { return gauss(p); }
};

// N(0,1) + N(0,100) * Bernoulli(0.001); 100 is a variance.
struct Outliers : Generator {
  using Generator::Generator;
  double value(const Place& p) const override {
    const bool outlier = static_cast<double>(bits(p, 1)) * 0x1p-64 < 0.001;
    return gauss(p) + (outlier ? 10 * gauss(p, 2) : 0);
  }
};

// q[0] = 4 and k_j[0] = j / 8: with the default scale at d = 64 the scores grow by 1/16 from key to key.
struct Growing : Generator {
  using Generator::Generator;
  double value(const Place& p) const override {
    if (p.tensor == V) return gauss(p);
    if (p.c != 0) return 0.5 * gauss(p);
    return p.tensor == Q ? 4 : static_cast<double>(p.row) / 8;
  }
};

struct Negative : Generator {
  using Generator::Generator;
  double value(const Place& p) const override {
    const double x = gauss(p);
    return p.tensor == Q ? std::fabs(x) : p.tensor == K ? -std::fabs(x) : x;
  }
};

struct LastKeyWins : Generator {
  using Generator::Generator;
  double value(const Place& p) const override {
    if (p.tensor == V) return gauss(p);
    if (p.c != 0) return 0.5 * gauss(p);
    return p.tensor == Q ? 8 : p.row == problem_.seq_k - 1 ? 16 : 0;
  }
};

// Every key of every head has a code of signs; query i carries twice the code of one key, so its row of O is
// nearly that key's V, and V spells out batch, head, key and column. Whatever is exchanged shows.
struct Fingerprint : Generator {
  using Generator::Generator;
  double value(const Place& p) const override {
    if (p.tensor == V) return static_cast<double>((p.b * 29 + p.h * 13 + p.row * 7 + p.c) % 127 - 63) / 8;
    if (p.tensor == K) return code(p, p.row);
    const int64_t visible = std::max<int64_t>(problem_.visible_keys(p.row), 1);
    return 2 * code(p, (p.row * 37 + p.h * 5 + p.b * 3) % visible);
  }
  double code(const Place& p, int64_t key) const {
    const auto head = static_cast<uint64_t>(p.b * problem_.heads + p.h);
    return mix(mix(seed_ ^ (head << 32) ^ static_cast<uint64_t>(key)) + static_cast<uint64_t>(p.c)) >> 63
               ? 1
               : -1;
  }
};

struct ZerosQ : Generator {
  using Generator::Generator;
  double value(const Place& p) const override {
    return p.tensor == Q ? 0 : p.tensor == K ? gauss(p) : static_cast<double>(p.row % 2048);
  }
};

template <typename G>
void fill(const G& generator, const Problem& p, Tensor tensor, std::vector<uint16_t>& values) {
  const int64_t sequence = tensor == Q ? p.seq_q : p.seq_k, rows = p.batch * p.heads * sequence;
  values.resize(static_cast<size_t>(rows * p.dim));
  auto fill_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < p.dim; ++c) {
        const auto index = static_cast<uint64_t>(r * p.dim + c);
        const int64_t head = r / sequence;
        const double x = generator.value({tensor, head / p.heads, head % p.heads, r % sequence, c, index});
        values[index] = attention::to_bits(static_cast<float>(x), p.dtype);
      }
  };
  const int64_t cores = rows * p.dim < 1 << 20 ? 1 : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (int64_t t = 1; t < cores; ++t)
    threads.emplace_back(fill_rows, rows * t / cores, rows * (t + 1) / cores);
  fill_rows(0, rows / cores);
}

template <typename G>
Inputs make(const Problem& problem, uint64_t seed) {
  const G generator(problem, seed);
  Inputs inputs;
  fill(generator, problem, Q, inputs.Q);
  fill(generator, problem, K, inputs.K);
  fill(generator, problem, V, inputs.V);
  return inputs;
}

struct Entry {
  InputKind kind;
  Inputs (*make)(const Problem&, uint64_t);
};

const Entry entries[] = {
    {{"gaussian", "N(0,1) everywhere"}, make<Gaussian>},
    {{"outliers", "N(0,1), and one element in a thousand ten times as wide"}, make<Outliers>},
    {{"growing", "scores grow from key to key: the running maximum rises in every block"}, make<Growing>},
    {{"negative", "every score is negative: a padded key scored 0 would win"}, make<Negative>},
    {{"last_key_wins", "the last key outweighs all others: dropping it shows"}, make<LastKeyWins>},
    {{"fingerprint", "O spells out batch, head, query, key and column: exchanged indices show"},
     make<Fingerprint>},
    {{"zeros_q", "Q is 0 and V is the key's index: O is a plain mean, LSE the logarithm of a count"},
     make<ZerosQ>},
};

}  // namespace

const std::vector<InputKind>& input_kinds() {
  static const std::vector<InputKind> kinds = [] {
    std::vector<InputKind> all;
    for (const Entry& e : entries) all.push_back(e.kind);
    return all;
  }();
  return kinds;
}

Inputs make_inputs(const std::string& name, const Problem& problem, uint64_t seed) {
  const Entry* entry =
      std::find_if(std::begin(entries), std::end(entries), [&](auto& e) { return name == e.kind.name; });
  if (entry == std::end(entries)) {
    std::string names;
    for (const Entry& e : entries) names += (names.empty() ? "" : ", ") + std::string(e.kind.name);
    throw Failure("There is no input '" + name + "'; the inputs are " + names + ".");
  }
  attention::check_sizes(problem, 256);
  // The inputs, the outputs, and as much again for what is downloaded and compared.
  const double need =
      2.0 * 2 * static_cast<double>(problem.dim) *
      (2.0 * static_cast<double>(problem.query_rows()) + 2.0 * static_cast<double>(problem.key_rows()));
  const double have =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (!(need <= 0.8 * have))
    throw Failure("This problem needs about " + bytes(need) + " of memory, and this machine has " +
                  bytes(have) + "; make the batch, the heads or the sequences smaller.");
  return entry->make(problem, seed);
}

}  // namespace course
