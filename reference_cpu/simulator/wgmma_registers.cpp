/// @file
/// Whose a register array is: the thread's, or the tensor cores' from the fence to the wait. In the simulator it is an array
/// on a fiber's stack, whose accesses the hooks see.
#include <algorithm>

#include "machine.h"

namespace simulator {
namespace {

uintptr_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

void widen(Thread& t, const Registers& r) {
  t.registers_begin = std::min(t.registers_begin, r.begin);
  t.registers_end = std::max(t.registers_end, r.end);
}

}  // namespace

void name_registers(Thread& t, const RegisterArray& array, Site site) {
  const uintptr_t begin = address_of(array.begin), end = begin + array.bytes;
  for (const Registers& r : t.in_use)
    if (begin < r.end && r.begin < end)
      report_once("registers", place_of(site), place_of(r.site), [&] {
        return describe_place(place_of(site)) + " (" + describe_thread(t) +
               ") names registers to wgmma_fence that the wgmma at " + describe_place(place_of(r.site)) +
               " still uses: no wgmma_wait has covered it.";
      });
  for (Registers& r : t.named)
    if (r.begin == begin && r.end == end) {
      r.clean = true;
      return;
    }
  if (t.named.size() >= 16) t.named.erase(t.named.begin());  // arrays whose scope has ended
  t.named.push_back({begin, end, true, 0, false, false, site});
  widen(t, t.named.back());
}

void use_registers(Thread& t, const void* array, size_t bytes, bool accumulators, uint64_t group, Site site) {
  const uintptr_t begin = address_of(array), end = begin + bytes;
  bool first = true;
  for (Registers& r : t.in_use) {
    if (end <= r.begin || r.end <= begin) continue;
    const bool the_same = accumulators ? r.accumulators && r.begin == begin && r.end == end
                                       : !r.accumulators && r.begin <= begin && end <= r.end;
    if (the_same) {
      r.group = accumulators || r.end - r.begin == bytes ? group : std::max(r.group, group);
      first = false;
    } else {
      report_once("registers", place_of(site), place_of(r.site), [&] {
        return describe_place(place_of(site)) + " (" + describe_thread(t) + ") uses registers for wgmma that the wgmma at " +
               describe_place(place_of(r.site)) + " uses in another way, and no wgmma_wait has come between.";
      });
    }
  }
  if (!first) return;
  const bool handed = std::any_of(t.named.begin(), t.named.end(),
                                  [&](const Registers& r) { return r.begin <= begin && end <= r.end && r.clean; });
  if (!handed)
    report_once("registers", place_of(site), place_of(site), [&] {
      return describe_place(place_of(site)) + " (" + describe_thread(t) + ") gives wgmma " +
             (accumulators ? "accumulators" : "a factor in registers") +
             " that no wgmma_fence has named since the thread last touched them.";
    });
  for (Registers& r : t.in_use)  // neighbours of one array
    if (!accumulators && !r.accumulators && r.group == group && r.end == begin) {
      r.end = end;
      widen(t, r);
      return;
    }
  t.in_use.push_back({begin, end, false, group, accumulators, false, site});
  widen(t, t.in_use.back());
}

void check_waited_registers(Thread& thread, uint64_t complete_groups, const RegisterArray* arrays, int count, Site site) {
  auto is_named = [&](const Registers& r) {
    return std::any_of(arrays, arrays + count, [&](const RegisterArray& a) {
      return address_of(a.begin) <= r.begin && r.end <= address_of(a.begin) + a.bytes;
    });
  };
  for (const Registers& r : thread.in_use) {
    const bool complete = r.group < complete_groups;
    if (complete && !is_named(r))
      report_once("registers", place_of(site), place_of(r.site), [&] {
        return describe_place(place_of(site)) + " (" + describe_thread(thread) + ") waits for the wgmma at " +
               describe_place(place_of(r.site)) + ", but does not name its " +
               (r.accumulators ? "accumulators" : "factor in registers") +
               ": the compiler may move accesses to them before the wait.";
      });
    if (!complete)
      for (int i = 0; i < count; ++i)
        if (const uintptr_t begin = address_of(arrays[i].begin); begin < r.end && r.begin < begin + arrays[i].bytes)
          report_once("registers", place_of(site), place_of(r.site), [&] {
            return describe_place(place_of(site)) + " (" + describe_thread(thread) + ") names registers of the wgmma at " +
                   describe_place(place_of(r.site)) + ", for which it does not wait: its group is among those left pending.";
          });
  }
}

void touch_registers(const void* address, size_t bytes, bool write, Thread& thread, uint32_t place) {
  const uintptr_t begin = address_of(address), end = begin + bytes;
  for (Registers& r : thread.in_use) {
    if (end <= r.begin || r.end <= begin) continue;
    r.spoiled = true;
    report_once("registers", place, place_of(r.site), [&] {
      return describe_place(place) + " (" + describe_thread(thread) + ") " + (write ? "writes" : "reads") + " register " +
             std::to_string((std::max(begin, r.begin) - r.begin) / 4) + " of the " +
             (r.accumulators ? "accumulators" : "factor in registers") + " of the wgmma at " +
             describe_place(place_of(r.site)) + ", which is in flight: no wgmma_wait has covered it.";
    });
  }
  for (Registers& r : thread.named)
    if (begin < r.end && r.begin < end) r.clean = false;
}

}  // namespace simulator
