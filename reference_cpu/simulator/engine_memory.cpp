/// @file
/// What engines do to shared memory: the copy engine and the tensor cores reach it through the async proxy, which sees a
/// thread's ordinary stores only behind a fence.proxy.async (PTX ISA, "Memory Consistency Model: Proxies").
#include <algorithm>

#include "memory.h"

namespace simulator {
namespace {

bool within(size_t offset, size_t bytes) {
  const size_t end = offset < dynamic_space ? machine.dynamic_bytes : dynamic_space + machine.static_bytes;
  return offset + bytes <= end;
}

size_t static_window() { return (machine.dynamic_bytes + 1023) / 1024 * 1024; }

[[gnu::noinline, gnu::cold]] void report_proxy(const char* access, const unsigned char* address, const Thread& thread,
                                               uint32_t place, Stamp writer) {
  report_once("proxy", place, writer.place(), [&] {
    return describe_place(place) + " (" + describe_thread(thread) + ") has the async proxy " + access + " " +
           describe_address(address) + ", which " + describe_place(writer.place()) + " (warp " +
           std::to_string(writer.thread() / warp_size) + ", lane " + std::to_string(writer.thread() % warp_size) +
           ") wrote: that thread needs fence_proxy_async() between its store and the barrier.";
  });
}

// A write is known to `thread`, and to the async proxy if a thread made it.
void check_writer(const char* access, const unsigned char* address, size_t bytes, bool write, Stamp writer, Thread& thread,
                  uint32_t place) {
  if (writer.time == in_flight) {
    report_in_flight(address, bytes, write, thread, place, writer);
    return;
  }
  if (writer.time <= machine.cta_start) {
    if (!write) note_unwritten(address, bytes, thread, place);
    return;
  }
  if (!thread.knows(writer)) report_race("shared", address, bytes, write, thread, place, true, writer, false);
  else if (!thread.cta->is_engine(writer) && !thread.knows_fenced(writer))
    report_proxy(access, address, thread, place, writer);
}

}  // namespace

bool engine_read(const void* address, size_t bytes, Thread* const* issuers, int count, size_t slot, Stamp stamp,
                 Stamp& good) {
  Memory& m = *fast_memory;
  const size_t offset = locate(address).offset;
  if (!within(offset, bytes)) {
    report_bounds(address, bytes, false, *issuers[0], stamp.place());
    return false;
  }
  if (std::find(m.used_slots.begin(), m.used_slots.end(), slot) == m.used_slots.end()) m.used_slots.push_back(slot);
  Stamp* readers = m.readers(slot);
  const size_t first = offset / granule, last = (offset + bytes) / granule;
  for (size_t cell = first; cell < last; ++cell) {
    readers[cell] = stamp;
    const Stamp writer = m.shared_writer[cell];
    if (writer.time == good.time && writer.who == good.who && writer.time != 0) continue;
    good = writer;
    for (int i = 0; i < count; ++i)
      check_writer("read", static_cast<const unsigned char*>(address) + (cell - first) * granule, granule, false, writer,
                   *issuers[i], stamp.place());
  }
  return true;
}

void engine_write(void* address, size_t bytes, Thread& thread, uint32_t load, uint32_t place) {
  Memory& m = *fast_memory;
  const size_t offset = locate(address).offset;
  if (locate(address).space != Space::shared || !within(offset, bytes)) {
    report_bounds(address, bytes, true, thread, place);
    abandon(machine.reports.back().text);
  }
  machine.ledger.shared_written += bytes;
  const size_t first = offset / granule, last = (offset + bytes) / granule;
  auto at = [&](size_t cell) { return static_cast<unsigned char*>(address) + (cell - first) * granule; };
  Stamp good{};
  for (size_t cell = first; cell < last; ++cell) {
    const Stamp writer = m.shared_writer[cell];
    if (writer.time == good.time && writer.who == good.who && cell != first) continue;
    good = writer;
    check_writer("overwrite", at(cell), granule, true, writer, thread, place);
  }
  auto check_readers = [&](const Stamp* readers) {
    Stamp last_good{};
    for (size_t cell = first; cell < last; ++cell) {
      const Stamp reader = readers[cell];
      if (reader.time == last_good.time && reader.who == last_good.who) continue;
      last_good = reader;
      if (reader.time > thread.all_before && !thread.knows(reader))
        report_race("shared", at(cell), granule, true, thread, place, false, reader, false);
    }
  };
  const size_t warps = (thread.cta->threads.size() + warp_size - 1) / warp_size;
  for (size_t w = 0; w < warps; ++w) check_readers(m.readers(w));
  for (size_t slot : m.used_slots) check_readers(m.readers(slot));
  std::fill(m.shared_writer + first, m.shared_writer + last, Stamp{in_flight, load});
}

void written_by_engine(void* address, size_t bytes, uint32_t load, Stamp stamp) {
  Stamp* writer = fast_memory->shared_writer + locate(address).offset / granule;
  for (size_t i = 0; i < bytes / granule; ++i)
    if (writer[i].time == in_flight && writer[i].who == load) writer[i] = stamp;
}

uint32_t shared_window(const void* address) {
  const size_t offset = locate(address).offset;
  if (offset < dynamic_space) return static_cast<uint32_t>(offset);
  const auto base = reinterpret_cast<uintptr_t>(machine.static_shared) / 1024 * 1024;
  return static_cast<uint32_t>(static_window() + (reinterpret_cast<uintptr_t>(address) - base));
}

unsigned char* shared_at(uint32_t window) {
  if (window < machine.dynamic_bytes) return machine.dynamic_shared + window;
  const auto base = reinterpret_cast<uintptr_t>(machine.static_shared) / 1024 * 1024;
  const uintptr_t address = base + window - static_window(), begin = reinterpret_cast<uintptr_t>(machine.static_shared);
  if (window < static_window() || address < begin || address >= begin + machine.static_bytes) return nullptr;
  return reinterpret_cast<unsigned char*>(address);
}

}  // namespace simulator
