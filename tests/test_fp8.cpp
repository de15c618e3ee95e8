/// @file
/// Every wrapper of hardware/ that knows FP8, on one machine: this file is linked once with the module for the simulated GPU
/// and once with that for the GPU. What must come out is written down here anew, from NVIDIA's PTX ISA and the formats' own
/// definition ("FP8 Formats for Deep Learning", arXiv 2209.05433).

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/kernel_tests.h"

namespace {

using Bytes = std::vector<uint8_t>;

float real(uint32_t x) { return std::bit_cast<float>(x); }

void append(Words& words, const Bytes& bytes) {
  for (size_t i = 0; i < bytes.size(); i += 4)
    words.push_back(bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16 | static_cast<uint32_t>(bytes[i + 3]) << 24);
}

// A format by its definition: sign, exponent, mantissa.
struct Format {
  const char* name;
  int mantissa_bits, bias, largest;
  bool is_nan(int code) const { return (code & 0x7F) > (mantissa_bits == 3 ? 0x7E : 0x7C); }
  bool is_finite(int code) const { return (code & 0x7F) <= largest; }
  double value(int code) const {
    const int exponent = (code & 0x7F) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const double fraction = mantissa / std::pow(2.0, mantissa_bits);
    const double magnitude =
        exponent == 0 ? fraction * std::pow(2.0, 1 - bias) : (1 + fraction) * std::pow(2.0, exponent - bias);
    return code & 0x80 ? -magnitude : magnitude;
  }
  // The nearest finite code by search; of two as near the even one.
  int nearest(double x) const {
    const double magnitude = std::min(std::abs(x), 1e6);  // beyond all codes
    int best = 0;
    for (int code = 0; code <= largest; ++code) {
      const double is = std::abs(value(code) - magnitude), was = std::abs(value(best) - magnitude);
      if (is < was || (is == was && code % 2 == 0)) best = code;
    }
    return best | (std::signbit(x) ? 0x80 : 0);
  }
  uint8_t of(int x) const { return static_cast<uint8_t>(nearest(x)); }
};
constexpr Format e4m3 = {"e4m3", 3, 7, 0x7E}, e5m2 = {"e5m2", 2, 15, 0x7B};

// A matrix of small integers, so that every sum is exact, also in the narrow accumulator: below 8192.
struct Matrix {
  int rows, columns;
  std::vector<int> values;
  Matrix(int rows, int columns, unsigned seed, int largest = 4)
      : rows(rows), columns(columns), values(static_cast<size_t>(rows * columns)) {
    std::mt19937 random(seed);
    for (int& x : values) x = static_cast<int>(random() % static_cast<unsigned>(2 * largest + 1)) - largest;
  }
  int& at(int row, int column) { return values[static_cast<size_t>(row * columns + column)]; }
  int at(int row, int column) const { return values[static_cast<size_t>(row * columns + column)]; }
  Bytes bytes(const Format& format) const {
    Bytes all;
    for (int x : values) all.push_back(format.of(x));
    return all;
  }
};

// PTX ISA, "Register Fragments and Shared Memory Matrix Layouts", wgmma.mma_async.m64nNk32. The accumulator d_i of thread t:
// row = 16 * (t / 32) + t % 32 / 4 (+ 8 for odd i / 2), column = 8 * (i / 4) + 2 * (t % 4) + i % 2.
int row_of(int t, int i) { return 16 * (t / 32) + t % 32 / 4 + (i / 2 % 2 ? 8 : 0); }
int column_of(int t, int i) { return 8 * (i / 4) + 2 * (t % 4) + i % 2; }
// Byte i = 0 .. 15 of A in registers: row as above (+ 8 if i is 4 .. 7 or 12 .. 15), column = 4 * (t % 4) + i % 4 (+ 16 if
// i >= 8).
int a_row(int t, int i) { return 16 * (t / 32) + t % 32 / 4 + (i / 4 % 2 ? 8 : 0); }
int a_column(int t, int i) { return 4 * (t % 4) + i % 4 + (i >= 8 ? 16 : 0); }

template <typename Product>
Words fragments(int columns, Product by) {
  Words words;
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < columns / 2; ++i) words.push_back(bits(static_cast<float>(by(row_of(t, i), column_of(t, i)))));
  return words;
}

