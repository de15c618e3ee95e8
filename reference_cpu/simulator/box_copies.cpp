/// @file
/// The copy engine: boxes of tensors between global and shared memory (PTX ISA, "Tensors" and "cp.async.bulk.tensor"; CUDA
/// Driver API, cuTensorMapEncodeTiled).
#include <cstring>
#include <stdexcept>

#include "machine.h"
#include "memory.h"
#include "timeline.h"

namespace simulator {
namespace {

constexpr uint64_t map_magic = 0x54656E736F724D61u;
constexpr size_t piece = 16;                  // bytes that the swizzle moves as one
constexpr size_t most_box_bytes = 228 << 10;  // what the driver accepts: an SM's shared memory

// An address of shared memory, swizzled: of its bits 4..6 as many take part as the span has, with as many from bit 7 on.
unsigned char* swizzled(unsigned char* address, const EncodedMap& map) {
  const auto a = reinterpret_cast<uintptr_t>(address);
  return reinterpret_cast<unsigned char*>(a ^ ((a >> 7 << 4) & (map.span - 16u)));
}

size_t row_bytes(const EncodedMap& map) { return map.box[0] * map.element; }
size_t box_bytes(const EncodedMap& map) {
  size_t bytes = map.element;
  for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}
// Its place in shared memory, up to a whole line of the swizzle.
size_t covered_bytes(const EncodedMap& map) { return (box_bytes(map) + 127) / 128 * 128; }

// Calls visit(row, global, begin, end) for each innermost row of the box: its number, the global address of its first
// element, and which of its bytes lie inside the tensor.
template <typename Visit>
void for_each_row(const Box& box, Visit visit) {
  const EncodedMap& map = box.map;
  const int element = map.element;
  const int64_t width = map.box[0], left = box.at[0], right = static_cast<int64_t>(map.size[0]) - left;
  const int64_t begin = std::clamp<int64_t>(-left, 0, width), end = std::clamp<int64_t>(right, begin, width);
  uint32_t i[5] = {};
  const size_t rows = box_bytes(map) / row_bytes(map);
  for (size_t row = 0; row < rows; ++row) {
    int64_t offset = left * element;
    bool inside = true;
    for (int k = 1; k < map.rank; ++k) {
      const int64_t x = int64_t{box.at[k]} + i[k];
      inside &= x >= 0 && x < static_cast<int64_t>(map.size[k]);
      offset += x * static_cast<int64_t>(map.stride[k]);
    }
    visit(row, reinterpret_cast<unsigned char*>(map.base + static_cast<uint64_t>(offset)),
          static_cast<int>(inside ? begin : 0) * element, static_cast<int>(inside ? end : 0) * element);
    for (int k = 1; k < map.rank && ++i[k] == map.box[k]; ++k) i[k] = 0;
  }
}

void land(BoxLoad& load, uint32_t index) {
  load.delivered = true;
  const size_t width = row_bytes(load.box.map);
  for_each_row(load.box, [&](size_t row, const unsigned char* global, int begin, int end) {
    unsigned char line[128] = {};
    if (begin < end && load.readable) std::memcpy(line + begin, global + begin, static_cast<size_t>(end - begin));
    unsigned char* shared = load.destination + row * width;
    for (size_t p = 0; p < width; p += piece) std::memcpy(swizzled(shared + p, load.box.map), line + p, piece);
  });
  Mbarrier& barrier = *load.barrier;
  written_by_engine(load.destination, covered_bytes(load.box.map), index | in_flight_box,
                    {engine_time(barrier.engine), barrier.engine | place_of(load.site) * most_threads});
  complete_bytes(barrier, load);
}

void carry_out(BoxStore& store) {
  if (store.delivered) return;
  store.delivered = true;
  const size_t width = row_bytes(store.box.map);
  for_each_row(store.box, [&](size_t row, unsigned char* global, int begin, int end) {
    unsigned char line[128];
    auto* shared = const_cast<unsigned char*>(store.source) + row * width;
    for (size_t p = 0; p < width; p += piece) std::memcpy(line + p, swizzled(shared + p, store.box.map), piece);
    if (begin < end) std::memcpy(global + begin, line + begin, static_cast<size_t>(end - begin));
  });
}

Box box_of(const char* instruction, const void* map, const int* at, int rank, Site site) {
  Box box;
  std::memcpy(&box.map, map, sizeof box.map);
  if (box.map.magic != map_magic)
    fail("async", std::string(instruction) + " was given a tensor map that tensor_map() did not make.", site);
  if (box.map.rank != rank)
    fail("async",
         std::string(instruction) + " has " + std::to_string(rank) + " coordinates, its tensor map " +
             std::to_string(box.map.rank) + " dimensions.",
         site);
  std::copy(at, at + rank, box.at);
  // The H200 stops with "illegal instruction" here.
  if (at[0] * box.map.element % 16 != 0)
    fail("misaligned",
         std::string(instruction) + " names coordinate " + std::to_string(at[0]) +
             " in the innermost dimension; it must be a multiple of " + std::to_string(16 / box.map.element) +
             " elements, 16 bytes.",
         site);
  return box;
}

void check_shared(const char* instruction, const void* shared, Site site) {
  if (!is_shared(shared))
    fail("async", std::string(instruction) + " needs an address in shared memory; this is none.", site);
  if (reinterpret_cast<uintptr_t>(shared) % 128 != 0)
    fail("misaligned",
         std::string(instruction) + " needs an address in shared memory that is a multiple of 128; this is " +
             describe_address(shared) + ".",
         site);
}

// The global side: bounds, races and the ledger, for the bytes inside the tensor. False if some lie outside every
// allocation.
bool touch_rows(const Box& box, Access access, Site site) {
  bool good = true;
  const uint32_t place = place_of(site);
  for_each_row(box, [&](size_t, unsigned char* global, int begin, int end) {
    if (begin < end && locate(global + begin).space != Space::global)
      fail("address", "The tensor map describes memory that is not the GPU's global memory.", site);
    if (begin < end && good)
      good = touch(global + begin, static_cast<size_t>(end - begin), box.map.element, access, *machine.thread, place);
  });
  return good;
}

bool lands_at_issue() {
  const Schedule schedule = machine.options.schedule;
  return schedule == Schedule::early || (schedule == Schedule::random && machine.random() % 4 == 0);
}

}  // namespace

void encode_tensor_map(void* map, const void* base, int rank, const uint64_t* size, const uint64_t* stride,
                       const uint32_t* box, int element, int span) {
  auto refuse = [](const std::string& why) {
    throw std::runtime_error("The tensor map is refused: " + why + " (cuTensorMapEncodeTiled).");
  };
  auto of = [](const char* what, int i) { return std::string(what) + " of dimension " + std::to_string(i) + " is "; };
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) refuse("its own address must be a multiple of 64");
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0 || base == nullptr)
    refuse("the tensor's address must be a multiple of 16 and not null; its remainder is " +
           std::to_string(reinterpret_cast<uintptr_t>(base) % 16));
  EncodedMap encoded{};
  encoded.magic = map_magic;
  encoded.base = reinterpret_cast<uint64_t>(base);
  encoded.rank = rank;
  encoded.element = static_cast<uint16_t>(element);
  encoded.span = static_cast<uint16_t>(span);
  for (int i = 0; i < rank; ++i) {
    if (size[i] < 1 || size[i] > uint64_t{1} << 32)
      refuse(of("the size", i) + std::to_string(size[i]) + "; 1 to 4294967296 elements are possible");
    if (box[i] < 1 || box[i] > 256) refuse(of("the box's extent", i) + std::to_string(box[i]) + "; 1 to 256 are possible");
    if (i > 0 && (stride[i - 1] % 16 != 0 || stride[i - 1] >= uint64_t{1} << 40))
      refuse(of("the stride", i) + std::to_string(stride[i - 1]) + " bytes; it must be a multiple of 16 and below 2^40");
    encoded.size[i] = size[i];
    encoded.stride[i] = i > 0 ? stride[i - 1] : encoded.element;
    encoded.box[i] = box[i];
  }
  const size_t width = row_bytes(encoded);
  if (width > encoded.span)
    refuse("the box is " + std::to_string(width) + " bytes wide; the " + std::to_string(span) +
           "-byte swizzle allows at most " + std::to_string(span));
  if (width % 16 != 0) refuse("the box is " + std::to_string(width) + " bytes wide; it must be a multiple of 16");
  if (box_bytes(encoded) > most_box_bytes)
    refuse("the box has " + std::to_string(box_bytes(encoded)) + " bytes; shared memory has 233472");
  static_assert(sizeof encoded <= 128);
  std::memcpy(map, &encoded, sizeof encoded);
}

