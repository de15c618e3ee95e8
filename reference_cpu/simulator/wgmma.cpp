/// @file
/// The tensor cores of a warpgroup: matrices from shared memory and registers, multiplied at some moment between issue and
/// wait (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
#include <algorithm>
#include <cmath>
#include <cstring>

#include "machine.h"
#include "memory.h"
#include "timeline.h"

namespace simulator {
namespace {

// --- operands in shared memory ------------------------------------------------------------------------------------

// The fields of a matrix descriptor, in bytes.
struct Tile {
  uint32_t start, leading, stride;
  explicit Tile(uint64_t d)
      : start(static_cast<uint32_t>(d & 0x3FFF) << 4),
        leading(static_cast<uint32_t>(d >> 16 & 0x3FFF) << 4),
        stride(static_cast<uint32_t>(d >> 32 & 0x3FFF) << 4) {}
  static uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }
  // Eight halves that lie together: of row `row` from k = 8 * piece on,
  uint32_t k_major(uint32_t row, uint32_t piece) const {
    return swizzled(start + row / 8 * stride + row % 8 * 128 + piece * 16);
  }
  // or of k from row 8 * piece on.
  uint32_t mn_major(uint32_t k, uint32_t piece) const {
    return swizzled(start + piece / 8 * leading + k / 8 * stride + k % 8 * 128 + piece % 8 * 16);
  }
};

void check_descriptor(uint64_t descriptor, bool mn_major, const char* which, Site site) {
  const Tile tile(descriptor);
  char where[32];
  std::snprintf(where, sizeof where, "shared+0x%x", tile.start);
  if (descriptor >> 62 != 1)
    fail("misaligned",
         std::string("The descriptor of wgmma's factor ") + which +
             " does not say 128-byte swizzle; was it made by "
             "descriptor()?",
         site);
  if (tile.start & 0x380)
    fail("misaligned",
         std::string("wgmma's factor ") + which + " begins at " + where +
             ", inside a swizzle pattern: a tile begins at a multiple of 1024 bytes, its rows are taken by eights.",
         site);
  if (mn_major ? tile.start & 0x7F : (tile.start & 0x7F) > 96)
    fail("misaligned",
         std::string("wgmma's factor ") + which + " begins at " + where + ", too far inside a line of 128 bytes.", site);
}

// Calls visit(address, row, k) for every eight halves of a factor of `rows` rows and 16 columns.
template <typename Visit>
void for_each_piece(uint64_t descriptor, bool mn_major, int rows, Visit visit) {
  const Tile tile(descriptor);
  if (mn_major) {
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < rows; n += 8) visit(tile.mn_major(static_cast<uint32_t>(k), static_cast<uint32_t>(n / 8)), n, k);
  } else {
    for (int n = 0; n < rows; ++n)
      for (int k = 0; k < 16; k += 8) visit(tile.k_major(static_cast<uint32_t>(n), static_cast<uint32_t>(k / 8)), n, k);
  }
}

// Bounds, races, proxies. The tensor cores read for all four warps.
void check_factor(uint64_t descriptor, bool mn_major, int rows, Warpgroup& group, const Multiplication& op) {
  const int warpgroup = machine.thread->warpgroup();
  Thread* issuers[4];
  for (int w = 0; w < 4; ++w)
    issuers[w] = &machine.cta->threads[static_cast<size_t>(warpgroup * warpgroup_size + w * warp_size)];
  const size_t slot = tensor_slots + static_cast<size_t>(warpgroup);
  const Stamp stamp{op.time, group.engine | place_of(op.site) * most_threads};
  Stamp good{};
  for_each_piece(descriptor, mn_major, rows, [&](uint32_t window, int, int) {
    const unsigned char* address = shared_at(window);
    if (!address || !engine_read(address, 16, issuers, 4, slot, stamp, good)) {
      char where[32];
      std::snprintf(where, sizeof where, "shared+0x%x", window);
      fail("out of bounds", std::string("wgmma reads 16 bytes at ") + where + ", beyond the CTA's shared memory.", op.site);
    }
  });
}

// --- the multiplication ----------------------------------------------------------------------------------------------

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

alignas(64) float A[64][16], B[16][256];  // of the instruction that is being carried out

