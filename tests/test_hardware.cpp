/// @file
/// Every wrapper of hardware/ and the parts of CUDA that steps use, on one machine: this file is linked once
/// with the module for the simulated GPU and once with that for the GPU. What must come out is written down
/// here anew, from NVIDIA's PTX ISA and CUDA C++ Programming Guide, whose sections the tests name.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/kernel_tests.h"

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const float not_a_number = std::numeric_limits<float>::quiet_NaN();

float number(uint32_t bits) { return std::bit_cast<float>(bits); }

// --- FP16, IEEE 754 binary16: s eeeee mmmmmmmmmm -----------------------------------------------------------

double value_of_half(uint32_t code) {
  const int exponent = code >> 10 & 31, mantissa = code & 1023;
  const double sign = code & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

// By search: of the two halves around x the nearer one, on a tie that with the even mantissa.
uint32_t nearest_half(float x) {
  const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= 65520) return sign | 0x7C00;  // half way from the largest half to what would be the next
  uint32_t low = 0, high = 0x7C00;               // codes of positive halves are in order
  while (high - low > 1) (value_of_half((low + high) / 2) <= magnitude ? low : high) = (low + high) / 2;
  if (high == 0x7C00) return sign | low;
  const double below = magnitude - value_of_half(low), above = value_of_half(high) - magnitude;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

bool is_nan_half(uint32_t code) { return (code & 0x7FFF) > 0x7C00; }

uint32_t small_integer(int x) { return nearest_half(static_cast<float>(x)); }

// 0 .. count - 1 in a random order.
std::vector<int> shuffled(int count, unsigned seed) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  return all;
}

}  // namespace

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": with groupID = lane / 4 and
// threadID_in_group = lane % 4,
//   a_i: row = groupID (i in {0, 1, 4, 5}) or groupID + 8;  column = 2 * threadID_in_group + i % 2 (+ 8 if i >= 4)
//   b_i: row = 2 * threadID_in_group + i % 2 (+ 8 if i >= 2);  column = groupID
//   c_i: row = groupID (i < 2) or groupID + 8;                 column = 2 * threadID_in_group + i % 2
// Two halves share a register, the one with the lower i in its lower bits.
TEST_CASE("mma_m16n8k16 multiplies the matrices that the ISA's fragments make up") {
  for (unsigned seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    const std::vector<int> a_values = shuffled(16 * 16, seed), b_values = shuffled(16 * 8, seed + 10),
                           c_values = shuffled(16 * 8, seed + 20);
    int A[16][16], B[16][8], C[16][8];
    for (int i = 0; i < 256; ++i)
      A[i / 16][i % 16] = a_values[i] - 128;  // all distinct; every sum is exact in float
    for (int i = 0; i < 128; ++i) B[i / 8][i % 8] = b_values[i] - 64;
    for (int i = 0; i < 128; ++i) C[i / 8][i % 8] = 1000 * (c_values[i] - 64);
    auto a_row = [](int lane, int i) { return lane / 4 + (i / 2 % 2 ? 8 : 0); };
    auto a_column = [](int lane, int i) { return 2 * (lane % 4) + i % 2 + (i >= 4 ? 8 : 0); };
    auto b_row = [](int lane, int i) { return 2 * (lane % 4) + i % 2 + (i >= 2 ? 8 : 0); };
    auto c_row = [](int lane, int i) { return lane / 4 + (i < 2 ? 0 : 8); };
    auto c_column = [](int lane, int i) { return 2 * (lane % 4) + i % 2; };
    Words in, expected;
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < 4; ++r)
        in.push_back(small_integer(A[a_row(lane, 2 * r)][a_column(lane, 2 * r)]) |
                     small_integer(A[a_row(lane, 2 * r + 1)][a_column(lane, 2 * r + 1)]) << 16);
      for (int r = 0; r < 2; ++r)
        in.push_back(small_integer(B[b_row(lane, 2 * r)][lane / 4]) |
                     small_integer(B[b_row(lane, 2 * r + 1)][lane / 4]) << 16);
      for (int i = 0; i < 4; ++i) {
        const int row = c_row(lane, i), column = c_column(lane, i);
        in.push_back(bits(static_cast<float>(C[row][column])));
        int sum = C[row][column];
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
        expected.push_back(bits(static_cast<float>(sum)));
      }
    }
    check_equal(run("mma", in, 32 * 4), expected);
  }
}