void check_ss(const std::string& kernel, int N, int d, const Format& left, const Format& right) {
  for (bool accumulate : {false, true}) {
    const Matrix A(64, d, 1), B(N, d, 2), C(64, N, 3, 100);
    Words in = {accumulate, 0, 0, 0};
    for (int t = 0; t < 128; ++t)
      for (int i = 0; i < N / 2; ++i) in.push_back(bits(static_cast<float>(C.at(row_of(t, i), column_of(t, i)))));
    append(in, A.bytes(left));
    append(in, B.bytes(right));
    const Words expected = fragments(N, [&](int row, int column) {
      int sum = accumulate ? C.at(row, column) : 0;
      for (int k = 0; k < d; ++k) sum += A.at(row, k) * B.at(column, k);
      return sum;
    });
    check_equal(run(kernel, in, expected.size()), expected);
  }
}

void check_rs(const std::string& kernel, int N, int keys, const Format& left, const Format& right) {
  const Matrix A(64, keys, 4), B(N, keys, 5);
  Bytes registers;
  for (int t = 0; t < 128; ++t)
    for (int k = 0; k < keys; k += 32)
      for (int i = 0; i < 16; ++i) registers.push_back(left.of(A.at(a_row(t, i), k + a_column(t, i))));
  Words in;
  append(in, registers);
  append(in, B.bytes(right));
  const Words expected = fragments(N, [&](int row, int column) {
    int sum = 0;
    for (int k = 0; k < keys; ++k) sum += A.at(row, k) * B.at(column, k);
    return sum;
  });
  check_equal(run(kernel, in, expected.size()), expected);
}

}  // namespace

// ISA, "Alternate floating point data formats".
TEST_CASE("to_float: all 256 codes") {
  const Words is = run("values", {}, 512);
  for (const Format& f : {e4m3, e5m2})
    for (int code = 0; code < 256; ++code) {
      INFO(std::string(f.name), " ", code);
      const float value = real(is[static_cast<size_t>(code + (f.mantissa_bits == 2 ? 256 : 0))]);
      if (f.is_nan(code)) CHECK(std::isnan(value));
      else if (f.is_finite(code)) CHECK(bits(value) == bits(static_cast<float>(f.value(code))));
      else CHECK(value == (code & 0x80 ? -INFINITY : INFINITY));
    }
}

// ISA, "cvt": .rn, .satfinite; the first source is the upper byte, so that pack's first is the lowest.
TEST_CASE("pack: every value, every tie and its neighbours, saturation, NaN") {
  std::vector<float> inputs;
  for (const Format& f : {e4m3, e5m2})
    for (int code = 0; code < f.largest; ++code) {
      const auto low = static_cast<float>(f.value(code)), high = static_cast<float>(f.value(code + 1));
      const float tie = (low + high) / 2;
      for (float x : {low, std::nextafter(tie, 0.0f), tie, std::nextafter(tie, INFINITY), high}) inputs.push_back(x);
    }
  for (float x : {448.0f, 463.99f, 464.0f, 465.0f, 57344.0f, 61439.0f, 61440.0f, 65536.0f, 1e30f, INFINITY, 1e-30f, 1e-40f})
    inputs.push_back(x);
  for (size_t i = inputs.size(); i-- > 0;) inputs.push_back(-inputs[i]);
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) inputs.push_back(real(static_cast<uint32_t>(random()) % 0xFF000000u));
  for (float x : {NAN, -NAN, real(0x7F800001u), real(0xFFFFFFFFu)}) inputs.push_back(x);
  while (inputs.size() % 512) inputs.push_back(0);
  for (size_t first = 0; first < inputs.size(); first += 512) {
    Words in;
    for (size_t i = 0; i < 512; ++i) in.push_back(bits(inputs[first + i]));
    const Words is = run("conversions", in, 256);
    for (size_t i = 0; i < 512; ++i)
      for (const Format& f : {e4m3, e5m2}) {
        const float x = inputs[first + i];
        const auto code = static_cast<int>(is[2 * (i / 4) + (f.mantissa_bits == 2)] >> (8 * (i % 4)) & 0xFF);
        INFO(f.name, " of ", x);
        if (std::isnan(x)) CHECK(f.is_nan(code));
        else CHECK(code == f.nearest(x));
      }
  }
}

