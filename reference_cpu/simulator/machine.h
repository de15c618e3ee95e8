/// @file
/// Inside the simulated GPU: threads, warps and CTAs, what each knows of the others' memory accesses, and the
/// fibers that run them. Only the simulator's own units include it.
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include <algorithm>
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
#include "engines.h"
#include "simulator.h"

namespace simulator {

inline constexpr int warp_size = 32;
inline constexpr int most_threads = 1024;

/// Logical time. It grows at every synchronization, over the whole life of the process, so that a time alone
/// tells whether an access belongs to this launch or this CTA.
inline constexpr Time in_flight = 0xFFFFFFFF;  ///< of a write that an asynchronous copy has not finished
inline constexpr uint32_t in_flight_box = 0x80000000;  ///< flag in Stamp::who: the copy is one of Cta::loads

/// Who touched a piece of memory last, when and where.
struct Stamp {
  Time time = 0;
  uint32_t who = 0;  ///< thread or engine in its CTA (10 bits) and place (22 bits); while in flight, the copy's index
  uint32_t thread() const { return who % most_threads; }
  uint32_t place() const { return who / most_threads; }
};

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
  // What it knows alone: of its warpgroup's tensor cores, of its own box stores, and which of its writes it has fenced.
  uint32_t tensor_engine = no_engine, store_engine = no_engine;
  Time tensor_known = 0, store_known = 0, fenced = 0;

  // Why it waits, for the report of a blocked machine.
  const char* waits_for = nullptr;
  Site waits_at{};
  int barrier_id = -1;
  Mbarrier* mbarrier = nullptr;
  int parity = 0;

  // wgmma
  std::vector<Registers> named, in_use;
  uintptr_t registers_begin = UINTPTR_MAX, registers_end = 0;  ///< of all of them

  // box stores
  std::vector<BoxStore> open_stores;
  uint32_t store_commits = 0;  ///< so far
  std::vector<std::vector<BoxStore>> store_groups;  ///< committed and not waited for, oldest first

  // cp.async
  std::vector<int> uncommitted;          ///< indices into Cta::copies
  uint32_t commits = 0;                  ///< so far
  std::vector<std::vector<int>> groups;  ///< committed, oldest first

  int warp() const { return id / warp_size; }
  int lane() const { return id % warp_size; }
  int warpgroup() const { return id / warpgroup_size; }
  bool knows(Stamp s) const {
    return s.time <= all_before || s.thread() == static_cast<uint32_t>(id) || (*knowledge)[s.thread()] >= s.time ||
           (s.thread() == tensor_engine && s.time <= tensor_known) || (s.thread() == store_engine && s.time <= store_known);
  }
  /// Does the async proxy see the write of thread s.thread() that this thread knows of?
  inline bool knows_fenced(Stamp s) const;
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
  int arrivals = 0;
  uint32_t completed = 0;          ///< times so far
  std::vector<Thread*> sleepers;   ///< those that arrived and wait
  std::vector<Release> others;     ///< those that arrived and went on
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
  std::map<const void*, Mbarrier> mbarriers;
  std::vector<BoxLoad> loads;
  size_t first_in_flight = 0;         ///< all loads before it have landed
  std::vector<Warpgroup> warpgroups;  ///< whole ones
  std::vector<Time> engines;          ///< the time of each engine's last access
  int free_registers = 0;             ///< of the pool that setmaxnreg shares out
  int live = 0;

  uint32_t thread_count() const { return static_cast<uint32_t>(threads.size()); }
  /// Entries in a vector clock for engines. A stamp has 10 bits for threads and engines together.
  uint32_t engine_slots() const { return std::min(128u, most_threads - thread_count()); }
  bool is_engine(Stamp s) const { return s.thread() >= thread_count(); }
};

bool Thread::knows_fenced(Stamp s) const {
  if (s.thread() == static_cast<uint32_t>(id)) return s.time <= fenced;
  return (*knowledge)[cta->thread_count() + cta->engine_slots() + s.thread()] >= s.time;
}

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
[[noreturn]] void abandon(const char* kind, const std::string& report);  ///< records it and ends the launch
void wake(Thread& thread);
[[noreturn]] void abandon(const std::string& report);  ///< ends the launch from inside a thread
[[noreturn]] void fail(const char* kind, const std::string& text, Site site);  ///< as core.h's

// knowledge.cpp
/// `acquirers` learn all that `releasers` knew and did; the releasers' later accesses get a later time.
/// @param earlier  of others, who need not wait
void synchronize(const std::vector<Thread*>& releasers, const std::vector<Thread*>& acquirers,
                 const std::vector<Release>& earlier = {});
