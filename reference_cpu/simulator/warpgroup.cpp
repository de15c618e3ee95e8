/// @file
/// Instructions of a whole warpgroup, and the pool of registers that setmaxnreg shares out (PTX ISA, "Miscellaneous
/// Instructions: setmaxnreg").
#include <algorithm>

#include "machine.h"

namespace simulator {
namespace {

// Grants what waits, as far as the pool lasts.
void grant(Cta& cta) {
  for (Warpgroup& group : cta.warpgroups) {
    const int more = (group.wanted - group.registers) * warpgroup_size;
    if (group.wanted == 0 || more > cta.free_registers) continue;
    cta.free_registers -= more;
    group.registers = group.wanted;
    group.wanted = 0;
    std::vector<Thread*> sleepers;
    sleepers.swap(group.sleepers);
    for (Thread* t : sleepers) wake(*t);
  }
}

void set_registers(bool more, int count, Site site) {
  const char* call = more ? "setmaxnreg_inc" : "setmaxnreg_dec";
  if (mutated(call, "drop", site)) return;
  if (mutated(call, "8 registers more", site)) count += 8;
  struct Request {
    bool more;
    int count;
  } request{more, count};
  warpgroup_collective(
      call, &request,
      [](Warpgroup& group, void* const* arguments, Site here) {
        const auto [rise, wanted] = *static_cast<const Request*>(arguments[0]);
        for (int i = 1; i < warpgroup_size; ++i)
          if (const int other = static_cast<const Request*>(arguments[i])->count; other != wanted)
            fail("registers",
                 "The threads of a warpgroup ask for " + std::to_string(wanted) + " and for " + std::to_string(other) +
                     " registers.",
                 here);
        const std::string numbers =
            std::to_string(wanted) + " registers a thread; the warpgroup has " + std::to_string(group.registers);
        if (wanted % 8 != 0 || wanted < 24 || wanted > 256)
          fail("registers", "setmaxnreg asks for " + numbers + ", and multiples of 8 from 24 to 256 are possible.", here);
        if (rise ? wanted < group.registers : wanted > group.registers)
          fail("registers", (rise ? "setmaxnreg_inc asks for fewer: " : "setmaxnreg_dec keeps more: ") + numbers + ".",
               here);
        group.reallocated = true;
        if (rise) {
          group.wanted = wanted;
          group.wanted_at = here;
        } else {
          machine.cta->free_registers += (group.registers - wanted) * warpgroup_size;
          group.registers = wanted;
        }
        grant(*machine.cta);
      },
      site);
  Thread& self = *machine.thread;
  Warpgroup& group = self.cta->warpgroups[static_cast<size_t>(self.warpgroup())];
  while (group.wanted) {
    group.sleepers.push_back(&self);
    block(call, site);
  }
}

void named(const char* call, int id, int threads, bool sleeps, Site site) {
  if (mutated(call, "drop", site)) return;
  if (mutated(call, "another id in odd warps", site) && machine.thread->warp() % 2) id = id % 15 + 1;
  if (mutated(call, "32 threads more", site)) threads += 32;
  if (mutated(call, "32 threads fewer", site)) threads -= 32;
  if (id < 1 || id > 15)
    fail("barrier", "A named barrier has an id from 1 to 15 (0 is __syncthreads); this is " + std::to_string(id) + ".",
         site);
  if (threads < warp_size || threads > most_threads || threads % warp_size != 0)
    fail("barrier",
         "A named barrier counts whole warps, 32 to 1024 threads; this call says " + std::to_string(threads) + ".", site);
  arrive_at_barrier(call, id, threads, site, sleeps);
}

}  // namespace

void warpgroup_collective(const char* instruction, void* argument, WarpgroupAction action, Site site) {
  Thread& self = *machine.thread;
  Cta& cta = *self.cta;
  const auto number = static_cast<size_t>(self.warpgroup());
  if (number >= cta.warpgroups.size())
    fail("collective",
         std::string(instruction) + " needs a whole warpgroup of 128 threads; the CTA has " +
             std::to_string(cta.threads.size()) + " threads.",
         site);
  Warpgroup& group = cta.warpgroups[number];
  if (group.arrived && (group.instruction != instruction || group.site.line != site.line || group.site.file != site.file))
    fail("collective",
         "The threads of warpgroup " + std::to_string(number) + " do not execute the same instruction: some wait in " +
             group.instruction + " at " + describe_place(place_of(group.site)) + ", this one comes to " + instruction + ".",
         site);
  group.instruction = instruction;
  group.site = site;
  group.arguments[self.id % warpgroup_size] = argument;
  if (++group.arrived < warpgroup_size) {
    block(instruction, site);
    return;
  }
  group.arrived = 0;
  action(group, group.arguments, site);
  for (int i = 0; i < warpgroup_size; ++i)
    if (Thread& t = cta.threads[number * warpgroup_size + static_cast<size_t>(i)]; &t != &self) wake(t);
}

void setmaxnreg_dec(int count, Site site) { set_registers(false, count, site); }
void setmaxnreg_inc(int count, Site site) { set_registers(true, count, site); }

void named_barrier_sync(int id, int threads, Site site) { named("named_barrier_sync", id, threads, true, site); }
void named_barrier_arrive(int id, int threads, Site site) { named("named_barrier_arrive", id, threads, false, site); }

std::string describe_wait(const Thread& thread) {
  const Cta& cta = *thread.cta;
  const auto number = static_cast<size_t>(thread.warpgroup());
  if (number >= cta.warpgroups.size()) return "";
  const Warpgroup& group = cta.warpgroups[number];
  const std::string name = " (warpgroup " + std::to_string(number) + ": ";
  if (group.wanted)
    return name + "from " + std::to_string(group.registers) + " to " + std::to_string(group.wanted) +
           " registers a thread, " + std::to_string((group.wanted - group.registers) * warpgroup_size) + " in all; " +
           std::to_string(cta.free_registers) + " are free)";
  if (group.arrived && thread.waits_for == group.instruction)
    return name + std::to_string(group.arrived) + " of 128 threads arrived)";
  return "";
}

void end_warpgroups(Cta& cta) {
  const auto changed = [](const Warpgroup& group) { return group.reallocated; };
  const auto same = std::find_if_not(cta.warpgroups.begin(), cta.warpgroups.end(), changed);
  if (same == cta.warpgroups.end() || std::none_of(cta.warpgroups.begin(), cta.warpgroups.end(), changed)) return;
  const Thread& first = cta.threads[static_cast<size_t>(same - cta.warpgroups.begin()) * warpgroup_size];
  report_once("registers", 0, 0, [&] {
    return "Warpgroup " + std::to_string(first.warpgroup()) + " executes no setmaxnreg, though another does, and stays at " +
           std::to_string(same->registers) + " registers a thread (" + describe_thread(first) + ").";
  });
}

}  // namespace simulator