// ISA, "prmt".
TEST_CASE("byte_permute") {
  Words in, expected;
  std::mt19937 random(8);
  for (int t = 0; t < 128; ++t) {
    const auto a = static_cast<uint32_t>(random()), b = static_cast<uint32_t>(random());
    const uint32_t selector = t == 0 ? 0x6420 : t == 1 ? 0x7531 : static_cast<uint32_t>(random()) & 0x7777;
    uint32_t result = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t digit = selector >> (4 * i) & 15;
      result |= (digit < 4 ? a >> (8 * digit) & 255 : b >> (8 * (digit - 4)) & 255) << (8 * i);
    }
    in.insert(in.end(), {a, b, selector});
    expected.push_back(result);
  }
  check_equal(run("permutations", in, 128), expected);
}

// ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation using wgmma.mma_async", "Matrix Descriptor
// Format", "Swizzling modes".
TEST_CASE("wgmma_fp8: every N, both places of A, the three swizzles") {
  for (int N : {64, 80, 96, 128, 160, 192, 224, 256}) {
    const std::string n = std::to_string(N);
    check_ss("product_ss " + n + " 128 128", N, 128, e4m3, e4m3);
    check_ss("product_ss " + n + " 64 64", N, 64, e4m3, e4m3);
    check_ss("product_ss " + n + " 64 32", N, 64, e4m3, e4m3);
    check_rs("product_rs " + n + " 128 128", N, 128, e4m3, e4m3);
    check_rs("product_rs " + n + " 64 64", N, 64, e4m3, e4m3);
    check_rs("product_rs " + n + " 96 32", N, 96, e4m3, e4m3);
  }
}

TEST_CASE("wgmma_fp8: every pair of types; d = 256, 160 keys") {
  for (const Format& left : {e4m3, e5m2})
    for (const Format& right : {e4m3, e5m2}) {
      const std::string types = std::string(" ") + left.name + " " + right.name;
      check_ss("product_ss" + types, 64, 256, left, right);
      check_rs("product_rs" + types, 64, 160, left, right);
    }
}

TEST_CASE("P from registers without shuffles, V transposed on the chip: both in the order 0 1 8 9 2 3 10 11 ...") {
  constexpr int order[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}, keys = 128;
  for (int d : {64, 128}) {
    CAPTURE(d);
    Matrix Q(64, d, 10, 0), K(keys, d, 11, 4), V(keys, d, 12, 4);
    for (int row = 0; row < 64; ++row)  // so that the scores are integers up to 16, exact in e4m3
      for (int i = 0; i < 4; ++i) Q.at(row, (row * 7 + i * 19) % d) = i % 2 ? 1 : -1;
    Words in;
    for (const Matrix& m : {Q, K, V}) append(in, m.bytes(e4m3));
    // Row r of each 16 of V^T is column 2 (r % 8) + r / 8; the place of 16 keys is in the 128-byte swizzle.
    Bytes transposed(static_cast<size_t>(keys * d));
    for (int row = 0; row < d; ++row)
      for (int s = 0; s < keys; ++s) {
        const int column = row / 16 * 16 + 2 * (row % 8) + row % 16 / 8, key = s / 16 * 16 + order[s % 16];
        transposed[static_cast<size_t>(row * 128 + (s / 16 ^ row % 8) * 16 + s % 16)] = e4m3.of(V.at(key, column));
      }
    Words expected;
    append(expected, transposed);
    for (int row = 0; row < 64; ++row)
      for (int column = 0; column < d; ++column) {
        int sum = 0;
        for (int key = 0; key < keys; ++key) {
          int score = 0;
          for (int k = 0; k < d; ++k) score += Q.at(row, k) * K.at(key, k);
          sum += score * V.at(key, column);
        }
        expected.push_back(bits(static_cast<float>(sum)));
      }
    check_equal(run("two_products " + std::to_string(d), in, expected.size()), expected);
  }
}

