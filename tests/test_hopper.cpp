/// @file
/// Every wrapper of hardware/ that needs Hopper, on one machine: this file is linked once with the module for the simulated
/// GPU and once with that for the GPU. What must come out is written down here anew, from NVIDIA's PTX ISA, whose sections
/// the tests name.

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/kernel_tests.h"

namespace {

// The FP16 code of an integer of magnitude 0 .. 2048.
uint32_t half_of(int x) {
  if (x == 0) return 0;
  const uint32_t sign = x < 0 ? 0x8000 : 0, magnitude = static_cast<uint32_t>(std::abs(x));
  const int exponent = std::bit_width(magnitude) - 1;
  return sign | static_cast<uint32_t>(exponent + 15) << 10 | ((magnitude << (10 - exponent)) & 1023);
}

// The FP16 or BF16 code of an integer of magnitude 0 .. 256. BF16 is the upper half of a float.
uint32_t code_of(int x, bool bf16) { return bf16 ? bits(static_cast<float>(x)) >> 16 : half_of(x); }

// A matrix of small integers, so that every sum is exact.
struct Matrix {
  int rows, columns;
  std::vector<int> values;
  Matrix(int rows, int columns, unsigned seed) : rows(rows), columns(columns), values(static_cast<size_t>(rows * columns)) {
    std::mt19937 random(seed);
    for (int& x : values) x = static_cast<int>(random() % 129) - 64;
  }
  int at(int row, int column) const { return values[static_cast<size_t>(row * columns + column)]; }
  void append_to(Words& words, bool bf16 = false) const {
    for (size_t i = 0; i < values.size(); i += 2)
      words.push_back(code_of(values[i], bf16) | code_of(values[i + 1], bf16) << 16);
  }
};

// PTX ISA, "Register Fragments and Shared Memory Matrix Layouts", wgmma.mma_async.m64nNk16. The accumulator d_i of thread t:
// row = 16 * (t / 32) + t % 32 / 4 (+ 8 for odd i / 2), column = 8 * (i / 4) + 2 * (t % 4) + i % 2.
int row_of(int t, int i) { return 16 * (t / 32) + t % 32 / 4 + (i / 2 % 2 ? 8 : 0); }
int column_of(int t, int i) { return 8 * (i / 4) + 2 * (t % 4) + i % 2; }
// Half i of A in registers: row = 16 * (t / 32) + t % 32 / 4 (+ 8 if i is 2, 3, 6, 7), column = 2 * (t % 4) + i % 2 (+ 8 if
// i >= 4).
int a_row(int t, int i) { return 16 * (t / 32) + t % 32 / 4 + (i / 2 % 2 ? 8 : 0); }
int a_column(int t, int i) { return 2 * (t % 4) + i % 2 + (i >= 4 ? 8 : 0); }

void append_fragments(Words& words, const Matrix& A, bool bf16 = false) {
  for (int t = 0; t < 128; ++t)
    for (int k = 0; k < A.columns; k += 16)
      for (int r = 0; r < 4; ++r)
        words.push_back(code_of(A.at(a_row(t, 2 * r), k + a_column(t, 2 * r)), bf16) |
                        code_of(A.at(a_row(t, 2 * r + 1), k + a_column(t, 2 * r + 1)), bf16) << 16);
}

// by(row, column) is the product; each thread's registers of it.
template <typename Product>
Words fragments(int columns, Product by) {
  Words words;
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < columns / 2; ++i) words.push_back(bits(static_cast<float>(by(row_of(t, i), column_of(t, i)))));
  return words;
}

}  // namespace

// ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation using wgmma.mma_async", "Matrix Descriptor
// Format".
TEST_CASE("wgmma with both factors in shared memory, K-major: every N, d = 64, 128, 256, FP16 and BF16") {
  const std::vector<std::pair<int, int>> shapes = {{64, 64},  {80, 64},  {128, 64}, {144, 64}, {160, 64},
                                                   {176, 64}, {192, 64}, {256, 64}, {80, 128}, {64, 256}};
  for (const auto& [N, d] : shapes)
    for (auto [accumulate, bf16] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      if (bf16 && d > 64) continue;
      CAPTURE(bf16);
      CAPTURE(N);
      CAPTURE(d);
      CAPTURE(accumulate);
      const Matrix A(64, d, 1), B(N, d, 2), C(64, N, 3);
      Words in = {accumulate, 0, 0, 0};
      for (int t = 0; t < 128; ++t)
        for (int i = 0; i < N / 2; ++i) in.push_back(bits(static_cast<float>(C.at(row_of(t, i), column_of(t, i)))));
      A.append_to(in, bf16);
      B.append_to(in, bf16);
      const Words expected = fragments(N, [&](int row, int column) {
        int sum = accumulate ? C.at(row, column) : 0;
        for (int k = 0; k < d; ++k) sum += A.at(row, k) * B.at(column, k);
        return sum;
      });
      const std::string kernel = "product_ss " + std::to_string(N) + " " + std::to_string(d) + (bf16 ? " bfloat16" : "");
      check_equal(run(kernel, in, expected.size()), expected);
    }
}

