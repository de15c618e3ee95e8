/// @file
/// Warp collectives and CTA barriers.
#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "machine.h"
#include "timeline.h"

namespace simulator {
namespace {

// Opens the barrier: all that arrived have released, the sleepers acquire and wake.
void complete(Barrier& barrier) {
  ++machine.ledger.barriers;
  ++barrier.completed;
  std::vector<Thread*> sleepers;
  std::vector<Release> others;
  sleepers.swap(barrier.sleepers);
  others.swap(barrier.others);
  barrier.arrivals = 0;
  barrier.expected = 0;
  if (sleepers.empty()) {
    report_once("barrier", place_of(barrier.first), place_of(barrier.first), [&] {
      return "a barrier that nobody waits for: all its threads only arrive, first at " +
             describe_place(place_of(barrier.first)) + ", last is " + describe_thread(*machine.thread) + ".";
    });
    return;
  }
  synchronize(sleepers, sleepers, others);
  for (Thread* t : sleepers)
    if (t != machine.thread) wake(*t);
}

bool is_complete(const Barrier& barrier, const Cta& cta) {
  const int expected = barrier.expected ? barrier.expected : cta.live;
  return barrier.arrivals > 0 && barrier.arrivals >= expected;
}

}  // namespace

void arrive_at_barrier(const char* call, int id, int threads, Site site, bool sleeps) {
  Thread& self = *machine.thread;
  Barrier& barrier = self.cta->barriers[id];
  if (threads % warp_size != 0) fail("barrier", "The thread count of a barrier must be a multiple of 32.", site);
  if (barrier.arrivals && barrier.expected != threads)
    fail("barrier",
         "Two calls give barrier " + std::to_string(id) + " different thread counts: " + std::to_string(threads) +
          " here, " + std::to_string(barrier.expected) + " at " + describe_place(place_of(barrier.first)) + ".",
         site);
  // The GPU's barrier takes whole warps: lanes of one warp must come through the same call.
  for (Thread* t : barrier.sleepers)
    if (t->warp() == self.warp() && (t->waits_at.line != site.line || t->waits_at.file != site.file)) {
      report_once("barrier", place_of(site), place_of(t->waits_at), [&] {
        return "divergent barrier: lanes of one warp wait at " + describe_place(place_of(t->waits_at)) + " and at " +
               describe_place(place_of(site)) + " (" + describe_thread(self) + "). Every lane of a warp must reach the same " +
               call + ".";
      });
      break;
    }
  barrier.expected = threads;
  if (barrier.arrivals == 0) barrier.first = site;
  ++barrier.arrivals;
  if (recording) note_arrival(&barrier, barrier.completed);
  if (recording && sleeps) note_wait(&barrier, barrier.completed, site);
  if (sleeps) barrier.sleepers.push_back(&self);
  else barrier.others.push_back(release(self));
  if (is_complete(barrier, *self.cta)) {
    complete(barrier);
  } else if (sleeps) {
    self.barrier_id = id;
    block(call, site);
    self.barrier_id = -1;
  }
}

void barrier_sync(const char* call, int id, int threads, Site site) {
  if (mutated(call, "drop", site)) return;
  arrive_at_barrier(call, id, threads, site, true);
}

void thread_returned(Thread& thread) {
  Cta& cta = *thread.cta;
  --cta.live;
  for (auto& [id, barrier] : cta.barriers)
    if (barrier.expected == 0 && is_complete(barrier, cta)) complete(barrier);
}

void warp_collective(const char* instruction, unsigned mask, void* argument, WarpAction action, Site site) {
  Thread& self = *machine.thread;
  const unsigned bit = 1u << self.lane();
  if (!(mask & bit)) fail("collective", "A lane executes a warp instruction whose mask leaves it out.", site);
  auto& open = self.cta->collectives[self.warp()];
  auto match = std::find_if(open.begin(), open.end(), [&](const OpenCollective& c) {
    return c.mask == mask && c.instruction == instruction && c.site.line == site.line && c.site.file == site.file;
  });
  if (match == open.end()) match = open.insert(open.end(), {instruction, mask, 0, site, {}});
  match->arrived |= bit;
  match->arguments[self.lane()] = argument;
  if (match->arrived != mask) {
    block(instruction, site);
    return;
  }
  OpenCollective all = *match;
  open.erase(match);
  action(all.arguments, mask);
  for (unsigned rest = mask & ~bit; rest; rest &= rest - 1)
    wake(self.cta->threads[self.warp() * warp_size + std::countr_zero(rest)]);
}

void warp_sync(unsigned mask, Site site) {
  if (mutated("__syncwarp", "drop", site)) return;
  warp_collective("__syncwarp", mask, nullptr,
                  [](void* const*, unsigned lanes) {
                    std::vector<Thread*> threads;
                    Cta& cta = *machine.cta;
                    for (unsigned rest = lanes; rest; rest &= rest - 1)
                      threads.push_back(&cta.threads[machine.thread->warp() * warp_size + std::countr_zero(rest)]);
                    synchronize(threads, threads);
                  },
                  site);
}

bool mutated(const char* call, const char* kind, Site site) {
  SyncSite& known = machine.sites[{site.file, site.line}];
  if (known.line == 0) known = {site.file, site.line, call, {}};
  if (std::find(known.kinds.begin(), known.kinds.end(), kind) == known.kinds.end()) known.kinds.push_back(kind);
  const Mutant& mutant = machine.options.mutant;
  return mutant.line == site.line && mutant.kind == kind &&
         std::strcmp(base_name(mutant.file.c_str()), base_name(site.file)) == 0;
}

}  // namespace simulator