void load_factors(const Multiplication& op, int columns) {
  if (op.from_registers) {
    for (int t = 0; t < warpgroup_size; ++t)
      for (int r = 0; r < 4; ++r) {
        const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8, k = t % 4 * 2 + r / 2 * 8;
        const uint32_t both = op.a_registers[static_cast<size_t>(t)][r];
        A[row][k] = value_of(static_cast<uint16_t>(both));
        A[row][k + 1] = value_of(static_cast<uint16_t>(both >> 16));
      }
  } else {
    for_each_piece(op.a, false, 64, [](uint32_t window, int row, int k) {
      uint16_t halves[8];
      std::memcpy(halves, shared_at(window), 16);
      for (int i = 0; i < 8; ++i) A[row][k + i] = value_of(halves[i]);
    });
  }
  for_each_piece(op.b, op.mn_major, columns, [&](uint32_t window, int n, int k) {
    uint16_t halves[8];
    std::memcpy(halves, shared_at(window), 16);
    for (int i = 0; i < 8; ++i) (op.mn_major ? B[k][n + i] : B[k + i][n]) = value_of(halves[i]);
  });
}

// Eight columns at a time, of two rows: what the CPU's vector registers hold.
using Eight = float __attribute__((vector_size(32)));

void execute(Multiplication& op) {
  op.executed = true;
  Chain& chain = *op.chain;
  const int columns = chain.columns;
  load_factors(op, columns);
  if (!op.accumulate) std::fill(chain.matrix.begin(), chain.matrix.end(), 0.0f);
  for (int row = 0; row < 64; row += 2)
    for (int n = 0; n < columns; n += 8) {
      float* upper = chain.matrix.data() + row * columns + n;
      float* lower = upper + columns;
      Eight c0, c1;
      std::memcpy(&c0, upper, sizeof c0);
      std::memcpy(&c1, lower, sizeof c1);
      for (int k = 0; k < 16; ++k) {
        Eight b;
        std::memcpy(&b, &B[k][n], sizeof b);
        c0 += A[row][k] * b;
        c1 += A[row + 1][k] * b;
      }
      std::memcpy(upper, &c0, sizeof c0);
      std::memcpy(lower, &c1, sizeof c1);
    }
}

// Where register i of thread t lies in the 64 x columns matrix.
size_t element_of(int t, int i, int columns) {
  const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
  return static_cast<size_t>(row * columns + column);
}

// The chain that these accumulators continue, or a new one.
std::shared_ptr<Chain> chain_of(Warpgroup& group, void* const* arguments, Site site) {
  std::vector<float*> registers(warpgroup_size);
  for (size_t t = 0; t < warpgroup_size; ++t) registers[t] = static_cast<const WgmmaArguments*>(arguments[t])->c;
  for (const auto& chain : group.chains)
    if (chain->registers == registers) return chain;
  const int count = static_cast<const WgmmaArguments*>(arguments[0])->count;
  auto chain = std::make_shared<Chain>(
      Chain{std::move(registers), 2 * count, std::vector<float>(static_cast<size_t>(128 * count)), 0, site});
  for (int t = 0; t < warpgroup_size; ++t)
    for (int i = 0; i < count; ++i) {
      float& r = chain->registers[static_cast<size_t>(t)][i];
      chain->matrix[element_of(t, i, chain->columns)] = r;
      r = NAN;  // until the wait
    }
  group.chains.push_back(chain);
  return chain;
}

void execute_pending(Warpgroup& group, uint64_t groups) {
  for (Multiplication& op : group.pipeline)
    if (!op.executed && op.group < groups) execute(op);
}

void issue(Warpgroup& group, void* const* arguments, Site site) {
  const auto& first = *static_cast<const WgmmaArguments*>(arguments[0]);
  for (int t = 1; t < warpgroup_size; ++t) {
    const auto& other = *static_cast<const WgmmaArguments*>(arguments[t]);
    if (other.a != first.a || other.b != first.b || other.accumulate != first.accumulate)
      fail("collective",
           "The threads of a warpgroup pass different " +
               std::string(other.accumulate != first.accumulate ? "flags to accumulate" : "descriptors") +
               " to wgmma: thread " + std::to_string(t) + " and thread 0 of the warpgroup do.",
           site);
  }
  if (group.engine == no_engine) group.engine = new_engine(site);
  Multiplication op{chain_of(group, arguments, site),
                    first.a_registers != nullptr,
                    first.accumulate,
                    first.mn_major,
                    false,
                    {},
                    first.a,
                    first.b,
                    group.open_group,
                    engine_time(group.engine),
                    site};
  op.chain->group = op.group;
  if (op.from_registers)
    for (int t = 0; t < warpgroup_size; ++t)
      op.a_registers.push_back(static_cast<const WgmmaArguments*>(arguments[t])->a_registers);
  else check_descriptor(op.a, false, "A", site);
  check_descriptor(op.b, op.mn_major, "B", site);
  if (!op.from_registers) check_factor(op.a, false, 64, group, op);
  check_factor(op.b, op.mn_major, op.chain->columns, group, op);
  count(Count::tensor_flops, static_cast<uint64_t>(2 * 64 * 16) * static_cast<uint64_t>(op.chain->columns));
  group.pipeline.push_back(std::move(op));
  const Schedule schedule = machine.options.schedule;
  if (schedule == Schedule::early || (schedule == Schedule::random && machine.random() % 2))
    execute_pending(group, UINT64_MAX);
}