namespace {

// 64 rows of P as attention has it: 2^8 at the largest of `keys` scores from N(0, 1), in the order that row_sums reads.
struct Weights {
  Words registers;
  double sum = 0;
  explicit Weights(int keys) : registers(static_cast<size_t>(keys / 32 * 512)) {
    std::mt19937 random(static_cast<unsigned>(keys));
    std::normal_distribution<double> normal;
    std::vector<double> x(static_cast<size_t>(keys));
    for (int row = 0; row < 64; ++row) {
      for (double& s : x) s = normal(random);
      const double m = *std::max_element(x.begin(), x.end());
      for (int k = 0; k < keys; ++k) {
        const int code = e4m3.nearest(std::exp(x[static_cast<size_t>(k)] - m) * 256);
        sum += e4m3.value(code);
        // The thread and the byte that hold (row, k).
        const int t = row / 16 * 32 + row % 8 * 4 + k % 16 / 4, r = row % 16 / 8 + k % 32 / 16 * 2;
        registers[static_cast<size_t>((k / 32 * 128 + t) * 4 + r)] |= static_cast<uint32_t>(code) << (8 * (k % 4));
      }
    }
  }
};

// How much of the sum of all rows is lost if each `level` keys have an accumulator of their own.
double lost(const std::string& kernel, const Weights& weights, int keys, int level) {
  Words in = {static_cast<uint32_t>(keys), static_cast<uint32_t>(level)};
  in.insert(in.end(), weights.registers.begin(), weights.registers.end());
  const Words sums = run(kernel, in, 128 * 32);
  double sum = 0;
  for (int t = 0; t < 128; t += 4)
    sum += real(sums[static_cast<size_t>(t * 32)]) + real(sums[static_cast<size_t>(t * 32 + 2)]);
  return 1 - sum / weights.sum;
}

}  // namespace

// Not in the ISA: what H100 and H200 are known to do.
TEST_CASE("wgmma_fp8's accumulator is narrow: long sums of weights lose 2, 13, 24 %, in parts of 192 keys nothing") {
  const std::vector<std::pair<int, double>> losses = {{2048, 0.02}, {8192, 0.13}, {16384, 0.245}};
  for (const auto& [keys, expected] : losses) {
    CAPTURE(keys);
    const Weights weights(keys);
    const double loss = lost("row_sums", weights, keys, keys), short_loss = lost("row_sums", weights, keys, 192);
    MESSAGE(keys, " keys: ", 100 * loss, " % lost, in parts of 192 keys ", 100 * short_loss, " %");
    CHECK(std::abs(loss - expected) < 0.15 * expected);
    CHECK(std::abs(short_loss) < 5e-4);
#ifdef FLASH_TEST_SIMULATED
    CHECK(std::abs(lost("wide row_sums", weights, keys, keys)) < 1e-6);
#endif
  }
}

TEST_CASE("wgmma_fp8's accumulator is narrow: C + 0 * 0 has lost bits behind the thirteenth") {
  Words in(128 * 32), cut;
  std::mt19937 random(9);
  for (uint32_t& x : in) x = (static_cast<uint32_t>(random()) & 0x8FFFFFFFu) | 0x30000000u;
  for (uint32_t x : in) cut.push_back(x & ~0x3FFu);
  check_equal(run("add_nothing", in, in.size()), cut);
#ifdef FLASH_TEST_SIMULATED
  check_equal(run("wide add_nothing", in, in.size()), in);
#endif
  // Sums that the narrow accumulator holds pass, and so do NaN and infinity.
  for (size_t i = 0; i < in.size(); ++i) in[i] = bits(static_cast<float>(i % 16384) - 8192);
  in[5] = bits(INFINITY);
  in[70] = bits(-INFINITY);
  check_equal(run("add_nothing", in, in.size()), in);
}