TEST_CASE("wgmma with the left factor in registers, the right one MN-major: every N, several counts of keys, FP16 and BF16") {
  const std::vector<std::pair<int, int>> shapes = {{64, 32},  {80, 32},  {128, 32}, {144, 32}, {160, 32},
                                                   {176, 32}, {192, 32}, {256, 32}, {128, 80}, {256, 16}};
  for (const auto& [N, keys] : shapes)
    for (bool bf16 : {false, true}) {
      if (bf16 && keys != 32) continue;
      CAPTURE(N);
      CAPTURE(keys);
      CAPTURE(bf16);
      const Matrix A(64, keys, 4), B(keys, (N + 63) / 64 * 64, 5);
      Words in;
      append_fragments(in, A, bf16);
      B.append_to(in, bf16);
      const Words expected = fragments(N, [&](int row, int column) {
        int sum = 0;
        for (int k = 0; k < keys; ++k) sum += A.at(row, k) * B.at(k, column);
        return sum;
      });
      const std::string kernel = "product_rs " + std::to_string(N) + " " + std::to_string(keys) + (bf16 ? " bfloat16" : "");
      check_equal(run(kernel, in, expected.size()), expected);
    }
}

TEST_CASE("wgmma on tiles that threads wrote; the other pairs of operands; two groups in flight") {
  const Matrix A(64, 16, 6), padded(64, 64, 6), mn(16, 64, 7), k(64, 64, 8);
  Words in;
  append_fragments(in, A);
  padded.append_to(in);
  mn.append_to(in);
  k.append_to(in);
  const Words C = fragments(64, [&](int row, int column) {
    int sum = 0;
    for (int x = 0; x < 16; ++x) sum += padded.at(row, x) * mn.at(x, column);
    return sum;
  });
  const Words D = fragments(64, [&](int row, int column) {
    int sum = 0;
    for (int x = 0; x < 16; ++x) sum += A.at(row, x) * k.at(column, x);
    return sum;
  });
  Words expected;
  for (size_t t = 0; t < 128; ++t) {
    expected.insert(expected.end(), C.begin() + t * 32, C.begin() + t * 32 + 32);
    expected.insert(expected.end(), D.begin() + t * 32, D.begin() + t * 32 + 32);
  }
  check_equal(run("products_of_stores", in, expected.size()), expected);
}

namespace {

// The box of the tensor [2 heads][50 rows][2 chunks][64], as kernels load and store it: [2 chunks][24 rows][64].
constexpr int rows = 50, box_rows = 24;

bool inside(int x, int row, int chunk, int head) {
  return x >= 0 && x < 64 && row >= 0 && row < rows && chunk >= 0 && chunk < 2 && head >= 0 && head < 2;
}
size_t at(int x, int row, int chunk, int head) { return static_cast<size_t>(((head * rows + row) * 2 + chunk) * 64 + x); }

// ISA, "Swizzling modes", 128B: of 8 rows of 128 bytes, the 16-byte piece p of row r lies at p xor r.
size_t place_in_box(int x, int row, int chunk) {
  const int line = chunk * box_rows + row;
  return static_cast<size_t>(line * 64 + ((x / 8 ^ line % 8) * 8 + x % 8));
}

const std::vector<std::vector<int>> corners = {{0, 0, 0, 0},   {0, 7, 0, 1},   {0, 40, 0, 0}, {0, -3, 0, 1},   {0, 0, 1, 0},
                                               {0, 5, -1, 1},  {32, 30, 0, 0}, {-8, 0, 0, 1}, {-24, -5, 0, 0}, {8, 45, 1, 1},
                                               {0, 100, 0, 0}, {0, 0, 0, 2},   {64, 0, 0, 0}, {0, 0, 0, -1}};

}  // namespace