/// What `thread` knows and did so far, to be learned by others; its later accesses get a later time.
Release release(Thread& thread);
/// Adds it to a vector clock. `merged` is the last base vector that was added: many releases share one.
void add(std::vector<Time>& known, const Release& release, const std::vector<Time>*& merged);
/// `thread` learns what the clock says. `from` and `to` keep the last case: many threads of a barrier knew the same before.
void acquire(Thread& thread, const Knowledge& clock, Knowledge& from, Knowledge& to);
/// A new engine of the running CTA.
uint32_t new_engine(Site site);
/// The time of an access that an engine completes now.
Time engine_time(uint32_t engine);

// mbarrier.cpp
std::string describe_mbarrier(const Mbarrier& barrier);
std::string describe_state(const Mbarrier& barrier);
/// The mbarrier at an address, for an instruction that uses it.
Mbarrier& find_mbarrier(const void* address, const char* instruction, Site site);
/// Bytes of a copy have landed.
void complete_bytes(Mbarrier& barrier, const BoxLoad& load);
void end_mbarriers(Cta& cta);  ///< complains of phases that are not over

// box_copies.cpp
/// Nobody can run: lands copies that a sleeper waits for. False if there are none.
bool land_copies_that_sleepers_need();
void land_at_random();
void drop_box_loads(Cta& cta);  ///< however it ends, nothing stays in flight
void end_box_copies(Cta& cta);  ///< complains of what is in flight

// warpgroup.cpp
/// The action of an instruction that the 128 threads of a warpgroup execute together.
using WarpgroupAction = void (*)(Warpgroup& group, void* const* arguments, Site site);
void warpgroup_collective(const char* instruction, void* argument, WarpgroupAction action, Site site);
std::string describe_wait(const Thread& thread);  ///< what a blocked thread's warpgroup instruction lacks, or ""
void end_warpgroups(Cta& cta);  ///< complains of a warpgroup that keeps its registers while others change theirs

// wgmma_registers.cpp
/// wgmma_fence hands an array to the tensor cores.
void name_registers(Thread& thread, const RegisterArray& array, Site site);
/// A wgmma of this group begins to use an array.
void use_registers(Thread& thread, const void* array, size_t bytes, bool accumulators, uint64_t group, Site site);
/// A wait has ended for groups [0, complete_groups): the arrays that it names must be theirs, and all of theirs.
void check_waited_registers(Thread& thread, uint64_t complete_groups, const RegisterArray* arrays, int count, Site site);
/// A plain access of the running thread to its own stack, where its register arrays lie.
void touch_registers(const void* address, size_t bytes, bool write, Thread& thread, uint32_t place);

// wgmma.cpp
void end_wgmma(Cta& cta);  ///< complains of what is in flight

// barriers.cpp
void arrive_at_barrier(const char* call, int id, int threads, Site site, bool sleeps);
void thread_returned(Thread& thread);  ///< it counts no more at barriers that wait for all

// async.cpp
void finish_copies(Thread& thread);  ///< when its CTA ends: nothing stays in flight
std::string describe_copy(uint32_t index);  ///< as in Stamp::who of a write in flight
uint32_t place_of_copy(uint32_t index);

// memory.cpp: what a wrapped or plain access does
enum class Access { read, write, atomic };
/// @param alignment  the address must be a multiple of it
/// @return           whether it lies within bounds
bool touch(const void* address, size_t bytes, size_t alignment, Access access, Thread& thread, uint32_t place);
/// An asynchronous copy begins to write: as a write now, but in flight until landed().
bool touch_in_flight(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place);
/// The copy is complete and `thread` has waited for it.
void landed(void* destination, size_t bytes, Thread& thread, int copy, uint32_t place);
// engine_memory.cpp: what an engine does for a thread that issues it
/// It reads shared memory, when `thread` issues it; `slot` and `stamp` say who and when.
/// @param good     the last writer that was checked, of this and earlier calls: most cells were written together
/// @param issuers  one thread of each warp that issues it: all must know the memory's writers
/// @return         whether it lies within bounds
bool engine_read(const void* address, size_t bytes, Thread* const* issuers, int count, size_t slot, Stamp stamp,
                 Stamp& good);
/// It begins to write shared memory: in flight until written_by_engine(). Out of bounds, the launch ends.
void engine_write(void* address, size_t bytes, Thread& thread, uint32_t load, uint32_t place);
void written_by_engine(void* address, size_t bytes, uint32_t load, Stamp stamp);
/// The byte at an address as shared_window() gives it; static variables follow the dynamic memory. Null if outside.
unsigned char* shared_at(uint32_t window);

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