TEST_CASE("mma_m16n8k16 takes subnormal halves, infinities and NaN") {
  // A holds one value everywhere, B is 1, C is 0: each element of the result is 16 times the value.
  for (uint32_t code : {0x0001u, 0x03FFu, 0x8001u, 0x7BFFu, 0x7C00u, 0xFC00u, 0x7E00u}) {
    Words in;
    for (int lane = 0; lane < 32; ++lane)
      for (uint32_t word : {code * 0x10001, code * 0x10001, code * 0x10001, code * 0x10001, 0x3C003C00u,
                            0x3C003C00u, 0u, 0u, 0u, 0u})
        in.push_back(word);
    const double expected = 16 * value_of_half(code);
    for (uint32_t word : run("mma", in, 32 * 4)) {
      const float is = number(word);
      CAPTURE(code);
      REQUIRE((std::isnan(expected) ? std::isnan(is) : is == static_cast<float>(expected)));
    }
  }
}

// PTX ISA, "Warp-level matrix load instruction: ldmatrix": lanes 8 m .. 8 m + 7 give the rows of matrix m;
// lane t receives from matrix m the two neighbours of row t / 4 that begin at column 2 * (t % 4). With .trans
// the matrix is transposed on its way.
TEST_CASE("ldmatrix_x4 and ldmatrix_x4_trans hand out the ISA's fragments") {
  const std::vector<int> values = shuffled(64 * 8, 4), rows = shuffled(64, 5);  // 32 of 64 rows, in any order
  auto element = [&](int matrix, int row, int column) {
    return small_integer(values[8 * rows[8 * matrix + row] + column]);
  };
  Words in;
  for (int i = 0; i < 64 * 4; ++i)
    in.push_back(small_integer(values[2 * i]) | small_integer(values[2 * i + 1]) << 16);
  for (int lane = 0; lane < 32; ++lane) in.push_back(static_cast<uint32_t>(rows[lane]));
  Words straight, transposed;
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const int one = lane / 4, two = 2 * (lane % 4);
      straight.push_back(element(m, one, two) | element(m, one, two + 1) << 16);
      transposed.push_back(element(m, two, one) | element(m, two + 1, one) << 16);
    }
  check_equal(run("ldmatrix", in, 32 * 4), straight);
  check_equal(run("ldmatrix_trans", in, 32 * 4), transposed);
}

// PTX ISA, "Data Movement and Conversion Instructions: cp.async": bytes past src-size become zero and are not
// read.
TEST_CASE("cp_async_16 copies as many bytes as are valid and clears the others") {
  Words in(32 * 4), expected;
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = 0x04030201u + 0x04040404u * static_cast<uint32_t>(i % 60);  // no byte is 0
  for (int lane = 0; lane < 32; ++lane)
    for (int word = 0; word < 4; ++word) {
      uint32_t copied = 0;
      for (int byte = 0; byte < 4; ++byte)
        if (4 * word + byte < lane) copied |= in[4 * lane + word] & 0xFFu << 8 * byte;
      expected.push_back(copied);
    }
  check_equal(run("cp_async_valid", in, 32 * 4), expected);
}

TEST_CASE("cp_async_wait<N> leaves the latest N groups and completes the others") {
  Words in(3 * 32 * 4), expected;
  std::iota(in.begin(), in.end(), 1000);
  for (int i = 0; i < 2 * 32 * 4; ++i) expected.push_back(in[i]);
  for (int i = 0; i < 32 * 4; ++i) expected.push_back(in[2 * 32 * 4 + (i + 4) % (32 * 4)]);
  check_equal(run("cp_async_groups", in, 3 * 32 * 4), expected);
}

TEST_CASE("to_float and unpack_halves give the exact value of each of the 65536 halves") {
  Words in(65536), paired(65536);
  std::iota(in.begin(), in.end(), 0);
  for (uint32_t i = 0; i < 65536; ++i) paired[i] = i | (i * 40503 & 0xFFFF) << 16;
  const Words one = run("half_to_float", in, 65536), both = run("unpack", paired, 2 * 65536);
  auto right = [](uint32_t word, uint32_t code) {
    const float is = number(word), should = static_cast<float>(value_of_half(code));
    return std::isnan(should) ? std::isnan(is) : word == bits(should);
  };
  for (uint32_t i = 0; i < 65536; ++i) {
    CAPTURE(i);
    REQUIRE(right(one[i], i));
    REQUIRE(right(both[2 * i], i));
    REQUIRE(right(both[2 * i + 1], i * 40503 & 0xFFFF));
  }
}