// CUDA Driver API, cuTensorMapEncodeTiled.
TEST_CASE("tensor_map accepts and refuses what the driver does") {
  struct Map {
    uint64_t offset, size[4], stride[3], box[4];
  };
  static_assert(sizeof(Map) == 12 * 8);
  const Map good = {0, {64, 50, 2, 2}, {256, 128, 12800}, {64, 24, 2, 1}};
  auto accepts = [](const Map& map) {
    Words in(24);
    std::memcpy(in.data(), &map, sizeof map);
    return run("tensor_map", in, 1)[0] == 1;
  };
  CHECK(accepts(good));
  auto with = [&](auto change) {
    Map map = good;
    change(map);
    return accepts(map);
  };
  CHECK(with([](Map& m) { m.offset = 16; }));
  CHECK(!with([](Map& m) { m.offset = 8; }));
  CHECK(!with([](Map& m) { m.size[0] = 0; }));
  CHECK(!with([](Map& m) { m.size[3] = 0; }));
  CHECK(with([](Map& m) { m.size[1] = uint64_t{1} << 32; }));
  CHECK(!with([](Map& m) { m.size[1] = (uint64_t{1} << 32) + 1; }));
  CHECK(with([](Map& m) { m.stride[0] = 144; }));
  CHECK(with([](Map& m) { m.stride[0] = 16; }));
  CHECK(!with([](Map& m) { m.stride[0] = 136; }));
  CHECK(with([](Map& m) { m.stride[2] = (uint64_t{1} << 40) - 16; }));
  CHECK(!with([](Map& m) { m.stride[2] = uint64_t{1} << 40; }));
  CHECK(!with([](Map& m) { m.box[1] = 0; }));
  CHECK(with([](Map& m) { m.box[1] = 256; }));
  CHECK(!with([](Map& m) { m.box[1] = 257; }));
  CHECK(with([](Map& m) { m.box[0] = 32; }));
  CHECK(with([](Map& m) { m.box[0] = 8; }));
  CHECK(!with([](Map& m) { m.box[0] = 4; }));
  CHECK(!with([](Map& m) { m.box[0] = 12; }));
  CHECK(!with([](Map& m) { m.box[0] = 72; }));
  CHECK(with([](Map& m) { m.box[1] = 256, m.box[2] = 7; }));
  CHECK(!with([](Map& m) { m.box[1] = 256, m.box[2] = 8; }));
  CHECK(with([](Map& m) { m.box[0] = 8, m.box[1] = 256, m.box[2] = 57; }));
  CHECK(!with([](Map& m) { m.box[0] = 8, m.box[1] = 256, m.box[2] = 58; }));
  CHECK(with([](Map& m) { m.size[0] = 8; }));
  CHECK(with([](Map& m) { m.stride[0] = 0; }));
}

// ISA, "Tensors", "Out-of-bound access": zeros.
TEST_CASE("tma_load: packed, swizzled, zeros outside the tensor, at every side") {
  std::vector<uint32_t> halves(2 * rows * 2 * 64);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint32_t>(i + 1) & 0xFFFF;
  for (const auto& corner : corners) {
    INFO(corner[0], " ", corner[1], " ", corner[2], " ", corner[3]);
    Words in;
    for (int x : corner) in.push_back(static_cast<uint32_t>(x));
    for (size_t i = 0; i < halves.size(); i += 2) in.push_back(halves[i] | halves[i + 1] << 16);
    std::vector<uint32_t> box(2 * box_rows * 64);
    for (int chunk = 0; chunk < 2; ++chunk)
      for (int row = 0; row < box_rows; ++row)
        for (int x = 0; x < 64; ++x) {
          const int X = x + corner[0], R = row + corner[1], C = chunk + corner[2], H = corner[3];
          box[place_in_box(x, row, chunk)] = inside(X, R, C, H) ? halves[at(X, R, C, H)] : 0;
        }
    Words expected;
    for (size_t i = 0; i < box.size(); i += 2) expected.push_back(box[i] | box[i + 1] << 16);
    check_equal(run("load_box", in, expected.size()), expected);
  }
}

