/// @file
/// Who knows of whose accesses: vector clocks, one base vector shared by all threads that left the same barrier.
#include <algorithm>

#include "machine.h"

namespace simulator {

void synchronize(const std::vector<Thread*>& releasers, const std::vector<Thread*>& acquirers) {
  auto joined = std::make_shared<std::vector<Time>>(*releasers.front()->knowledge);
  std::vector<Time>& known = *joined;
  const std::vector<Time>* merged = releasers.front()->knowledge.get();  // the last base merged: many are the same
  for (Thread* t : releasers) {
    if (const std::vector<Time>* base = t->knowledge.get(); base != merged) {
      for (size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], (*base)[i]);
      merged = base;
    }
    known[t->id] = std::max(known[t->id], t->now);
  }
  // If that is everything that anyone has done, one number says it.
  const std::vector<Thread>& all = releasers.front()->cta->threads;
  const bool complete = std::all_of(all.begin(), all.end(), [&](const Thread& t) { return known[t.id] >= t.now; });
  const Time everything = machine.clock++;
  for (Thread* t : releasers) t->now = machine.clock;
  for (Thread* t : acquirers) {
    t->knowledge = joined;
    if (complete) t->all_before = everything;
  }
}

}  // namespace simulator
