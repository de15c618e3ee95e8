/// @file
/// The arithmetic of wgmma, and its factors in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
#include "tensor_core.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

#include "hardware/fp8.h"
#include "memory.h"

namespace simulator {
namespace {

// --- operands in shared memory ------------------------------------------------------------------------------------

// The fields of a matrix descriptor, in bytes.
struct Tile {
  uint32_t start, leading, stride, span;
  explicit Tile(uint64_t d)
      : start(static_cast<uint32_t>(d & 0x3FFF) << 4),
        leading(static_cast<uint32_t>(d >> 16 & 0x3FFF) << 4),
        stride(static_cast<uint32_t>(d >> 32 & 0x3FFF) << 4),
        span(256u >> (d >> 62)) {}
  // Exchanges pieces of 16 bytes: of address bits 4..6 as many take part as a span has, with as many from bit 7 on.
  uint32_t swizzled(uint32_t address) const { return address ^ ((address >> 7 << 4) & (span - 16)); }
  // Sixteen bytes that lie together: piece number `piece` of row `row`,
  uint32_t k_major(uint32_t row, uint32_t piece) const {
    return swizzled(start + row / 8 * stride + row % 8 * span + piece * 16);
  }
  // or of k the rows from 8 * piece on, halves.
  uint32_t mn_major(uint32_t k, uint32_t piece) const {
    const uint32_t pieces = span / 16;
    return swizzled(start + piece / pieces * leading + k / 8 * stride + k % 8 * span + piece % pieces * 16);
  }
};

void check_descriptor(uint64_t descriptor, bool mn_major, const char* which, Site site) {
  const Tile tile(descriptor);
  char where[32];
  std::snprintf(where, sizeof where, "shared+0x%x", tile.start);
  if (descriptor >> 62 == 0)
    fail("misaligned",
         std::string("The descriptor of wgmma's factor ") + which + " names no swizzle; was it made by descriptor()?", site);
  const uint32_t pattern = 8 * tile.span, inside = tile.start % pattern;
  if (inside >= tile.span)
    fail("misaligned",
         std::string("wgmma's factor ") + which + " begins at " + where +
             ", inside a swizzle pattern: a tile begins at a multiple of " + std::to_string(pattern) +
             " bytes, its rows are taken by eights.",
         site);
  if (mn_major ? inside != 0 : inside > tile.span - 32)
    fail("misaligned",
         std::string("wgmma's factor ") + which + " begins at " + where + ", too far inside a line of " +
             std::to_string(tile.span) + " bytes.",
         site);
}

// Calls visit(address, n, k) for every 16 bytes of a factor of `rows` rows that begin at row n and column k.
template <typename Visit>
void for_each_piece(uint64_t descriptor, bool mn_major, int rows, Number number, Visit visit) {
  const Tile tile(descriptor);
  if (mn_major) {
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < rows; n += 8) visit(tile.mn_major(static_cast<uint32_t>(k), static_cast<uint32_t>(n / 8)), n, k);
  } else {
    for (int n = 0; n < rows; ++n)
      for (int piece = 0; piece < 2; ++piece)
        visit(tile.k_major(static_cast<uint32_t>(n), static_cast<uint32_t>(piece)), n, piece * depth_of(number) / 2);
  }
}

// Bounds, races, proxies. The tensor cores read for all four warps.
void check_factor(uint64_t descriptor, bool mn_major, int rows, Number number, Warpgroup& group, const Multiplication& op) {
  const int warpgroup = machine.thread->warpgroup();
  Thread* issuers[4];
  for (int w = 0; w < 4; ++w)
    issuers[w] = &machine.cta->threads[static_cast<size_t>(warpgroup * warpgroup_size + w * warp_size)];
  const size_t slot = tensor_slots + static_cast<size_t>(warpgroup);
  const Stamp stamp{op.time, group.engine | place_of(op.site) * most_threads};
  Stamp good{};
  for_each_piece(descriptor, mn_major, rows, number, [&](uint32_t window, int, int) {
    const unsigned char* address = shared_at(window);
    if (!address || !engine_read(address, 16, issuers, 4, slot, stamp, good)) {
      char where[32];
      std::snprintf(where, sizeof where, "shared+0x%x", window);
      fail("out of bounds", std::string("wgmma reads 16 bytes at ") + where + ", beyond the CTA's shared memory.", op.site);
    }
  });
}

// --- numbers ------------------------------------------------------------------------------------------------------

float value_of(uint16_t half) {
  const uint32_t rest = static_cast<uint32_t>(half & 0x7FFF) << 13;
  float magnitude;
  std::memcpy(&magnitude, &rest, 4);
  magnitude *= 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  if (rest >= 0x0F800000u) bits = rest | 0x7F800000u;
  bits |= static_cast<uint32_t>(half & 0x8000) << 16;
  std::memcpy(&magnitude, &bits, 4);
  return magnitude;
}

// The values of the 256 codes.
template <typename T>
const std::array<float, 256>& table() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v;
    for (size_t i = 0; i < 256; ++i) v[i] = to_float(T{static_cast<uint8_t>(i)});
    return v;
  }();
  return values;
}

// The numbers in some bytes: put(i, value of number i).
template <typename Put>
void for_each_number(const void* bytes, int count, Number number, Put put) {
  const auto* p = static_cast<const unsigned char*>(bytes);
  if (depth_of(number) == 16) {
    for (int i = 0; i < count / 2; ++i) {
      const auto bits = static_cast<uint16_t>(p[2 * i] | p[2 * i + 1] << 8);
      put(i, number == Number::half ? value_of(bits) : std::bit_cast<float>(uint32_t{bits} << 16));
    }
  } else {
    const auto& values = number == Number::e4m3 ? table<e4m3>() : table<e5m2>();
    for (int i = 0; i < count; ++i) put(i, values[p[i]]);
  }
}

