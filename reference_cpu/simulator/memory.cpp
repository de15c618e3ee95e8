/// @file
/// Global and shared memory: bounds, the ledger's bytes, and the happens-before checker.
///
/// Beside every two bytes of memory lie stamps of the last accesses. An access is a race if a conflicting stamp
/// is not known to have happened before (Thread::knows). Its verdict does not depend on the schedule.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "memory.h"

namespace simulator {
namespace {

// --- the checker -------------------------------------------------------------------------------------------------

template <Access access>
inline bool touch_global(const void* address, size_t offset, size_t bytes, Thread& thread, uint32_t place) {
  Memory& m = *fast_memory;
  constexpr bool write = access != Access::read;
  const Allocation& owner = m.allocations[m.owner[offset / page]];
  if (offset + bytes > owner.end) {  // also nobody's page: end = 0
    report_bounds(address, bytes, write, thread, place);
    return false;
  }
  (write ? machine.ledger.global_written : machine.ledger.global_read) += bytes;
  const Time launch_start = machine.launch_start, cta_start = machine.cta_start;
  const Stamp mine{thread.now, static_cast<uint32_t>(thread.id) | place * most_threads};
  uint64_t fresh = 0;
  GlobalCell* end = m.cells + (offset + bytes + granule - 1) / granule;
  for (GlobalCell* cell = m.cells + offset / granule; cell != end; ++cell) {
    const Time written = cell->writer.time, read = cell->reader.time & ~several_ctas;
    if (written > launch_start && !(access == Access::atomic && is_atomic(cell->writer.place()))) {
      if (written <= cta_start) report_race("global", address, bytes, write, thread, place, true, cell->writer, true);
      else if (!thread.knows(cell->writer))
        report_race("global", address, bytes, write, thread, place, true, cell->writer, false);
    }
    if constexpr (access == Access::read) {
      Time flag = 0;
      if (read <= launch_start) fresh += granule;
      else flag = (cell->reader.time & several_ctas) | (read <= cta_start ? several_ctas : 0);
      cell->reader = {mine.time | flag, mine.who};
    } else {
      if (read > launch_start) {
        if (read <= cta_start || (cell->reader.time & several_ctas))
          report_race("global", address, bytes, true, thread, place, false, cell->reader, true);
        else if (!thread.knows({read, cell->reader.who}))
          report_race("global", address, bytes, true, thread, place, false, cell->reader, false);
      }
      if (written <= launch_start) fresh += granule;
      cell->writer = mine;
    }
  }
  (write ? machine.ledger.global_written_distinct : machine.ledger.global_read_distinct) += std::min(fresh, bytes);
  return true;
}

inline void check_shared_readers(const void* address, size_t cell, size_t bytes, Thread& thread, uint32_t place) {
  Memory& m = *fast_memory;
  auto check = [&](Stamp reader) {
    if (reader.time > thread.all_before && !thread.knows(reader))
      report_race("shared", address, bytes, true, thread, place, false, reader, false);
  };
  const size_t warps = (thread.cta->threads.size() + warp_size - 1) / warp_size;
  for (size_t w = 0; w < warps; ++w) check(m.readers(w)[cell]);
  for (size_t slot : m.used_slots) check(m.readers(slot)[cell]);
}

template <Access access>
inline bool touch_shared(const void* address, size_t offset, size_t bytes, Thread& thread, uint32_t place) {
  Memory& m = *fast_memory;
  constexpr bool write = access != Access::read;
  const size_t end = offset < dynamic_space ? machine.dynamic_bytes : dynamic_space + machine.static_bytes;
  if (offset + bytes > end) {
    report_bounds(address, bytes, write, thread, place);
    return false;
  }
  (write ? machine.ledger.shared_written : machine.ledger.shared_read) += bytes;
  const Stamp mine{thread.now, static_cast<uint32_t>(thread.id) | place * most_threads};
  Stamp* reader = m.readers(static_cast<size_t>(thread.warp()));
  const size_t last = (offset + bytes + granule - 1) / granule;
  for (size_t cell = offset / granule; cell < last; ++cell) {
    const Stamp writer = m.shared_writer[cell];
    if (writer.time > thread.all_before) {
      if (writer.time == in_flight) report_in_flight(address, bytes, write, thread, place, writer);
      else if (!thread.knows(writer) && !(access == Access::atomic && is_atomic(writer.place())))
        report_race("shared", address, bytes, write, thread, place, true, writer, false);
    } else if (access != Access::write && writer.time <= machine.cta_start) {
      note_unwritten(address, bytes, thread, place);
    }
    if constexpr (write) {
      check_shared_readers(address, cell, bytes, thread, place);
      m.shared_writer[cell] = mine;
    } else {
      reader[cell] = mine;
    }
  }
  return true;
}

}  // namespace

Memory& memory() {
  static Memory instance;
  return instance;
}
Memory* const fast_memory = &memory();

bool touch(const void* address, size_t bytes, size_t alignment, Access access, Thread& thread, uint32_t place) {
  const Location at = locate(address);
  if (at.space == Space::other) {  // a fiber's stack, kernel arguments, constants; or a wild pointer
    const auto a = reinterpret_cast<uintptr_t>(address);
    if (a < thread.registers_end && a + bytes > thread.registers_begin)
      touch_registers(address, bytes, access != Access::read, thread, place);
    machine.stray_address = address;
    machine.stray_place = place;
    return true;
  }
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) fail_misaligned(address, bytes, alignment, thread, place);
  if (at.space == Space::beside_shared) {
    report_bounds(address, bytes, access != Access::read, thread, place);
    return false;
  }
  if (at.space == Space::global) {
    if (access == Access::read) return touch_global<Access::read>(address, at.offset, bytes, thread, place);
    if (access == Access::write) return touch_global<Access::write>(address, at.offset, bytes, thread, place);
    return touch_global<Access::atomic>(address, at.offset, bytes, thread, place);
  }
  if (access == Access::read) return touch_shared<Access::read>(address, at.offset, bytes, thread, place);
  if (access == Access::write) return touch_shared<Access::write>(address, at.offset, bytes, thread, place);
  return touch_shared<Access::atomic>(address, at.offset, bytes, thread, place);
}

