/// @file
/// cp.async: copies that fly until the issuing thread waits for their group.
#include <cstring>

#include "machine.h"
#include "timeline.h"

namespace simulator {
namespace {

void deliver(Copy& copy) {
  if (copy.delivered) return;
  copy.delivered = true;
  std::memcpy(copy.destination, copy.source, static_cast<size_t>(copy.valid));
  std::memset(copy.destination + copy.valid, 0, static_cast<size_t>(copy.bytes - copy.valid));
}

void complete(Thread& thread, const std::vector<int>& group) {
  for (int index : group) {
    Copy& copy = thread.cta->copies[index];
    deliver(copy);
    landed(copy.destination, static_cast<size_t>(copy.bytes), thread, index, place_of(copy.site));
  }
}

// For the timeline: the lanes of a warp copy together.
const void* gates_of(const Thread& t) { return &t.cta->threads[static_cast<size_t>(t.warp() * warp_size)].groups; }

}  // namespace

void async_copy(void* destination, const void* source, int bytes, int valid, Site site) {
  Thread& self = *machine.thread;
  ++machine.ledger.copy_instructions;
  if (valid < 0 || valid > bytes) fail("async", "cp.async asks for a number of valid bytes outside 0..16.", site);
  const int index = static_cast<int>(self.cta->copies.size());
  self.cta->copies.push_back({self.id, static_cast<unsigned char*>(destination), static_cast<const unsigned char*>(source),
                              bytes, valid, false, site});
  if (valid > 0)
    touch(source, static_cast<size_t>(valid), static_cast<size_t>(bytes), Access::read, self, place_of(site));
  if (!touch_in_flight(destination, static_cast<size_t>(bytes), self, index, place_of(site))) {
    self.cta->copies.pop_back();
    return;
  }
  if (recording) note_copy(Operation::Kind::copy, bytes, gates_of(self), self.commits, true, site);
  std::memset(destination, 0xFF, static_cast<size_t>(bytes));  // poison: nobody may read it yet
  const Schedule schedule = machine.options.schedule;
  if (schedule == Schedule::early || (schedule == Schedule::random && machine.random() % 2)) deliver(self.cta->copies[index]);
  self.uncommitted.push_back(index);
}

void async_commit(Site site) {
  if (mutated("cp_async_commit", "drop", site)) return;
  Thread& self = *machine.thread;
  self.groups.push_back(std::move(self.uncommitted));
  self.uncommitted.clear();
  ++self.commits;
}

void async_wait(int groups_left_pending, Site site) {
  if (mutated("cp_async_wait", "drop", site)) return;
  if (mutated("cp_async_wait", "one group fewer", site)) ++groups_left_pending;
  Thread& self = *machine.thread;
  while (static_cast<int>(self.groups.size()) > groups_left_pending) {
    complete(self, self.groups.front());
    self.groups.erase(self.groups.begin());
  }
  if (recording && static_cast<int>(self.commits) > groups_left_pending)
    note_wait(gates_of(self), self.commits - 1 - static_cast<uint32_t>(groups_left_pending), site);
}

void finish_copies(Thread& thread) {
  for (const auto& group : thread.groups) complete(thread, group);
  complete(thread, thread.uncommitted);
  thread.groups.clear();
  thread.uncommitted.clear();
}

std::string describe_copy(uint32_t index) {
  const bool box = index & in_flight_box;
  const int thread = box ? machine.cta->loads[index & ~in_flight_box].thread : machine.cta->copies[index].thread;
  return (box ? "the copy that warp " : "the cp.async that warp ") + std::to_string(thread / warp_size) + ", lane " +
         std::to_string(thread % warp_size) + " issued at " + describe_place(place_of_copy(index));
}

uint32_t place_of_copy(uint32_t index) {
  return place_of(index & in_flight_box ? machine.cta->loads[index & ~in_flight_box].site : machine.cta->copies[index].site);
}

}  // namespace simulator