namespace {

// Boxes [24][span] of a tensor of bytes [2 heads][40 rows][128].
bool inside(int x, int row, int head) { return x >= 0 && x < 128 && row >= 0 && row < 40 && head >= 0 && head < 2; }
size_t at(int x, int row, int head) { return static_cast<size_t>((head * 40 + row) * 128 + x); }
// ISA, "Swizzling modes": in a line of 128 bytes that lies at line number n, the 16-byte piece p changes with p xor n modulo
// 8 (128 bytes), in each half of the line p xor n modulo 4 (64 bytes), in each quarter p xor n modulo 2 (32 bytes).
size_t place(int byte, int span) {
  const int line = byte / 128, piece = byte % 128 / 16;
  return static_cast<size_t>(line * 128 + (piece ^ line % (span / 16)) * 16 + byte % 16);
}
const std::vector<std::vector<int>> corners = {{0, 0, 0, 0},   {0, 7, 1, 0},    {0, 30, 0, 0}, {0, -3, 1, 0}, {16, 0, 0, 0},
                                               {-16, 5, 1, 0}, {112, 20, 1, 0}, {0, 0, 2, 0},  {0, 50, 0, 0}};

}  // namespace

// CUDA Driver API, cuTensorMapEncodeTiled.
TEST_CASE("tensor_map of bytes: a box is as wide as the swizzle's span at most, in steps of 16 bytes") {
  auto accepts = [](uint32_t span, uint32_t width, uint32_t stride) {
    return run("tensor_map", {span, width, stride}, 1)[0] == 1;
  };
  for (uint32_t span : {128u, 64u, 32u}) {
    CAPTURE(span);
    CHECK(accepts(span, span, 256));
    CHECK(accepts(span, 16, 256));
    CHECK(!accepts(span, span + 16, 256));
    CHECK(!accepts(span, 8, 256));
    CHECK(accepts(span, span, 272));
    CHECK(!accepts(span, span, 264));
  }
}

TEST_CASE("tma_load and tma_store of bytes in the three swizzles") {
  for (int span : {128, 64, 32})
    for (const auto& corner : corners) {
      INFO(span, ": ", corner[0], " ", corner[1], " ", corner[2]);
      Words coordinates;
      for (int x : corner) coordinates.push_back(static_cast<uint32_t>(x));
      Bytes tensor(2 * 40 * 128), box(static_cast<size_t>(24 * span));
      for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<uint8_t>(i * 37 + i / 256 + 1);
      for (int row = 0; row < 24; ++row)
        for (int x = 0; x < span; ++x) {
          const int X = x + corner[0], R = row + corner[1], H = corner[2];
          box[place(row * span + x, span)] = inside(X, R, H) ? tensor[at(X, R, H)] : 0;
        }
      Words in = coordinates, expected;
      append(in, tensor);
      append(expected, box);
      check_equal(run("load_box " + std::to_string(span), in, expected.size()), expected);

      if (*std::min_element(corner.begin(), corner.end()) < 0) continue;  // a store may not begin before the tensor
      for (size_t i = 0; i < box.size(); ++i) box[i] = static_cast<uint8_t>(i * 11 + i / 256 + 3);
      Bytes result(tensor.size(), 0xAB);
      for (int row = 0; row < 24; ++row)
        for (int x = 0; x < span; ++x) {
          const int X = x + corner[0], R = row + corner[1], H = corner[2];
          if (inside(X, R, H)) result[at(X, R, H)] = box[place(row * span + x, span)];
        }
      in = coordinates;
      append(in, box);
      Words stored;
      append(stored, result);
      check_equal(run("store_box " + std::to_string(span), in, Words(stored.size(), 0xABABABAB)), stored);
    }
}