TEST_CASE("to_half and pack_halves round to the nearest half, ties to even") {
  std::vector<float> x = {0.0f,         65504,    65519,     std::nextafter(65520.0f, 0.0f),
                          65520,        65536,    1e30f,     infinity,
                          not_a_number, 1e-45f,   0x1p-126f, 0x1p-149f,
                          0x1p-14f,     0x1p-24f, 0x1p-25f,  std::nextafter(0x1p-25f, 1.0f)};
  for (uint32_t code = 0; code < 0x7C00;
       code += 1) {  // each half, the middle to the next, and both sides of that
    const auto low = static_cast<float>(value_of_half(code));
    const auto middle = code == 0x7BFF ? 65520.0f : (low + static_cast<float>(value_of_half(code + 1))) / 2;
    for (float y : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinity)})
      x.push_back(y);
  }
  std::mt19937 random(6);
  for (int i = 0; i < 20000; ++i) x.push_back(number(static_cast<uint32_t>(random())));
  Words in;
  for (float y : x)
    for (float z : {y, -y}) in.push_back(bits(z));
  const Words one = run("float_to_half", in, in.size()), two = run("pack half", in, in.size());
  auto right = [](uint32_t code, uint32_t input) {
    return std::isnan(number(input)) ? is_nan_half(code) : code == nearest_half(number(input));
  };
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(number(in[i]));
    REQUIRE(right(one[i], in[i]));
    REQUIRE(right(two[i] & 0xFFFF, in[i]));
    REQUIRE(right(two[i] >> 16, in[(i + 1) % in.size()]));
  }
}

// PTX ISA, "Alternate floating point data formats": a bfloat16 is the upper half of a float, so the two that enclose a float
// are its bits cut off and the next code.
TEST_CASE("pack<bfloat16> rounds to the nearest bfloat16, ties to even") {
  Words in;
  for (uint32_t code = 0; code < 0x10000; ++code)  // each, the middle to the next, both sides of that; NaN among them
    for (uint32_t rest : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) in.push_back(code << 16 | rest);
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) in.push_back(static_cast<uint32_t>(random()));
  auto right = [](uint32_t code, uint32_t input) {
    if (std::isnan(number(input))) return std::isnan(number(code << 16));
    const uint32_t low = input >> 16, rest = input & 0xFFFF;
    return code == (rest > 0x8000 || (rest == 0x8000 && low % 2 == 1) ? low + 1 : low);
  };
  const Words two = run("pack bfloat16", in, in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(in[i]);
    REQUIRE(right(two[i] & 0xFFFF, in[i]));
    REQUIRE(right(two[i] >> 16, in[(i + 1) % in.size()]));
  }
}

// PTX ISA, "Floating Point Instructions": ex2.approx.ftz (subnormal inputs and results are zero of the same
// sign) and rcp.approx.ftz.
TEST_CASE(
    "exp2_approx and reciprocal are within two units in the last place, with the ISA's special values") {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-125.9f, 127.9f), any(-126, 126);
  Words in;
  for (int i = 0; i < 20000; ++i) in.push_back(bits(exponent(random)));
  const Words powers = run("exponentials", in, in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(number(in[i]));
    const double exact = std::exp2(static_cast<double>(number(in[i])));
    REQUIRE(std::fabs(number(powers[i]) - exact) <= exact * 0x1p-22);
  }
  for (uint32_t& word : in) word = bits(std::copysign(std::exp2(any(random)), any(random)));
  const Words parts = run("reciprocals", in, in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(number(in[i]));
    const double exact = 1.0 / number(in[i]);
    REQUIRE(std::fabs(number(parts[i]) - exact) <= std::fabs(exact) * 0x1p-22);
  }

  const std::vector<std::pair<float, float>> exact_powers = {{0, 1},
                                                             {-0.0f, 1},
                                                             {1, 2},
                                                             {-1, 0.5f},
                                                             {10, 1024},
                                                             {-126, 0x1p-126f},
                                                             {127, 0x1p127f},
                                                             {0x1p-130f, 1},
                                                             {-0x1p-130f, 1},
                                                             {-infinity, 0},
                                                             {infinity, infinity},
                                                             {128, infinity},
                                                             {1000, infinity},
                                                             {-127, 0},
                                                             {-1000, 0}};
  in.clear();
  for (auto [x, y] : exact_powers) in.push_back(bits(x));
  Words is = run("exponentials", in, in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(exact_powers[i].first);
    CHECK(is[i] == bits(exact_powers[i].second));
  }
  const std::vector<std::pair<float, float>> exact_parts = {{1, 1},
                                                            {2, 0.5f},
                                                            {-4, -0.25f},
                                                            {0, infinity},
                                                            {-0.0f, -infinity},
                                                            {infinity, 0},
                                                            {-infinity, -0.0f},
                                                            {0x1p-130f, infinity},
                                                            {-0x1p-130f, -infinity},
                                                            {0x1p127f, 0},
                                                            {-0x1p127f, -0.0f}};
  in.clear();
  for (auto [x, y] : exact_parts) in.push_back(bits(x));
  is = run("reciprocals", in, in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(exact_parts[i].first);
    CHECK(is[i] == bits(exact_parts[i].second));
  }
  CHECK(std::isnan(number(run("exponentials", {bits(not_a_number)}, 1)[0])));
  CHECK(std::isnan(number(run("reciprocals", {bits(not_a_number)}, 1)[0])));
}

