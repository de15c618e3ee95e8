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

#include "machine.h"

namespace simulator {
namespace {

constexpr size_t granule = 2;  // bytes a stamp; accesses to single bytes share it
constexpr size_t page = 4096;
constexpr size_t arena_bytes = size_t{16} << 30;  // address space only
constexpr size_t dynamic_space = size_t{256} << 10, static_space = size_t{64} << 10;
constexpr size_t shared_space = dynamic_space + static_space;
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
  void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("The simulated GPU could not reserve address space for its memory.");
  return static_cast<T*>(p);
}

struct Memory {
  unsigned char* arena = reserve<unsigned char>(arena_bytes);
  GlobalCell* cells = reserve<GlobalCell>(arena_bytes / granule);
  uint16_t* owner = reserve<uint16_t>(arena_bytes / page);  // index into allocations, 0: nobody's
  std::vector<Allocation> allocations{{}};
  size_t next = page;

  unsigned char* shared = reserve<unsigned char>(4 * dynamic_space);
  Stamp* shared_writer = reserve<Stamp>(shared_space / granule);
  Stamp* shared_reader = reserve<Stamp>(most_threads / warp_size * shared_space / granule);  // [warp][cell]
};

Memory& memory() {
  static Memory instance;
  return instance;
}
Memory* const fast_memory = &memory();

// --- where an address lies -------------------------------------------------------------------------------------

enum class Space { global, shared, other };
struct Location {
  Space space;
  size_t offset;  // in the arena, or in the CTA's shared memory (static variables follow the dynamic space)
};

inline Location locate(const void* address) {
  auto a = reinterpret_cast<uintptr_t>(address);
  size_t offset = a - reinterpret_cast<uintptr_t>(fast_memory->arena);
  if (offset < arena_bytes) return {Space::global, offset};
  offset = a - reinterpret_cast<uintptr_t>(fast_memory->shared);
  if (offset < 4 * dynamic_space) return {Space::shared, offset};
  offset = a - reinterpret_cast<uintptr_t>(machine.static_shared);
  if (offset < machine.static_bytes) return {Space::shared, dynamic_space + offset};
  return {Space::other, 0};
}

// --- words for the reports -------------------------------------------------------------------------------------

[[gnu::noinline, gnu::cold]] void report_race(const char* space, const void* address, size_t bytes, bool write,
                                              Thread& thread, uint32_t place, bool other_write, Stamp other,
                                              bool other_cta) {
  std::string key = std::to_string(place) + "," + std::to_string(other_write) +
                    (other_cta ? "cta" : std::to_string(other.place()));
  report_once("race", key, [&] {
    std::string text = "race on " + std::string(space) + " memory: " + describe_place(place) + " (" +
                       describe_thread(thread) + ") " + (write ? "writes " : "reads ") + std::to_string(bytes) +
                       " bytes of " + describe_address(address) + ", which ";
    if (other_cta) {
      text += "another CTA of the same launch " + std::string(other_write ? "wrote" : "read") +
              "; CTAs run in no order.";
    } else {
      Thread& them = thread.cta->threads[other.thread()];
      text += describe_place(other.place()) + " (warp " + std::to_string(them.warp()) + ", lane " +
              std::to_string(them.lane()) + ") " + (other_write ? "wrote" : "read") +
              ", and no barrier orders the two.";
    }
    return text;
  });
}

[[gnu::noinline, gnu::cold]] void report_in_flight(const void* address, size_t bytes, bool write, Thread& thread,
                                                   uint32_t place, Stamp writer) {
  report_once("async", std::to_string(place) + "," + std::to_string(machine.cta->copies[writer.who].site.line),
              [&] {
                return describe_place(place) + " (" + describe_thread(thread) + ") " +
                       (write ? "writes " : "reads ") + std::to_string(bytes) + " bytes of " +
                       describe_address(address) + " while " + describe_copy(static_cast<int>(writer.who)) +
                       " is in flight: nothing has waited for it.";
              });
}

[[gnu::noinline, gnu::cold]] void report_unwritten(const void* address, size_t bytes, Thread& thread,
                                                   uint32_t place) {
  report_once("uninitialized", std::to_string(place), [&] {
    return describe_place(place) + " (" + describe_thread(thread) + ") reads " + std::to_string(bytes) +
           " bytes of " + describe_address(address) + ", which no thread of this CTA has written.";
  });
}

[[gnu::noinline, gnu::cold]] void report_bounds(const void* address, size_t bytes, bool write, Thread& thread,
                                                uint32_t place) {
  report_once("out of bounds", std::to_string(place), [&] {
    return describe_place(place) + " (" + describe_thread(thread) + ") " + (write ? "writes " : "reads ") +
           std::to_string(bytes) + " bytes outside every allocation: " + describe_address(address) + ".";
  });
}

[[gnu::noinline, gnu::cold]] void report_misaligned(const void* address, size_t bytes, Thread& thread,
                                                    uint32_t place) {
  report_once("misaligned", std::to_string(place), [&] {
    return describe_place(place) + " (" + describe_thread(thread) + ") accesses " + std::to_string(bytes) +
           " bytes at " + describe_address(address) + ", which is not a multiple of " + std::to_string(bytes) +
           "; the GPU traps here.";
  });
}

// --- the checker -------------------------------------------------------------------------------------------------

template <Access access>
inline void touch_global(const void* address, size_t offset, size_t bytes, Thread& thread, uint32_t place) {
  Memory& m = *fast_memory;
  constexpr bool write = access != Access::read;
  const Allocation& owner = m.allocations[m.owner[offset / page]];
  if (offset + bytes > owner.end) {  // also nobody's page: end = 0
    report_bounds(address, bytes, write, thread, place);
    return;
  }
  (write ? machine.ledger.global_written : machine.ledger.global_read) += bytes;
  const Time launch_start = machine.launch_start, cta_start = machine.cta_start;
  const Stamp mine{thread.now, static_cast<uint32_t>(thread.id) | place * most_threads};
  uint64_t fresh = 0;
  GlobalCell* end = m.cells + (offset + bytes + granule - 1) / granule;
  for (GlobalCell* cell = m.cells + offset / granule; cell != end; ++cell) {
    const Time written = cell->writer.time, read = cell->reader.time & ~several_ctas;
    if (written > launch_start && access != Access::atomic) {
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
      if (read > launch_start && access == Access::write) {
        if (read <= cta_start || (cell->reader.time & several_ctas))
          report_race("global", address, bytes, true, thread, place, false, cell->reader, true);
        else if (!thread.knows({read, cell->reader.who}))
          report_race("global", address, bytes, true, thread, place, false, cell->reader, false);
      }
      if (written <= launch_start) fresh += granule;
      if (access == Access::write) cell->writer = mine;
    }
  }
  (write ? machine.ledger.global_written_distinct : machine.ledger.global_read_distinct) += std::min(fresh, bytes);
}

inline void check_shared_readers(const void* address, size_t cell, size_t bytes, Thread& thread, uint32_t place) {
  const Memory& m = *fast_memory;
  const size_t warps = (thread.cta->threads.size() + warp_size - 1) / warp_size;
  for (size_t w = 0; w < warps; ++w) {
    Stamp reader = m.shared_reader[w * (shared_space / granule) + cell];
    if (reader.time > thread.all_before && !thread.knows(reader))
      report_race("shared", address, bytes, true, thread, place, false, reader, false);
  }
}

template <bool write>
inline void touch_shared(const void* address, size_t offset, size_t bytes, Thread& thread, uint32_t place) {
  Memory& m = *fast_memory;
  const size_t end = offset < dynamic_space ? machine.dynamic_bytes : dynamic_space + machine.static_bytes;
  if (offset + bytes > end || offset >= shared_space) {
    report_bounds(address, bytes, write, thread, place);
    return;
  }
  (write ? machine.ledger.shared_written : machine.ledger.shared_read) += bytes;
  const Stamp mine{thread.now, static_cast<uint32_t>(thread.id) | place * most_threads};
  Stamp* reader = m.shared_reader + static_cast<size_t>(thread.warp()) * (shared_space / granule);
  const size_t last = (offset + bytes + granule - 1) / granule;
  for (size_t cell = offset / granule; cell < last; ++cell) {
    const Stamp writer = m.shared_writer[cell];
    if (writer.time > thread.all_before) {
      if (writer.time == in_flight) report_in_flight(address, bytes, write, thread, place, writer);
      else if (!thread.knows(writer)) report_race("shared", address, bytes, write, thread, place, true, writer, false);
    } else if (!write && writer.time < machine.cta_start) {
      report_unwritten(address, bytes, thread, place);
    }
    if constexpr (write) {
      check_shared_readers(address, cell, bytes, thread, place);
      m.shared_writer[cell] = mine;
    } else {
      reader[cell] = mine;
    }
  }
}

}  // namespace