bool touch_in_flight(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place) {
  if (!is_shared(destination))
    fail("async", "An asynchronous copy must write to shared memory.", machine.cta->copies[copy].site);
  if (!touch(destination, bytes, bytes, Access::write, thread, place)) return false;
  Stamp* writer = fast_memory->shared_writer + locate(destination).offset / granule;
  std::fill_n(writer, bytes / granule, Stamp{in_flight, static_cast<uint32_t>(copy)});
  return true;
}

void landed(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place) {
  Stamp* writer = fast_memory->shared_writer + locate(destination).offset / granule;
  for (size_t i = 0; i < bytes / granule; ++i)
    if (writer[i].time == in_flight && writer[i].who == static_cast<uint32_t>(copy))
      writer[i] = {thread.now, static_cast<uint32_t>(thread.id) | place * most_threads};
}

void wrapped_read(const void* address, size_t bytes, int thread, Site site) {
  touch(address, bytes, bytes, Access::read, machine.cta->threads[thread], place_of(site));
}
void wrapped_write(void* address, size_t bytes, int thread, Site site) {
  touch(address, bytes, bytes, Access::write, machine.cta->threads[thread], place_of(site));
}
void atomic_access(void* address, size_t bytes, Site site) {
  ++machine.ledger.atomics;
  touch(address, bytes, bytes, Access::atomic, *machine.thread, place_of(site) | atomic_place);
}

bool is_shared(const void* address) {
  const Space space = locate(address).space;
  return space == Space::shared || space == Space::beside_shared;
}

void* dynamic_shared_memory() { return machine.dynamic_shared; }

std::string describe_address(const void* address) {
  const Location at = locate(address);
  Memory& m = *fast_memory;
  if (at.space == Space::beside_shared || (at.space == Space::shared && at.offset < dynamic_space))
    return "dynamic shared memory at offset " + std::to_string(static_cast<intptr_t>(at.offset)) + " of " +
           std::to_string(machine.dynamic_bytes);
  if (at.space == Space::shared) return "static shared memory at offset " + std::to_string(at.offset - dynamic_space);
  if (at.space == Space::other) return "memory that is neither global nor shared";
  if (const uint16_t id = m.owner[at.offset / page])
    return "\"" + m.allocations[id].name + "\" at byte " + std::to_string(at.offset - m.allocations[id].begin) + " of " +
           std::to_string(m.allocations[id].end - m.allocations[id].begin);
  // Nobody's: name the nearest allocation below, if any.
  const Allocation* below = nullptr;
  for (const Allocation& a : m.allocations)
    if (a.end && a.begin <= at.offset && (!below || a.begin > below->begin)) below = &a;
  return below ? std::to_string(at.offset - below->end) + " bytes past the end of \"" + below->name + "\""
               : std::string("global memory below every allocation");
}

// --- allocation, and the beginning of launches and CTAs -----------------------------------------------------------

void* allocate(size_t bytes, const char* name) {
  Memory& m = memory();
  const size_t pages = (bytes + page - 1) / page, gap = std::max<size_t>(16, pages / 4);
  if (m.next + (pages + gap) * page > arena_bytes || m.allocations.size() > 60000)
    throw std::runtime_error("The simulated GPU's memory is used up: " + std::to_string(bytes) + " bytes more were asked for.");
  const size_t begin = m.next;
  m.allocations.push_back({name, begin, begin + bytes});
  std::fill_n(m.owner + begin / page, std::max<size_t>(pages, 1), static_cast<uint16_t>(m.allocations.size() - 1));
  std::memset(m.arena + begin, 0xFF, bytes);  // NaN in every format
  m.next = begin + (pages + gap) * page;
  return m.arena + begin;
}