TEST_CASE("multiply_add rounds once, rescale is a multiplication") {
  Words in = {bits(1 + 0x1p-12f), bits(1 - 0x1p-12f), bits(-1.0f)};  // two roundings give 0, one gives -2^-24
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 3 * 5000; ++i) in.push_back(bits(normal(random)));
  const Words is = run("products", in, in.size() / 3 * 2);
  CHECK(number(is[0]) == -0x1p-24f);
  for (size_t i = 0; i < in.size() / 3; ++i) {
    CAPTURE(i);
    REQUIRE(is[2 * i] == bits(std::fma(number(in[3 * i]), number(in[3 * i + 1]), number(in[3 * i + 2]))));
    REQUIRE(is[2 * i + 1] == bits(number(in[3 * i]) * number(in[3 * i + 1])));
  }
}

TEST_CASE("min, max and population count") {
  std::mt19937 random(9);
  Words in, expected;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t a = bits(static_cast<float>(static_cast<int32_t>(random()))),
                   b = bits(static_cast<float>(static_cast<int32_t>(random())));
    in.insert(in.end(), {a, b});
    const auto [ia, ib] = std::pair(static_cast<int32_t>(a), static_cast<int32_t>(b));
    expected.insert(expected.end(), {static_cast<uint32_t>(ia < ib ? ia : ib),
                                     static_cast<uint32_t>(ia < ib ? ib : ia), a < b ? a : b, a < b ? b : a,
                                     number(a) < number(b) ? a : b, number(a) < number(b) ? b : a});
    uint32_t set = 0;
    for (int bit = 0; bit < 32; ++bit) set += a >> bit & 1;
    expected.push_back(set);
  }
  check_equal(run("integers", in, expected.size()), expected);
}

// CUDA C++ Programming Guide, "Warp Shuffle Functions": each segment of `width` lanes is a warp of its own
// with lanes 0 .. width - 1. idx takes its argument modulo width. up and down do not wrap around: a lane
// whose source lies outside keeps its value. xor may read earlier segments, but not later ones: there too it
// keeps its value.
TEST_CASE("shuffles, every width and argument") {
  Words in;
  for (int lane = 0; lane < 32; ++lane) in.push_back(bits(1.5f + static_cast<float>(lane)));
  Words expected;
  for (int operation = 0; operation < 4; ++operation)
    for (int width = 1; width <= 32; width *= 2)
      for (int x = 0; x < 32; ++x)
        for (int lane = 0; lane < 32; ++lane) {
          const int segment = lane / width, logical = lane % width;
          int source = lane;
          if (operation == 0) source = segment * width + x % width;
          if (operation == 1 && (lane ^ x) / width <= segment) source = lane ^ x;
          if (operation == 2 && logical - x >= 0) source = lane - x;
          if (operation == 3 && logical + x < width) source = lane + x;
          expected.push_back(in[source]);
        }
  check_equal(run("shuffles of unsigned", in, expected.size()), expected);
  check_equal(run("shuffles of float", in, expected.size()), expected);
}

TEST_CASE("shuffles among some lanes") {
  Words in, expected;
  for (uint32_t lane = 0; lane < 32; ++lane) in.push_back(100 + lane);
  for (uint32_t lane = 0; lane < 32; ++lane) expected.push_back(100 + (lane ^ 5));
  for (uint32_t lane = 0; lane < 32; ++lane) expected.push_back(lane < 16 ? 0 : 100 + 16 + (lane + 3) % 16);
  check_equal(run("shuffles_of_some_lanes", in, 64), expected);
}