void touch(const void* address, size_t bytes, Access access, Thread& thread, uint32_t place) {
  const Location at = locate(address);
  if (at.space == Space::other) return;  // a fiber's stack, kernel arguments, constants
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0 && (bytes & (bytes - 1)) == 0 && bytes <= 16)
    report_misaligned(address, bytes, thread, place);
  if (at.space == Space::global) {
    if (access == Access::read) touch_global<Access::read>(address, at.offset, bytes, thread, place);
    else if (access == Access::write) touch_global<Access::write>(address, at.offset, bytes, thread, place);
    else touch_global<Access::atomic>(address, at.offset, bytes, thread, place);
  } else {
    if (access == Access::read) touch_shared<false>(address, at.offset, bytes, thread, place);
    else touch_shared<true>(address, at.offset, bytes, thread, place);
  }
}

void touch_in_flight(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place) {
  const Location at = locate(destination);
  if (at.space != Space::shared) fail("async", "An asynchronous copy must write to shared memory.", machine.cta->copies[copy].site);
  touch_shared<true>(destination, at.offset, bytes, thread, place);
  for (size_t i = 0; i < bytes / granule; ++i)
    fast_memory->shared_writer[at.offset / granule + i] = {in_flight, static_cast<uint32_t>(copy)};
}

void landed(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place) {
  const Location at = locate(destination);
  for (size_t i = 0; i < bytes / granule; ++i) {
    Stamp& writer = fast_memory->shared_writer[at.offset / granule + i];
    if (writer.time == in_flight && writer.who == static_cast<uint32_t>(copy))
      writer = {thread.now, static_cast<uint32_t>(thread.id) | place * most_threads};
  }
}

