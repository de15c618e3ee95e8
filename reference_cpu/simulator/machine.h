/// @file
/// Inside the simulated GPU: threads, warps and CTAs, what each knows of the others' memory accesses, and the
/// fibers that run them. Only the simulator's own units include it.
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core.h"
#include "simulator.h"

namespace simulator {

inline constexpr int warp_size = 32;
inline constexpr int most_threads = 1024;

/// Logical time. It grows at every synchronization, over the whole life of the process, so that a time alone
/// tells whether an access belongs to this launch or this CTA.
using Time = uint32_t;
inline constexpr Time in_flight = 0xFFFFFFFF;  ///< of a write that an asynchronous copy has not finished

/// Who touched a piece of memory last, when and where.
struct Stamp {
  Time time = 0;
  uint32_t who = 0;  ///< the thread in its CTA (10 bits) and the place (22 bits); while in flight, the copy's index
  uint32_t thread() const { return who % most_threads; }
  uint32_t place() const { return who / most_threads; }
};

/// For each thread of the CTA, the latest time of its that is known to have happened before.
using Knowledge = std::shared_ptr<const std::vector<Time>>;

struct Cta;

struct Thread {
  int id = 0;  ///< linear threadIdx
  Index3 index{};
  Cta* cta = nullptr;
  boost::context::detail::fcontext_t context = nullptr;
  bool done = false;

  Time now = 0;         ///< time of its last release: the stamp of its accesses
  Time all_before = 0;  ///< every access of the CTA up to this time happened before
  Knowledge knowledge;  ///< and, thread by thread, these

  // Why it waits, for the report of a blocked machine.
  const char* waits_for = nullptr;
  Site waits_at{};
  int barrier_id = -1;

  // cp.async
  std::vector<int> uncommitted;          ///< indices into Cta::copies
  std::vector<std::vector<int>> groups;  ///< committed, oldest first

  int warp() const { return id / warp_size; }
  int lane() const { return id % warp_size; }
  bool knows(Stamp s) const {
    return s.time <= all_before || s.thread() == static_cast<uint32_t>(id) || (*knowledge)[s.thread()] >= s.time;
  }
};

/// A warp instruction whose lanes have not all arrived.
struct OpenCollective {
  const char* instruction;
  unsigned mask, arrived;
  Site site;
  void* arguments[warp_size];
};

struct Barrier {
  int expected = 0;                ///< 0: every thread that has not returned
  Site first{};                    ///< the call of the first that arrived
  std::vector<Thread*> arrivals;   ///< all that arrived
  std::vector<Thread*> sleepers;   ///< those of them that wait
};

/// One asynchronous copy between its issue and the wait that covers it.
struct Copy {
  int thread;
  unsigned char* destination;
  const unsigned char* source;
  int bytes, valid;
  bool delivered;
  Site site;
};

struct Cta {
  int number = 0;  ///< linear blockIdx
  Index3 index{};
  std::vector<Thread> threads;
  std::vector<std::vector<OpenCollective>> collectives;  ///< by warp
  std::map<int, Barrier> barriers;
  std::vector<Copy> copies;
  int live = 0;
};

/// The whole machine.
struct Machine {
  Options options;
  Ledger ledger;
  std::vector<Report> reports;
  std::set<std::tuple<const char*, uint32_t, uint32_t>> reported_places;  ///< kind and places: the fast filter
  std::set<std::string> reported;                                         ///< kind and lines: one entry a fault
  std::map<uint32_t, std::string> unwritten;  ///< reads of memory that nobody had written, by their places
  std::map<std::pair<std::string, int>, SyncSite> sites;
  std::mt19937_64 random;

  const Launch* launch = nullptr;
  uintptr_t module_base = 0;  ///< of the kernel's shared library
  std::string module_file;
  Cta* cta = nullptr;       ///< the running one
  Thread* thread = nullptr; ///< the running one
  Time clock = 0, launch_start = 0, cta_start = 0;
  const void* stray_address = nullptr;  ///< the last access to memory that is neither global nor shared,
  uint32_t stray_place = 0;             ///< and where it stands: should the CPU fault on it

  // Shared memory of the running CTA: [dynamic, 256 KB][static].
  unsigned char* dynamic_shared = nullptr;
  size_t dynamic_bytes = 0;
  unsigned char* static_shared = nullptr;
  size_t static_bytes = 0;
};
extern Machine machine;

// scheduler.cpp
void block(const char* why, Site site);  ///< the running thread sleeps until wake()
void wake(Thread& thread);
[[noreturn]] void abandon(const std::string& report);  ///< ends the launch from inside a thread

// knowledge.cpp
/// `acquirers` learn all that `releasers` knew and did; the releasers' later accesses get a later time.
void synchronize(const std::vector<Thread*>& releasers, const std::vector<Thread*>& acquirers);

// barriers.cpp
void thread_returned(Thread& thread);  ///< it counts no more at barriers that wait for all

// async.cpp
void finish_copies(Thread& thread);  ///< when its CTA ends: nothing stays in flight
std::string describe_copy(int index);

// memory.cpp: what a wrapped or plain access does
enum class Access { read, write, atomic };
/// @param alignment  the address must be a multiple of it
/// @return           whether it lies within bounds
bool touch(const void* address, size_t bytes, size_t alignment, Access access, Thread& thread, uint32_t place);
/// An asynchronous copy begins to write: as a write now, but in flight until landed().
bool touch_in_flight(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place);
/// The copy is complete and `thread` has waited for it.
void landed(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place);
void start_launch_memory();
void start_cta_memory();
void end_cta_memory();
std::string describe_address(const void* address);

// places.cpp
const char* base_name(const char* path);  ///< its last component
uint32_t place_of(const void* program_counter);
uint32_t place_of(Site site);
/// An atomic operation marks its place with these bits, which no other place has.
inline constexpr uint32_t atomic_place = 1u << 20;
inline bool is_atomic(uint32_t place) { return place >> 20 == 3; }
std::string describe_place(uint32_t place);
std::string describe_thread(const Thread& thread);

/// Records a fault once for each pair of source lines (a line may be many places: templates, unrolled loops).
/// `make_text` is called only then.
template <typename MakeText>
void report_once(const char* kind, uint32_t place, uint32_t other_place, MakeText make_text) {
  if (place > other_place) std::swap(place, other_place);
  if (machine.reports.size() >= 50 || !machine.reported_places.insert({kind, place, other_place}).second) return;
  std::string line = describe_place(place), other_line = describe_place(other_place);
  if (line > other_line) std::swap(line, other_line);
  if (machine.reported.insert(kind + (": " + line) + ", " + other_line).second)
    machine.reports.push_back({kind, make_text()});
}

}  // namespace simulator