// The groups up to group.complete_groups are waited for.
void complete(Warpgroup& group, void* const*, Site) {
  execute_pending(group, group.complete_groups);
  auto done = [&](uint64_t last) { return last < group.complete_groups; };
  for (const Multiplication& op : group.pipeline)
    if (done(op.group)) group.complete_time = op.time;
  std::erase_if(group.pipeline, [&](const Multiplication& op) { return done(op.group); });
  group.completed.clear();
  for (const auto& chain : group.chains)
    if (done(chain->group)) group.completed.push_back(chain);
  std::erase_if(group.chains, [&](const auto& chain) { return done(chain->group); });
}

Warpgroup* own_warpgroup() {
  const auto number = static_cast<size_t>(machine.thread->warpgroup());
  return number < machine.cta->warpgroups.size() ? &machine.cta->warpgroups[number] : nullptr;
}

void nothing(Warpgroup&, void* const*, Site) {}

}  // namespace

void wgmma_fence(const RegisterArray* arrays, int count, Site site) {
  if (mutated("wgmma_fence", "drop", site)) return;
  for (int i = 0; i < count; ++i) name_registers(*machine.thread, arrays[i], site);
  warpgroup_collective("wgmma_fence", nullptr, nothing, site);
}

void wgmma(const WgmmaArguments& arguments, Site site) {
  Thread& self = *machine.thread;
  if (const Warpgroup* group = own_warpgroup()) {
    use_registers(self, arguments.c, static_cast<size_t>(arguments.count) * 4, true, group->open_group, site);
    if (arguments.a_registers) use_registers(self, arguments.a_registers, 16, false, group->open_group, site);
  }
  auto copy = arguments;
  warpgroup_collective("wgmma", &copy, issue, site);
  const Warpgroup& group = *own_warpgroup();
  if (recording) note_product(2.0 * 16 * 16 * 2 * arguments.count, &group, group.open_group);  // 16 rows a warp
}

void wgmma_commit(Site site) {
  if (mutated("wgmma_commit", "drop", site)) return;
  warpgroup_collective(
      "wgmma_commit", nullptr, [](Warpgroup& group, void* const*, Site) { ++group.open_group; }, site);
}

void wgmma_wait(int groups_left_pending, const RegisterArray* arrays, int count, Site site) {
  if (mutated("wgmma_wait", "drop", site)) return;
  if (mutated("wgmma_wait", "one group fewer", site)) ++groups_left_pending;
  Thread& self = *machine.thread;
  warpgroup_collective(
      "wgmma_wait", &groups_left_pending,
      [](Warpgroup& group, void* const* arguments, Site here) {
        const auto pending = static_cast<uint64_t>(*static_cast<const int*>(arguments[0]));
        if (group.open_group > pending) group.complete_groups = std::max(group.complete_groups, group.open_group - pending);
        complete(group, arguments, here);
      },
      site);
  Warpgroup& group = *own_warpgroup();
  if (recording && group.complete_groups > 0) note_wait(&group, group.complete_groups - 1, site);
  self.tensor_engine = group.engine;
  self.tensor_known = group.complete_time;
  const auto t = static_cast<size_t>(self.id % warpgroup_size);
  check_waited_registers(self, group.complete_groups, arrays, count, site);
  for (const Registers& r : self.in_use) {
    if (r.group >= group.complete_groups || !r.accumulators || r.spoiled) continue;
    for (const auto& chain : group.completed)
      if (float* c = chain->registers[t]; reinterpret_cast<uintptr_t>(c) == r.begin)
        for (int i = 0; i < chain->columns / 2; ++i)
          c[i] = chain->matrix[element_of(static_cast<int>(t), i, chain->columns)];
  }
  std::erase_if(self.in_use, [&](const Registers& r) { return r.group < group.complete_groups; });
}

void end_wgmma(Cta& cta) {
  for (const Warpgroup& group : cta.warpgroups)
    for (const Multiplication& op : group.pipeline)
      report_once("registers", place_of(op.site), place_of(op.site), [&] {
        const auto first = static_cast<size_t>(&group - cta.warpgroups.data()) * warpgroup_size;
        return "The wgmma at " + describe_place(place_of(op.site)) + " (" + describe_thread(cta.threads[first]) +
               ") is in flight when the CTA ends: no wgmma_wait has covered it.";
      });
}

}  // namespace simulator