void wrapped_read(const void* address, size_t bytes, int thread, Site site) {
  touch(address, bytes, Access::read, machine.cta->threads[thread], place_of(site));
}
void wrapped_write(void* address, size_t bytes, int thread, Site site) {
  touch(address, bytes, Access::write, machine.cta->threads[thread], place_of(site));
}
void atomic_access(void* address, size_t bytes, Site site) {
  ++machine.ledger.atomics;
  touch(address, bytes, Access::atomic, *machine.thread, place_of(site));
}

bool is_shared(const void* address) { return locate(address).space == Space::shared; }

void* dynamic_shared_memory() { return machine.dynamic_shared; }

std::string describe_address(const void* address) {
  const Location at = locate(address);
  Memory& m = *fast_memory;
  if (at.space == Space::shared) {
    if (at.offset < dynamic_space || at.offset >= shared_space)
      return "dynamic shared memory at offset " + std::to_string(at.offset) + " of " +
             std::to_string(machine.dynamic_bytes);
    return "static shared memory at offset " + std::to_string(at.offset - dynamic_space);
  }
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
            machine.static_bytes = std::min<size_t>(info->dlpi_phdr[i].p_memsz, static_space);
          }
        return 0;
      },
      nullptr);
}

void start_cta_memory() {
  std::memset(machine.dynamic_shared, 0xFF, machine.dynamic_bytes);
  if (machine.static_bytes) std::memset(machine.static_shared, 0xFF, machine.static_bytes);
}

}  // namespace simulator

// --- what -fsanitize=thread,bounds calls --------------------------------------------------------------------------

namespace {
inline void plain(const void* address, size_t bytes, simulator::Access access, void* program_counter) {
  if (simulator::machine.thread)
    simulator::touch(address, bytes, access, *simulator::machine.thread, simulator::place_of(program_counter));
}
}  // namespace

extern "C" {
#define HOOK(name, bytes, access) \
  void name(void* address) { plain(address, bytes, simulator::Access::access, __builtin_return_address(0)); }
HOOK(__tsan_read1, 1, read)
HOOK(__tsan_read2, 2, read)
HOOK(__tsan_read4, 4, read)
HOOK(__tsan_read8, 8, read)
HOOK(__tsan_read16, 16, read)
HOOK(__tsan_unaligned_read2, 2, read)
HOOK(__tsan_unaligned_read4, 4, read)
HOOK(__tsan_unaligned_read8, 8, read)
HOOK(__tsan_unaligned_read16, 16, read)
HOOK(__tsan_write1, 1, write)
HOOK(__tsan_write2, 2, write)
HOOK(__tsan_write4, 4, write)
HOOK(__tsan_write8, 8, write)
HOOK(__tsan_write16, 16, write)
HOOK(__tsan_unaligned_write2, 2, write)
HOOK(__tsan_unaligned_write4, 4, write)
HOOK(__tsan_unaligned_write8, 8, write)
HOOK(__tsan_unaligned_write16, 16, write)
#undef HOOK
void __tsan_read_range(void* address, size_t bytes) {
  plain(address, bytes, simulator::Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  plain(address, bytes, simulator::Access::write, __builtin_return_address(0));
}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

/// An index past the end of an array whose size the compiler knows.
void __ubsan_handle_out_of_bounds(void* data, uintptr_t index) {
  if (!simulator::machine.thread) return;
  const uint32_t place = simulator::place_of(__builtin_return_address(0));
  (void)data;
  simulator::report_once("out of bounds", std::to_string(place), [&] {
    return simulator::describe_place(place) + " (" + simulator::describe_thread(*simulator::machine.thread) +
           ") indexes an array with " + std::to_string(static_cast<intptr_t>(index)) + ", past its end.";
  });
}
}