void box_load(void* shared, const void* map, void* address, const int* at, int rank, Site site) {
  constexpr const char* instruction = "tma_load";
  Thread& self = *machine.thread;
  Cta& cta = *self.cta;
  ++machine.ledger.copy_instructions;
  BoxLoad load;
  load.thread = self.id;
  load.destination = static_cast<unsigned char*>(shared);
  load.site = site;
  load.box = box_of(instruction, map, at, rank, site);
  check_shared(instruction, shared, site);
  Mbarrier& barrier = find_mbarrier(address, instruction, site);
  if (barrier.fence_time == 0 || !self.knows({barrier.fence_time, barrier.init_thread}))
    report_once("proxy", place_of(site), place_of(barrier.site), [&] {
      return describe_place(place_of(site)) + " (" + describe_thread(self) + ") names " + describe_mbarrier(barrier) +
             ", to the copy engine, for which that is not visible: fence_mbarrier_init is missing between the "
             "initialization "
             "and the barrier.";
    });
  load.bytes = box_bytes(load.box.map);
  load.barrier = &barrier;
  load.phase = barrier.phase;
  load.readable = touch_rows(load.box, Access::read, site);
  const auto index = static_cast<uint32_t>(cta.loads.size());
  const size_t covered = covered_bytes(load.box.map);
  engine_write(shared, covered, self, index | in_flight_box, place_of(site));
  cta.loads.push_back(load);
  ++barrier.in_flight;
  if (recording) note_copy(Operation::Kind::copy, static_cast<double>(load.bytes), &barrier, load.phase, false, site);
  std::memset(shared, 0xFF, covered);  // poison: nobody may read it yet
  if (lands_at_issue()) land(cta.loads.back(), index);
}

