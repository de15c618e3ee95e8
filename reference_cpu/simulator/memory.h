/// @file
/// The memory of the simulated GPU and what lies beside it: stamps of the last accesses. Only the units that check
/// accesses include it.
#pragma once

#include <sys/mman.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "machine.h"

namespace simulator {

constexpr size_t granule = 2;  // bytes a stamp; accesses to single bytes share it
constexpr size_t page = 4096;
constexpr size_t arena_bytes = size_t{16} << 30;  // address space only
constexpr size_t dynamic_space = size_t{256} << 10, static_space = size_t{64} << 10;
constexpr size_t shared_space = dynamic_space + static_space;
constexpr size_t shared_margin = size_t{1} << 20;  // before and behind the dynamic space, to catch wrong indices
constexpr size_t tensor_slots = most_threads / warp_size, store_slots = tensor_slots + most_threads / warpgroup_size;
constexpr size_t reader_slots = store_slots + most_threads / warp_size;
constexpr Time several_ctas = 0x80000000;  // flag in GlobalCell::reader.time

struct GlobalCell {
  Stamp writer;
  Stamp reader;  // the last; the flag says that other CTAs of this launch read it too
};

struct Allocation {
  std::string name;
  size_t begin, end;  // offsets in the arena
};

template <typename T>
T* reserve(size_t count) {
  void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("The simulated GPU could not reserve address space for its memory.");
  return static_cast<T*>(p);
}

struct Memory {
  unsigned char* arena = reserve<unsigned char>(arena_bytes);
  GlobalCell* cells = reserve<GlobalCell>(arena_bytes / granule);
  uint16_t* owner = reserve<uint16_t>(arena_bytes / page);  // index into allocations, 0: nobody's
  std::vector<Allocation> allocations{{}};
  size_t next = page;

  unsigned char* shared = reserve<unsigned char>(2 * shared_margin + dynamic_space) + shared_margin;
  Stamp* shared_writer = reserve<Stamp>(shared_space / granule);
  /// The last reader of each cell: one slot a warp, then one a warpgroup for its tensor cores, then one a warp for the
  /// stores of the copy engine. [slot][cell]
  Stamp* shared_reader = reserve<Stamp>(reader_slots * (shared_space / granule));
  Stamp* readers(size_t slot) { return shared_reader + slot * (shared_space / granule); }
  std::vector<size_t> used_slots;  ///< in the running CTA, behind those of its warps
};

Memory& memory();
extern Memory* const fast_memory;

// --- where an address lies -------------------------------------------------------------------------------------

enum class Space { global, shared, beside_shared, other };
struct Location {
  Space space;
  size_t offset;  // in the arena, or in the CTA's shared memory (static variables follow the dynamic space)
};

inline Location locate(const void* address) {
  auto a = reinterpret_cast<uintptr_t>(address);
  size_t offset = a - reinterpret_cast<uintptr_t>(fast_memory->arena);
  if (offset < arena_bytes) return {Space::global, offset};
  offset = a - reinterpret_cast<uintptr_t>(fast_memory->shared);
  if (offset < dynamic_space) return {Space::shared, offset};
  if (offset + shared_margin < 2 * shared_margin + dynamic_space) return {Space::beside_shared, offset};
  offset = a - reinterpret_cast<uintptr_t>(machine.static_shared);
  if (offset < machine.static_bytes) return {Space::shared, dynamic_space + offset};
  return {Space::other, 0};
}

// --- words for the reports (memory_reports.cpp) --------------------------------------------------------------------

[[gnu::cold]] void report_race(const char* space, const void* address, size_t bytes, bool write, Thread& thread,
                               uint32_t place, bool other_write, Stamp other, bool other_cta);
[[gnu::cold]] void report_in_flight(const void* address, size_t bytes, bool write, Thread& thread, uint32_t place,
                                    Stamp writer);
[[gnu::cold]] void note_unwritten(const void* address, size_t bytes, Thread& thread, uint32_t place);
[[gnu::cold]] void report_bounds(const void* address, size_t bytes, bool write, Thread& thread, uint32_t place);
[[noreturn]] void fail_misaligned(const void* address, size_t bytes, size_t alignment, Thread& thread, uint32_t place);

}  // namespace simulator