// CUDA C++ Programming Guide, "Warp Vote Functions": a ballot has a bit for each lane of the mask, 0 for the
// others.
TEST_CASE("votes of a warp and of some of its lanes") {
  Words in = {0, ~0u, 1, 0x80000000, 0x55555555, 0xAAAAAAAA, 0xFFFF0000, 0x12345678}, expected;
  for (uint32_t word : in)
    for (bool whole : {true, false})
      for (int vote = 0; vote < 3; ++vote)
        for (int lane = 0; lane < 32; ++lane) {
          uint32_t ballot = 0, members = 0;
          for (int other = 0; other < 32; ++other)
            if (whole || other % 2 == lane % 2) members |= 1u << other, ballot |= word & 1u << other;
          expected.push_back(vote == 0 ? ballot : vote == 1 ? ballot != 0 : ballot == members);
        }
  check_equal(run("votes", in, expected.size()), expected);
}

TEST_CASE("lanes exchange words through shared memory around __syncwarp") {
  Words in, expected;
  for (uint32_t thread = 0; thread < 64; ++thread) in.push_back(7 * thread + 1);
  for (uint32_t thread = 0; thread < 64; ++thread)
    expected.push_back(2 * in[thread / 32 * 32 + (thread + 3) % 32]);
  check_equal(run("syncwarp", in, 64), expected);
}

TEST_CASE("atomicAdd loses nothing and returns each value once") {
  const int threads = 3 * 96;
  Words out(4 + threads, 0);
  out[0] = 10;
  out[2] = bits(100.0f);
  out = run("atomics", {}, out);
  CHECK(out[0] == 10 + threads);
  CHECK(static_cast<int>(out[1]) == -2 * threads);
  CHECK(number(out[2]) == 100.0f + 0.5f * threads);
  CHECK(out[3] == 3 * threads);
  std::sort(out.begin() + 4, out.end());
  for (int i = 0; i < threads; ++i) CHECK(out[4 + i] == static_cast<uint32_t>(10 + i));
}

TEST_CASE("vector types") {
  Words in(18), expected;
  std::iota(in.begin(), in.end(), 0x40000000u);
  for (int i = 0; i < 12; ++i) expected.push_back(in[i / 4 * 4 + 3 - i % 4]);
  for (int i = 12; i < 18; ++i) expected.push_back(in[i / 2 * 2 + 1 - i % 2]);
  check_equal(run("vectors", in, 18), expected);
}

TEST_CASE("threads know their place in grids of one and three dimensions") {
  auto expected = [](uint32_t X, uint32_t Y, uint32_t Z, uint32_t threads) {
    Words all;
    for (uint32_t z = 0; z < Z; ++z)
      for (uint32_t y = 0; y < Y; ++y)
        for (uint32_t x = 0; x < X; ++x)
          for (uint32_t t = 0; t < threads; ++t) all.insert(all.end(), {x, y, z, X, Y, Z, t, threads});
    return all;
  };
  check_equal(run("places 1-D", {}, 7 * 33 * 8), expected(7, 1, 1, 33));
  check_equal(run("places 3-D", {}, 3 * 4 * 5 * 2 * 8), expected(3, 4, 5, 2));
}

TEST_CASE("static shared memory: two instances of a kernel and of an array do not share theirs") {
  for (int n : {32, 64}) {
    Words in, expected;
    for (int i = 0; i < 2 * n; ++i) in.push_back(static_cast<uint32_t>(1000 + 10 * i));
    for (int i = 0; i < 2 * n; ++i)
      for (uint32_t array = 0; array < 3; ++array) expected.push_back(in[i / n * n + n - 1 - i % n] + array);
    check_equal(run(n == 32 ? "turn_static 32" : "turn_static 64", in, expected.size()), expected);
  }
}

TEST_CASE("dynamic shared memory: 96 KB, aligned to 1024 bytes") {
  Words in, expected = {1};
  for (uint32_t i = 0; i < 128; ++i) in.push_back(5 * i);
  for (uint32_t i = 0; i < 128; ++i) expected.insert(expected.end(), {in[127 - i], in[127 - i] + 1});
  check_equal(run("turn_dynamic", in, expected.size()), expected);
}