// --- the multiplication ----------------------------------------------------------------------------------------------

alignas(64) float A[64][32], B[32][256];  // of the instruction that is being carried out

void load_factors(const Multiplication& op, int columns) {
  if (op.from_registers) {
    for (int t = 0; t < warpgroup_size; ++t)
      for (int r = 0; r < 4; ++r) {
        // A register holds two neighbours in k, or four; a quad's registers lie together.
        const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8, half = depth_of(op.a_number) / 2;
        const int k = t % 4 * half / 4 + r / 2 * half;
        for_each_number(&op.a_registers[static_cast<size_t>(t)][r], 4, op.a_number,
                        [&](int i, float value) { A[row][k + i] = value; });
      }
  } else {
    for_each_piece(op.a, false, 64, op.a_number, [&](uint32_t window, int row, int k) {
      for_each_number(shared_at(window), 16, op.a_number, [&](int i, float value) { A[row][k + i] = value; });
    });
  }
  for_each_piece(op.b, op.mn_major, columns, op.b_number, [&](uint32_t window, int n, int k) {
    for_each_number(shared_at(window), 16, op.b_number,
                    [&](int i, float value) { (op.mn_major ? B[k][n + i] : B[k + i][n]) = value; });
  });
}

// Eight columns at a time: what the CPU's vector registers hold.
using Eight = float __attribute__((vector_size(32)));
using EightInts = int32_t __attribute__((vector_size(32)));

// Two rows: c + A[row][0 .. depth - 1] * B[0 .. depth - 1][n .. n + 7], summed in float one by one.
void add_wide(Eight& upper, Eight& lower, int row, int n, int depth) {
  for (int k = 0; k < depth; ++k) {
    Eight b;
    std::memcpy(&b, &B[k][n], sizeof b);
    upper += A[row][k] * b;
    lower += A[row + 1][k] * b;
  }
}

// One row, for FP8, as Options::narrow_fp8_sums tells: in units of 2^(e - 13), cut towards zero, where e is the largest
// exponent.
void add_narrow(Eight& c, int row, int n) {
  constexpr int field = 0x7F800000;  // a float's exponent
  EightInts largest = reinterpret_cast<EightInts>(c) & 0x7FFFFFFF;
  Eight products[32], plain = c;
  for (int k = 0; k < 32; ++k) {
    Eight b;
    std::memcpy(&b, &B[k][n], sizeof b);
    products[k] = A[row][k] * b;
    plain += products[k];
    const EightInts magnitude = reinterpret_cast<EightInts>(products[k]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  // A column with NaN or infinity is summed as ever.
  const EightInts finite = largest < field;
  const EightInts least = {14 << 23, 14 << 23, 14 << 23, 14 << 23, 14 << 23, 14 << 23, 14 << 23, 14 << 23};
  EightInts exponent = largest & field & finite;
  exponent = exponent > least ? exponent : least;  // 2^(e - 13) is a normal number
  const auto unit = reinterpret_cast<Eight>(exponent - (13 << 23));
  const auto inverse = reinterpret_cast<Eight>(((127 + 13) << 23) - (exponent - (127 << 23)));
  EightInts sum = {};
  auto add = [&](const Eight& x) {
    const auto some = reinterpret_cast<Eight>(reinterpret_cast<EightInts>(x) & finite);
    sum += __builtin_convertvector(some * inverse, EightInts);  // towards zero
  };
  add(c);
  for (const Eight& product : products) add(product);
  // At most 33 * 2^14, exact. The accumulator keeps 13 bits behind the leading one.
  const Eight exact = __builtin_convertvector(sum, Eight) * unit;
  const EightInts stored = reinterpret_cast<EightInts>(exact) & ~0x3FF;
  c = reinterpret_cast<Eight>((stored & finite) | (reinterpret_cast<EightInts>(plain) & ~finite));
}

}  // namespace

void check_factors(const Multiplication& op, Warpgroup& group) {
  if (!op.from_registers) check_descriptor(op.a, false, "A", op.site);
  check_descriptor(op.b, op.mn_major, "B", op.site);
  if (!op.from_registers) check_factor(op.a, false, 64, op.a_number, group, op);
  check_factor(op.b, op.mn_major, op.chain->columns, op.b_number, group, op);
}

void execute(Multiplication& op) {
  op.executed = true;
  Chain& chain = *op.chain;
  const int columns = chain.columns, depth = depth_of(op.a_number);
  const bool narrow = depth == 32 && machine.options.narrow_fp8_sums;
  load_factors(op, columns);
  if (!op.accumulate) std::fill(chain.matrix.begin(), chain.matrix.end(), 0.0f);
  for (int row = 0; row < 64; row += 2)
    for (int n = 0; n < columns; n += 8) {
      float* upper = chain.matrix.data() + row * columns + n;
      float* lower = upper + columns;
      Eight c0, c1;
      std::memcpy(&c0, upper, sizeof c0);
      std::memcpy(&c1, lower, sizeof c1);
      if (narrow) add_narrow(c0, row, n), add_narrow(c1, row + 1, n);
      else add_wide(c0, c1, row, n, depth);
      std::memcpy(upper, &c0, sizeof c0);
      std::memcpy(lower, &c1, sizeof c1);
    }
}

}  // namespace simulator