TEST_CASE("tma_store: what lies beyond the tensor's end is left out") {
  for (const auto& corner : corners) {
    if (*std::min_element(corner.begin(), corner.end()) < 0)
      continue;  // a load may begin before the tensor, a store may not
    INFO(corner[0], " ", corner[1], " ", corner[2], " ", corner[3]);
    Words in;
    for (int x : corner) in.push_back(static_cast<uint32_t>(x));
    std::vector<uint32_t> box(2 * box_rows * 64), tensor(2 * rows * 2 * 64, 0xABCD);
    for (size_t i = 0; i < box.size(); ++i) box[i] = static_cast<uint32_t>(i + 7) & 0xFFFF;
    for (size_t i = 0; i < box.size(); i += 2) in.push_back(box[i] | box[i + 1] << 16);
    for (int time = 0; time < 2; ++time)
      for (int chunk = 0; chunk < 2; ++chunk)
        for (int row = 0; row < box_rows; ++row)
          for (int x = 0; x < 64; ++x) {
            const int X = x + corner[0], R = row + corner[1] + time, C = chunk + corner[2], H = corner[3] + time;
            if (inside(X, R, C, H)) tensor[at(X, R, C, H)] = box[place_in_box(x, row, chunk)];
          }
    Words expected;
    for (size_t i = 0; i < tensor.size(); i += 2) expected.push_back(tensor[i] | tensor[i + 1] << 16);
    check_equal(run("store_box", in, Words(expected.size(), 0xABCDABCD)), expected);
  }
}

// ISA, "Phase of the mbarrier object", "mbarrier.test_wait/mbarrier.try_wait": parity.
TEST_CASE("mbarriers: forty phases by parity") {
  Words in, expected;
  for (uint32_t i = 0; i < 40; ++i) in.push_back(1000 + 7 * i);
  for (uint32_t word : in) expected.insert(expected.end(), 32, word);
  check_equal(run("phases", in, expected.size()), expected);
}

TEST_CASE("mbarriers: two threads announce and issue, several copies a phase") {
  Words in(6 * 64 * 32), expected(64 * 32);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<uint32_t>(i * 2654435761u) & 0x0FFF0FFF;
    const size_t row = i / 32 % 64, piece = i % 32 / 4;  // each box is swizzled in the same way
    expected[row * 32 + (piece ^ row % 8) * 4 + i % 4] += in[i];
  }
  check_equal(run("phases_of_copies", in, expected.size()), expected);
}

// ISA, "barrier{.cta}": sync waits, arrive does not.
TEST_CASE("named barriers: two warps take turns") {
  Words expected;
  for (uint32_t i = 0; i < 32; ++i) expected.push_back(i % 2);
  check_equal(run("turns", {}, 32), expected);
}

TEST_CASE("elect_one elects one lane a warp, always the same") {
  const Words is = run("elections", {}, 128);
  for (size_t warp = 0; warp < 2; ++warp) {
    uint32_t elected = 0;
    for (size_t t = 32 * warp; t < 32 * warp + 32; ++t) {
      elected += is[2 * t];
      CHECK(is[2 * t] == is[2 * t + 1]);
    }
    CHECK(elected == 1);
  }
}

// ISA, "Warp-level matrix store instruction: stmatrix".
TEST_CASE("stmatrix_x4: lane i names row i % 8 of matrix i / 8") {
  std::vector<uint32_t> place(32);
  for (uint32_t i = 0; i < 32; ++i) place[i] = (i * 5 + 3) % 32;  // every row once
  Words in = place, expected(40 * 4, 0x12345678);
  for (uint32_t i = 0; i < 128; ++i) in.push_back(i * 0x01010101u);
  for (uint32_t m = 0; m < 4; ++m)
    for (uint32_t lane = 0; lane < 32; ++lane) expected[4 * place[8 * m + lane / 4] + lane % 4] = in[32 + 4 * lane + m];
  check_equal(run("stmatrix", in, expected.size()), expected);
}

// ISA, "setmaxnreg".
TEST_CASE("setmaxnreg: one warpgroup gives, two take") {
  Words in, expected(384);
  for (uint32_t i = 0; i < 100; ++i) in.push_back(3 * i + 1);
  for (uint32_t t = 0; t < 384; ++t) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 100; ++i) sum = sum * 3 + in[99 - i] * (t + 99 - i);
    expected[t] = t < 128 ? in[0] : sum;
  }
  check_equal(run("registers", in, expected.size()), expected);
}