void free_all() {
  Memory& m = memory();
  auto forget = [](auto* p, size_t count) { madvise(p, count * sizeof(*p), MADV_DONTNEED); };
  forget(m.arena, arena_bytes);
  forget(m.cells, arena_bytes / granule);
  forget(m.owner, arena_bytes / page);
  m.allocations.assign(1, {});
  m.next = page;
}

void start_launch_memory() {
  // Find the block that holds the kernel's static __shared__ variables: its module's thread-local storage.
  machine.static_shared = nullptr;
  machine.static_bytes = 0;
  machine.dynamic_shared = memory().shared;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        auto* block = static_cast<unsigned char*>(info->dlpi_tls_data);
        auto* anchor = static_cast<unsigned char*>(machine.launch->static_shared);
        for (int i = 0; block && i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS && anchor >= block && anchor < block + info->dlpi_phdr[i].p_memsz) {
            machine.static_shared = block;
            machine.static_bytes = info->dlpi_phdr[i].p_memsz;
          }
        return 0;
      },
      nullptr);
  if (machine.static_bytes > static_space)
    throw std::runtime_error("The static __shared__ variables of all kernels in one file take " +
                             std::to_string(machine.static_bytes) + " bytes; the simulated GPU allows 65536.");
}

void start_cta_memory() {
  memory().used_slots.clear();
  std::memset(machine.dynamic_shared, 0xFF, machine.dynamic_bytes);
  if (machine.static_bytes) std::memset(machine.static_shared, 0xFF, machine.static_bytes);
}

void end_cta_memory() {
  for (const auto& read : machine.unwritten) {
    const uint32_t place = read.first;
    const std::string line = describe_place(place);
    const bool races = std::any_of(machine.reported.begin(), machine.reported.end(), [&](const std::string& fault) {
      return fault.starts_with("race: ") && (fault.ends_with(" " + line) || fault.find(" " + line + ",") != fault.npos);
    });
    if (!races) report_once("uninitialized", place, place, [&] { return read.second; });
  }
  machine.unwritten.clear();
}

}  // namespace simulator

// --- what -fsanitize=thread,bounds calls --------------------------------------------------------------------------

namespace {
inline void plain(const void* address, size_t bytes, size_t alignment, simulator::Access access, void* program_counter) {
  if (simulator::machine.thread)
    simulator::touch(address, bytes, alignment, access, *simulator::machine.thread, simulator::place_of(program_counter));
}
}  // namespace

extern "C" {
#define HOOK(name, bytes, alignment, access)                                                          \
  void name(void* address) {                                                                           \
    plain(address, bytes, alignment, simulator::Access::access, __builtin_return_address(0));          \
  }
HOOK(__tsan_read1, 1, 1, read)
HOOK(__tsan_read2, 2, 2, read)
HOOK(__tsan_read4, 4, 4, read)
HOOK(__tsan_read8, 8, 8, read)
HOOK(__tsan_read16, 16, 16, read)
HOOK(__tsan_write1, 1, 1, write)
HOOK(__tsan_write2, 2, 2, write)
HOOK(__tsan_write4, 4, 4, write)
HOOK(__tsan_write8, 8, 8, write)
HOOK(__tsan_write16, 16, 16, write)
// Of a type whose alignment is less than its size: the GPU takes it in pieces.
HOOK(__tsan_unaligned_read2, 2, 1, read)
HOOK(__tsan_unaligned_read4, 4, 1, read)
HOOK(__tsan_unaligned_read8, 8, 1, read)
HOOK(__tsan_unaligned_read16, 16, 1, read)
HOOK(__tsan_unaligned_write2, 2, 1, write)
HOOK(__tsan_unaligned_write4, 4, 1, write)
HOOK(__tsan_unaligned_write8, 8, 1, write)
HOOK(__tsan_unaligned_write16, 16, 1, write)
#undef HOOK
void __tsan_read_range(void* address, size_t bytes) {
  plain(address, bytes, 1, simulator::Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  plain(address, bytes, 1, simulator::Access::write, __builtin_return_address(0));
}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
/// The guard of a function's static variable, in the launcher's code.
char __tsan_atomic8_load(const volatile char* address, int) { return __atomic_load_n(address, __ATOMIC_ACQUIRE); }

/// An index past the end of an array whose size the compiler knows.
void __ubsan_handle_out_of_bounds(void* data, uintptr_t index) {
  if (!simulator::machine.thread) return;
  const uint32_t place = simulator::place_of(__builtin_return_address(0));
  (void)data;
  simulator::report_once("out of bounds", place, place, [&] {
    return simulator::describe_place(place) + " (" + simulator::describe_thread(*simulator::machine.thread) +
           ") indexes an array with " + std::to_string(static_cast<intptr_t>(index)) + ", past its end.";
  });
}
}
