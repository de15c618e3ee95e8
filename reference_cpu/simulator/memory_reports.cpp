/// @file
/// The words of reports about memory.
#include "memory.h"

namespace simulator {

namespace {

// Which reads memory as an engine.
const char* instruction_of_engine(Stamp s) {
  for (const Warpgroup& w : machine.cta->warpgroups)
    if (w.engine == s.thread()) return "wgmma";
  return "store of the copy engine";
}

}  // namespace

void report_race(const char* space, const void* address, size_t bytes, bool write,
                                              Thread& thread, uint32_t place, bool other_write, Stamp other,
                                              bool other_cta) {
  const bool engine = !other_cta && thread.cta->is_engine(other);
  // A tile that has landed, but not for this thread, is not less in flight than one that has not.
  if (engine && other_write) {
    report_once("async", place, other.place(), [&] {
      return describe_place(place) + " (" + describe_thread(thread) + ") " + (write ? "writes " : "reads ") +
             std::to_string(bytes) + " bytes of " + describe_address(address) + " while the copy issued at " +
             describe_place(other.place()) + " is in flight: nothing has waited for it.";
    });
    return;
  }
  report_once("race", place, other.place(), [&] {
    std::string text = "race on " + std::string(space) + " memory: " + describe_place(place) + " (" +
                       describe_thread(thread) + ") " + (write ? "writes " : "reads ") + std::to_string(bytes) +
                       " bytes of " + describe_address(address) + ", which ";
    if (other_cta) {
      text += describe_place(other.place()) + " " + (other_write ? "wrote" : "read") +
              " in another CTA of the same launch; CTAs run in no order.";
    } else if (engine) {
      text += "the " + std::string(instruction_of_engine(other)) + " at " + describe_place(other.place()) +
              " reads: nothing has waited for it.";
    } else {
      Thread& them = thread.cta->threads[other.thread()];
      text += describe_place(other.place()) + " (warp " + std::to_string(them.warp()) + ", lane " +
              std::to_string(them.lane()) + ") " + (other_write ? "wrote" : "read") +
              ", and no barrier orders the two.";
    }
    return text;
  });
}

void report_in_flight(const void* address, size_t bytes, bool write, Thread& thread,
                                                   uint32_t place, Stamp writer) {
  report_once("async", place, place_of_copy(writer.who), [&] {
    return describe_place(place) + " (" + describe_thread(thread) + ") " + (write ? "writes " : "reads ") +
           std::to_string(bytes) + " bytes of " + describe_address(address) + " while " +
           describe_copy(writer.who) + " is in flight: nothing has waited for it.";
  });
}

// Kept until the CTA ends: if another thread writes it too late, that is a race, and one report is enough.
void note_unwritten(const void* address, size_t bytes, Thread& thread, uint32_t place) {
  std::string& text = machine.unwritten[place];
  if (text.empty())
    text = describe_place(place) + " (" + describe_thread(thread) + ") reads " + std::to_string(bytes) + " bytes of " +
           describe_address(address) + ", which no thread of this CTA has written.";
}

void report_bounds(const void* address, size_t bytes, bool write, Thread& thread,
                                                uint32_t place) {
  report_once("out of bounds", place, place, [&] {
    return describe_place(place) + " (" + describe_thread(thread) + ") " + (write ? "writes " : "reads ") +
           std::to_string(bytes) + " bytes outside every allocation: " + describe_address(address) + ".";
  });
}

// The GPU traps here, and so may the CPU: the launch ends.
[[noreturn]] void fail_misaligned(const void* address, size_t bytes, size_t alignment,
                                                            Thread& thread, uint32_t place) {
  const std::string text = describe_place(place) + " (" + describe_thread(thread) + ") accesses " + std::to_string(bytes) +
                           " bytes at " + describe_address(address) + ", whose address is not a multiple of " +
                           std::to_string(alignment) + "; the GPU traps here.";
  machine.reports.push_back({"misaligned", text});
  abandon(text);
}

}  // namespace simulator
