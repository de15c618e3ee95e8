/// @file
/// Who knows of whose accesses: vector clocks, one base vector shared by all threads that left the same barrier.
#include <algorithm>

#include "machine.h"

namespace simulator {
namespace {

void raise(Time& known, Time time) { known = std::max(known, time); }

void merge(std::vector<Time>& known, const std::vector<Time>& other) {
  // Times stay below 2^31: as signed numbers, which any CPU compares by the vector.
  auto* a = reinterpret_cast<int32_t*>(known.data());
  auto* b = reinterpret_cast<const int32_t*>(other.data());
  for (size_t i = 0; i < known.size(); ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
}

Release snapshot(const Thread& t) {
  return {t.knowledge,  static_cast<uint32_t>(t.id), t.now, t.fenced, t.tensor_engine, t.store_engine, t.tensor_known,
          t.store_known};
}

}  // namespace

void add(std::vector<Time>& known, const Release& r, const std::vector<Time>*& merged) {
  const Cta& cta = *machine.cta;
  if (const std::vector<Time>* base = r.knowledge.get(); base != merged) {
    merge(known, *base);
    merged = base;
  }
  raise(known[r.id], r.now);
  raise(known[cta.thread_count() + cta.engine_slots() + r.id], r.fenced);
  if (r.tensor_engine != no_engine) raise(known[r.tensor_engine], r.tensor_known);
  if (r.store_engine != no_engine) raise(known[r.store_engine], r.store_known);
}

Release release(Thread& thread) {
  const Release r = snapshot(thread);
  thread.now = ++machine.clock;
  return r;
}

void synchronize(const std::vector<Thread*>& releasers, const std::vector<Thread*>& acquirers,
                 const std::vector<Release>& earlier) {
  auto joined = std::make_shared<std::vector<Time>>(*releasers.front()->knowledge);
  std::vector<Time>& known = *joined;
  const std::vector<Time>* merged = releasers.front()->knowledge.get();
  for (Thread* t : releasers) add(known, snapshot(*t), merged);
  for (const Release& r : earlier) add(known, r, merged);
  // If that is everything that anyone has done, one number says it.
  const Cta& cta = *machine.cta;
  bool complete = std::all_of(cta.threads.begin(), cta.threads.end(), [&](const Thread& t) { return known[t.id] >= t.now; });
  for (size_t e = 0; e < cta.engines.size(); ++e) complete &= known[cta.thread_count() + e] >= cta.engines[e];
  const Time everything = machine.clock++;
  for (Thread* t : releasers) t->now = machine.clock;
  for (Thread* t : acquirers) {
    t->knowledge = joined;
    if (complete) t->all_before = everything;
  }
}

void acquire(Thread& thread, const Knowledge& clock, Knowledge& from, Knowledge& to) {
  if (thread.knowledge == clock || thread.knowledge == to) return;
  if (thread.knowledge != from) {
    auto joined = std::make_shared<std::vector<Time>>(*thread.knowledge);
    merge(*joined, *clock);
    from = thread.knowledge;
    to = joined;
  }
  thread.knowledge = to;
}

uint32_t new_engine(Site site) {
  Cta& cta = *machine.cta;
  if (cta.engines.size() >= cta.engine_slots())
    fail("mbarrier",
         "The simulated GPU follows at most " + std::to_string(cta.engine_slots()) +
             " mbarriers, warpgroups and storing threads in a CTA of this size.",
         site);
  cta.engines.push_back(0);
  return cta.thread_count() + static_cast<uint32_t>(cta.engines.size() - 1);
}

Time engine_time(uint32_t engine) { return machine.cta->engines[engine - machine.cta->thread_count()] = ++machine.clock; }

}  // namespace simulator