void box_store(const void* map, const void* shared, const int* at, int rank, Site site) {
  constexpr const char* instruction = "tma_store";
  Thread& self = *machine.thread;
  ++machine.ledger.copy_instructions;
  BoxStore store{site, 0, false, box_of(instruction, map, at, rank, site), static_cast<const unsigned char*>(shared)};
  check_shared(instruction, shared, site);
  for (int i = 0; i < rank; ++i)  // the H200 stops with "illegal instruction" here
    if (at[i] < 0)
      fail("async",
           "tma_store names coordinate " + std::to_string(at[i]) + " in dimension " + std::to_string(i) +
               "; a store may pass the tensor's end, but not begin before it.",
           site);
  if (self.store_engine == no_engine) self.store_engine = new_engine(site);
  store.time = engine_time(self.store_engine);
  Thread* issuers[] = {&self};
  Stamp good{};
  machine.ledger.shared_read += box_bytes(store.box.map);
  if (!engine_read(shared, box_bytes(store.box.map), issuers, 1, store_slots + static_cast<size_t>(self.warp()),
                   {store.time, self.store_engine | place_of(site) * most_threads}, good) ||
      !touch_rows(store.box, Access::write, site))
    return;
  if (recording)
    note_copy(Operation::Kind::store, static_cast<double>(box_bytes(store.box.map)), &self.store_groups, self.store_commits,
              false, site);
  if (lands_at_issue()) carry_out(store);
  self.open_stores.push_back(std::move(store));
}

