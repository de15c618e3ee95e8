/// @file
/// mbarriers: arrivals and bytes, phase after phase (PTX ISA, "Parallel Synchronization and Communication Instructions:
/// mbarrier").
#include <cstdio>
#include <cstring>

#include "machine.h"
#include "timeline.h"

namespace simulator {
namespace {

constexpr int most_arrivals = (1 << 20) - 1;  // a phase
constexpr int64_t most_bytes = (int64_t{1} << 20) - 1;

// What an initialized mbarrier holds, to find out whether something has been written over it.
uint64_t content(const Mbarrier& barrier) { return 0x6D62617272696572u ^ reinterpret_cast<uintptr_t>(&barrier); }

std::string number(int64_t count, const char* what) { return std::to_string(count) + " " + what + (count == 1 ? "" : "s"); }

std::string words_of(const BoxLoad& load) {
  return "the copy that " + describe_place(place_of(load.site)) + " (" +
         describe_thread(machine.cta->threads[static_cast<size_t>(load.thread)]) + ") issued";
}

// If all arrivals and bytes of the running phase are there, the next begins. `last` is the copy that landed, or null.
void try_complete(Mbarrier& b, const BoxLoad* last) {
  if (b.pending != 0) return;
  if (b.bytes < 0)
    abandon("mbarrier", number(-b.bytes, "byte") + " more than expected landed at " + describe_mbarrier(b) + ", in phase " +
                            std::to_string(b.phase) + ", " +
                            (last ? "with " + words_of(*last) : "seen by " + describe_thread(*machine.thread)) +
                            ": mbarrier_expect at " + describe_place(place_of(b.expected_at)) +
                            " announces too few. The phase never ends.");
  if (b.bytes != 0) return;
  auto joined = std::make_shared<std::vector<Time>>(b.clock ? *b.clock : *b.arrivals.front().knowledge);
  const std::vector<Time>* merged = b.clock ? nullptr : b.arrivals.front().knowledge.get();
  for (const Release& r : b.arrivals) add(*joined, r, merged);
  (*joined)[b.engine] = machine.cta->engines[b.engine - machine.cta->thread_count()];
  b.arrivals.clear();
  b.clock = std::move(joined);
  b.from = b.to = nullptr;
  b.pending = b.count;
  ++b.phase;
  std::vector<Thread*> sleepers;
  sleepers.swap(b.sleepers);
  for (Thread* t : sleepers) wake(*t);
}

void arrive(Mbarrier& b, const char* instruction, Site site) {
  if (b.pending == 0)
    fail("mbarrier",
         "One arrival too many (" + std::string(instruction) + "): phase " + std::to_string(b.phase) + " of " +
             describe_mbarrier(b) + " has its " + number(b.count, "arrival") + " already and waits for " +
             number(b.bytes, "byte") + ".",
         site);
  b.arrivals.push_back(release(*machine.thread));
  if (recording) note_arrival(&b, b.phase);
  --b.pending;
  try_complete(b, nullptr);
}

}  // namespace

std::string describe_mbarrier(const Mbarrier& barrier) {
  char where[64];
  std::snprintf(where, sizeof where, "the mbarrier at shared+0x%x", shared_window(barrier.address));
  return where + (", initialized at " + describe_place(place_of(barrier.site)));
}

std::string describe_state(const Mbarrier& b) {
  return "phase " + std::to_string(b.phase) + " running, " + std::to_string(b.pending) + " of " +
         number(b.count, "arrival") + " missing, " + number(b.bytes, "byte") + " outstanding, " +
         (b.in_flight == 1 ? "1 copy" : std::to_string(b.in_flight) + " copies") + " in flight";
}

Mbarrier& find_mbarrier(const void* address, const char* instruction, Site site) {
  Cta& cta = *machine.cta;
  const auto found = cta.mbarriers.find(address);
  if (found == cta.mbarriers.end())
    fail("mbarrier",
         std::string(instruction) + " uses an mbarrier that nobody has initialized, in " + describe_address(address) + ".",
         site);
  Mbarrier& b = found->second;
  uint64_t now;
  std::memcpy(&now, address, sizeof now);
  if (now != content(b))
    fail("mbarrier",
         std::string(instruction) + " uses " + describe_mbarrier(b) + ", but something has been written over it.", site);
  if (const Stamp init{b.init_time, b.init_thread}; !machine.thread->knows(init))
    report_once("race", place_of(site), place_of(b.site), [&] {
      return "race: " + describe_place(place_of(site)) + " (" + describe_thread(*machine.thread) + ") uses " +
             describe_mbarrier(b) + " by warp " + std::to_string(b.init_thread / warp_size) + ", lane " +
             std::to_string(b.init_thread % warp_size) + ", and no barrier orders the two.";
    });
  return b;
}

void complete_bytes(Mbarrier& b, const BoxLoad& load) {
  --b.in_flight;
  if (b.phase != load.phase)
    abandon("mbarrier", words_of(load) + " in phase " + std::to_string(load.phase) + " of " + describe_mbarrier(b) +
                            " lands in phase " + std::to_string(b.phase) +
                            ": its own ended without it. mbarrier_expect at " + describe_place(place_of(b.expected_at)) +
                            " announces too few bytes, or is missing.");
  b.bytes -= static_cast<int64_t>(load.bytes);
  if (b.bytes < -most_bytes)
    abandon("mbarrier", "More than 1048575 bytes land at " + describe_mbarrier(b) + " before they are announced, with " +
                            words_of(load) + ".");
  try_complete(b, &load);
}

void mbarrier_init(void* address, int arrivals, Site site) {
  if (mutated("mbarrier_init", "one arrival more", site)) ++arrivals;
  if (mutated("mbarrier_init", "one arrival fewer", site)) --arrivals;
  Thread& self = *machine.thread;
  Cta& cta = *self.cta;
  if (!is_shared(address)) fail("address", "An mbarrier must lie in shared memory.", site);
  if (reinterpret_cast<uintptr_t>(address) % 8 != 0)
    fail("misaligned", "An mbarrier's address must be a multiple of 8.", site);
  if (arrivals < 1 || arrivals > most_arrivals)
    fail("mbarrier", "mbarrier_init asks for " + std::to_string(arrivals) + " arrivals; 1 to 1048575 are possible.", site);
  if (const auto old = cta.mbarriers.find(address); old != cta.mbarriers.end())
    fail("mbarrier", "mbarrier_init initializes " + describe_mbarrier(old->second) + ", once more.", site);
  // As a store, so that no other access to these bytes goes unseen; the ledger counts data alone.
  const Ledger before = machine.ledger;
  if (!touch(address, 8, 8, Access::write, self, place_of(site))) return;
  machine.ledger = before;
  Mbarrier& b = cta.mbarriers[address];
  b.address = address;
  b.site = b.expected_at = site;
  b.init_thread = static_cast<uint32_t>(self.id);
  b.init_time = self.now;
  b.count = b.pending = arrivals;
  b.engine = new_engine(site);
  const uint64_t state = content(b);
  std::memcpy(address, &state, sizeof state);
}

void fence_mbarrier_init(Site site) {
  if (mutated("fence_mbarrier_init", "drop", site)) return;
  for (auto& [address, b] : machine.cta->mbarriers)
    if (b.init_thread == static_cast<uint32_t>(machine.thread->id) && b.fence_time == 0) b.fence_time = machine.thread->now;
}

void mbarrier_arrive(void* address, Site site) {
  if (mutated("mbarrier_arrive", "drop", site)) return;
  arrive(find_mbarrier(address, "mbarrier_arrive", site), "mbarrier_arrive", site);
}

void mbarrier_expect(void* address, int bytes, Site site) {
  if (mutated("mbarrier_expect", "drop", site)) return;
  if (mutated("mbarrier_expect", "16 bytes more", site)) bytes += 16;
  if (mutated("mbarrier_expect", "16 bytes fewer", site)) bytes -= 16;
  Mbarrier& b = find_mbarrier(address, "mbarrier_expect", site);
  b.expected_at = site;
  b.bytes += bytes;
  if (bytes < 0 || b.bytes > most_bytes)
    fail("mbarrier", "mbarrier_expect announces " + std::to_string(bytes) + " bytes; a phase counts 0 to 1048575.", site);
  arrive(b, "mbarrier_expect", site);
}

void mbarrier_wait(void* address, int parity, Site site) {
  if (mutated("mbarrier_wait", "drop", site)) return;
  if (mutated("mbarrier_wait", "other parity", site)) parity ^= 1;
  if (parity & ~1) fail("mbarrier", "mbarrier_wait names parity " + std::to_string(parity) + "; there are 0 and 1.", site);
  Mbarrier& b = find_mbarrier(address, "mbarrier_wait", site);
  Thread& self = *machine.thread;
  if (machine.options.schedule == Schedule::random) land_at_random();
  uint32_t woken_for = 0;
  while (static_cast<int>(b.phase & 1) == parity) {  // the phase of this parity runs
    if (woken_for && b.phase >= woken_for)
      report_once("mbarrier", place_of(site), place_of(b.site), [&] {
        return describe_place(place_of(site)) + " (" + describe_thread(self) + ") waits for phase " +
               std::to_string(woken_for - 1) + " of " + describe_mbarrier(b) + ", and before it looks, phase " +
               std::to_string(b.phase - 1) + " is over too: a parity tells two phases apart, not three.";
      });
    b.sleepers.push_back(&self);
    self.mbarrier = &b;
    self.parity = parity;
    woken_for = b.phase + 1;
    block("mbarrier_wait", site);
    self.mbarrier = nullptr;
  }
  b.observed = std::max(b.observed, b.phase);
  if (recording && b.phase > 0) note_wait(&b, b.phase - 1, site);
  if (b.clock) acquire(self, b.clock, b.from, b.to);
}

void end_mbarriers(Cta& cta) {
  for (const auto& entry : cta.mbarriers) {
    const Mbarrier& b = entry.second;
    // A copy in flight has its own report, and before the first arrival nobody counts on the phase.
    if (b.in_flight || b.pending == b.count) continue;
    const Thread& thread = cta.threads[b.arrivals.empty() ? b.init_thread : b.arrivals.back().id];
    report_once("mbarrier", place_of(b.site), place_of(b.site), [&] {
      return "The CTA ends (" + describe_thread(thread) + ") in the middle of a phase of " + describe_mbarrier(b) + ": " +
             describe_state(b) + ". Somebody arrives more or less often than the others, or a number is wrong.";
    });
  }
}

}  // namespace simulator