void box_commit(Site site) {
  if (mutated("tma_commit", "drop", site)) return;
  Thread& self = *machine.thread;
  self.store_groups.push_back(std::move(self.open_stores));
  self.open_stores.clear();
  ++self.store_commits;
}

void box_wait_read(int groups_left_pending, Site site) {
  if (mutated("tma_wait_read", "drop", site)) return;
  if (mutated("tma_wait_read", "one group fewer", site)) ++groups_left_pending;
  Thread& self = *machine.thread;
  while (static_cast<int>(self.store_groups.size()) > groups_left_pending) {
    for (BoxStore& store : self.store_groups.front()) {
      carry_out(store);
      self.store_known = store.time;
    }
    self.store_groups.erase(self.store_groups.begin());
  }
  if (recording && static_cast<int>(self.store_commits) > groups_left_pending)
    note_wait(&self.store_groups, self.store_commits - 1 - static_cast<uint32_t>(groups_left_pending), site);
}

void fence_proxy_async(Site site) {
  if (mutated("fence_proxy_async", "drop", site)) return;
  Thread& self = *machine.thread;
  self.fenced = self.now;
  for (auto& [address, b] : self.cta->mbarriers)
    if (b.init_thread == static_cast<uint32_t>(self.id) && b.fence_time == 0) b.fence_time = self.now;
  self.now = ++machine.clock;  // its later writes are not fenced
}

bool land_copies_that_sleepers_need() {
  Cta& cta = *machine.cta;
  for (Thread& t : cta.threads)
    if (!t.done && t.mbarrier && t.mbarrier->in_flight) {
      Mbarrier* barrier = t.mbarrier;
      for (size_t i = cta.first_in_flight; i < cta.loads.size(); ++i)
        if (!cta.loads[i].delivered && cta.loads[i].barrier == barrier) {
          land(cta.loads[i], static_cast<uint32_t>(i));
          return true;
        }
    }
  return false;
}

void land_at_random() {
  Cta& cta = *machine.cta;
  const uint64_t draw = machine.random();
  if (draw % 2) return;
  while (cta.first_in_flight < cta.loads.size() && cta.loads[cta.first_in_flight].delivered) ++cta.first_in_flight;
  for (size_t i = cta.first_in_flight; i < cta.loads.size(); ++i)
    if (!cta.loads[i].delivered && machine.random() % 2) land(cta.loads[i], static_cast<uint32_t>(i));
}

void drop_box_loads(Cta& cta) {
  for (size_t i = cta.first_in_flight; i < cta.loads.size(); ++i)
    if (const BoxLoad& load = cta.loads[i]; !load.delivered)
      written_by_engine(load.destination, covered_bytes(load.box.map), static_cast<uint32_t>(i) | in_flight_box, {});
}

void end_box_copies(Cta& cta) {
  for (const BoxLoad& load : cta.loads)
    if (!load.delivered || load.phase >= load.barrier->observed)
      report_once("async", place_of(load.site), place_of(load.site), [&] {
        return "The copy that " + describe_place(place_of(load.site)) + " (" +
               describe_thread(cta.threads[static_cast<size_t>(load.thread)]) +
               ") issued is in flight when the CTA ends: nothing has waited for it, and its shared memory goes to another "
               "CTA.";
      });
  for (Thread& t : cta.threads) {
    if (!t.open_stores.empty()) t.store_groups.push_back(std::move(t.open_stores));
    for (auto& group : t.store_groups)
      for (BoxStore& store : group) {
        carry_out(store);
        report_once("async", place_of(store.site), place_of(store.site), [&] {
          return "The store that " + describe_place(place_of(store.site)) + " (" + describe_thread(t) +
                 ") issued still reads its shared memory when the CTA ends: tma_commit and tma_wait_read have not covered "
                 "it.";
        });
      }
    t.store_groups.clear();
    t.open_stores.clear();
  }
}

}  // namespace simulator
