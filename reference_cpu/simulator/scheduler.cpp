/// @file
/// Runs a launch: one fiber a thread, CTA after CTA, and the report of a machine on which nobody can go on.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "machine.h"
#include "timeline.h"

/// The kernel's built-in variables, rewritten at every switch of fibers. See hardware/simt.h.
simulator::Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace simulator {

Machine machine;

namespace {

namespace ctx = boost::context::detail;

constexpr size_t stack_bytes = size_t{128} << 10;

// One stack a thread of the largest CTA, each with an unmapped page below it.
struct Stacks {
  unsigned char* base;
  Stacks() {
    base = static_cast<unsigned char*>(mmap(nullptr, stack_bytes * most_threads, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base == MAP_FAILED) throw std::runtime_error("The simulated GPU could not map its threads' stacks.");
    for (int i = 0; i < most_threads; ++i) mprotect(base + i * stack_bytes, 4096, PROT_NONE);
  }
  void* top(int thread) { return base + (thread + 1) * stack_bytes; }
};

struct Scheduler {
  ctx::fcontext_t main = nullptr;
  uint64_t runnable[most_threads / 64] = {};
  int runnable_count = 0;
  std::string fault;  // why the launch was abandoned
};
Scheduler scheduler;

void set_runnable(int id, bool on) {
  scheduler.runnable_count += on ? 1 : -1;
  scheduler.runnable[id / 64] ^= uint64_t{1} << (id % 64);
}

// The next runnable thread in the direction of the schedule, or null.
Thread* next_thread(int after) {
  if (scheduler.runnable_count == 0) return nullptr;
  const int count = static_cast<int>(machine.cta->threads.size());
  int start = after;
  bool down = machine.options.schedule == Schedule::late;
  if (machine.options.schedule == Schedule::random) {
    const uint64_t draw = machine.random();
    if (draw % 8 == 0) start = static_cast<int>((draw >> 8) % static_cast<uint64_t>(count));  // else the neighbour: fast
    down = draw & 64;
  }
  for (int step = 1; step <= count; ++step) {
    const int id = down ? (start - step % count + count) % count : (start + step) % count;
    const uint64_t word = scheduler.runnable[id / 64];
    if (word >> (id % 64) & 1) return &machine.cta->threads[id];
    if (word == 0 && !down && id % 64 == 0) step += std::min(63, count - id - 1);  // skip an empty word
  }
  return nullptr;
}

// The same, after landing copies for whom somebody waits if nobody else can go on: as late as is legal.
Thread* next_or_landed(int after) {
  Thread* next = next_thread(after);
  while (!next && land_copies_that_sleepers_need()) next = next_thread(after);
  return next;
}

void run(Thread& thread) {
  machine.thread = &thread;
  threadIdx = thread.index;
}

// Leaves the running fiber for `next` (null: for the launch's own stack) and returns when it is resumed.
void switch_to(Thread* next) {
  Thread* self = machine.thread;
  ctx::fcontext_t target = scheduler.main;
  if (next) {
    run(*next);
    target = next->context;
  } else {
    machine.thread = nullptr;
  }
  ctx::transfer_t from = ctx::jump_fcontext(target, self);
  static_cast<Thread*>(from.data)->context = from.fctx;  // whoever switched to us sleeps there
}

void report_blocked() {
  Cta& cta = *machine.cta;
  std::string text = "deadlock in " + std::string(machine.launch->name) + ", CTA " + std::to_string(cta.number) + ": ";
  // Group the sleepers by what they wait for.
  std::map<std::string, std::vector<int>> groups;
  int returned = 0;
  for (Thread& t : cta.threads) {
    if (t.done) {
      ++returned;
      continue;
    }
    std::string what = std::string(t.waits_for) + " at " + describe_place(place_of(t.waits_at));
    if (t.barrier_id >= 0) {
      const Barrier& b = cta.barriers[t.barrier_id];
      what += " (barrier " + std::to_string(t.barrier_id) + ": " + std::to_string(b.arrivals) + " of " +
              std::to_string(b.expected ? b.expected : cta.live) + " threads arrived)";
    } else if (t.mbarrier) {
      what += " (" + describe_mbarrier(*t.mbarrier) + ": parity " + std::to_string(t.parity) + ", " +
              describe_state(*t.mbarrier) + ")";
    } else if (const std::string words = describe_wait(t); !words.empty()) {
      what += words;
    } else {
      for (const OpenCollective& c : cta.collectives[t.warp()])
        if (c.site.line == t.waits_at.line && (c.arrived >> t.lane() & 1)) {
          char lanes[64];
          std::snprintf(lanes, sizeof lanes, " (warp %d: lanes 0x%08x of 0x%08x arrived)", t.warp(), c.arrived, c.mask);
          what += lanes;
        }
    }
    groups[what].push_back(t.id);
  }
  bool first = true;
  for (auto& [what, ids] : groups) {
    text += (first ? "" : "; ") + std::to_string(ids.size()) + " thread" + (ids.size() == 1 ? "" : "s") + " (from warp " +
            std::to_string(ids.front() / warp_size) + ", lane " + std::to_string(ids.front() % warp_size) +
            ") wait for " + what;
    first = false;
  }
  if (returned) text += "; " + std::to_string(returned) + " threads have returned";
  text += ". Nobody can go on.";
  scheduler.fault = text;
  machine.reports.push_back({"deadlock", text});
}

// The body of every fiber.
void thread_main(ctx::transfer_t from) {
  if (from.data) static_cast<Thread*>(from.data)->context = from.fctx;
  else scheduler.main = from.fctx;
  machine.launch->body(machine.launch->arguments);
  Thread& self = *machine.thread;
  self.done = true;
  set_runnable(self.id, false);
  thread_returned(self);
  switch_to(next_or_landed(self.id));
  std::abort();  // a finished fiber is never resumed
}

void run_cta(int number, Stacks& stacks) {
  const Launch& launch = *machine.launch;
  Cta cta;
  cta.number = number;
  cta.index = {number % launch.grid.x, number / launch.grid.x % launch.grid.y, number / launch.grid.x / launch.grid.y};
  const int count = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  cta.threads.resize(static_cast<size_t>(count));
  cta.collectives.resize(static_cast<size_t>((count + warp_size - 1) / warp_size));
  cta.live = count;
  machine.cta = &cta;
  machine.cta_start = machine.clock++;
  blockIdx = cta.index;
  const size_t entries = size_t{2} * cta.thread_count() + cta.engine_slots();
  auto nothing = std::make_shared<const std::vector<Time>>(entries, machine.cta_start);
  cta.warpgroups.resize(static_cast<size_t>(count / warpgroup_size));
  // What the compiler may use at one CTA an SM, which every kernel with setmaxnreg asks for.
  for (Warpgroup& group : cta.warpgroups) group.registers = std::min(256, 65536 / count / 8 * 8);
  std::fill(std::begin(scheduler.runnable), std::end(scheduler.runnable), 0);
  scheduler.runnable_count = 0;
  for (int id = 0; id < count; ++id) {
    Thread& t = cta.threads[id];
    t.id = id;
    t.cta = &cta;
    const unsigned u = static_cast<unsigned>(id);
    t.index = {u % launch.block.x, u / launch.block.x % launch.block.y, u / launch.block.x / launch.block.y};
    t.now = machine.clock;
    t.all_before = machine.cta_start;
    t.knowledge = nothing;
    t.context = ctx::make_fcontext(stacks.top(id), stack_bytes - 4096, thread_main);
    set_runnable(id, true);
  }
  start_cta_memory();
  if (machine.options.timeline && number == 0) start_recording(cta.collectives.size());
  machine.thread = nullptr;
  Thread* first = next_thread(machine.options.schedule == Schedule::late ? 0 : count - 1);
  run(*first);
  ctx::transfer_t back = ctx::jump_fcontext(first->context, nullptr);
  (void)back;
  machine.thread = nullptr;
  if (recording) end_recording();
  const bool finished = cta.live == 0;
  if (!finished && scheduler.fault.empty()) report_blocked();
  for (Thread& t : cta.threads) finish_copies(t);
  if (finished) {
    end_wgmma(cta);
    end_box_copies(cta);
    end_mbarriers(cta);
    end_warpgroups(cta);
  }
  drop_box_loads(cta);
  end_cta_memory();
  ++machine.ledger.ctas;
  machine.cta = nullptr;
}

// A wild pointer: the memory hooks saw nothing wrong (it lies in no known space), the CPU did.
void (*fatal_handler)(const char*) = [](const char* text) {
  std::fprintf(stderr, "%s\n", text);
  _exit(1);
};

void on_signal(int, siginfo_t* info, void*) {
  if (!machine.thread) {  // not a kernel's: fault again, and end as any program does
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    return;
  }
  static char text[600];
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  // The hooks saw the access just before, unless the thread's own stack ran over.
  const auto seen = reinterpret_cast<uintptr_t>(machine.stray_address);
  const bool wild = address - seen < 16;
  std::snprintf(text, sizeof text, "out of bounds: %s (%s) accesses address 0x%zx, which is neither global nor shared memory: %s.",
                wild ? describe_place(machine.stray_place).c_str() : "an unknown line",
                describe_thread(*machine.thread).c_str(), static_cast<size_t>(address),
                wild ? "a null or wild pointer" : "a wild pointer, or too much local memory");
  fatal_handler(text);
  _exit(1);
}

// Catches them during a launch; before and after, the signals are the program's.
struct WildPointers {
  stack_t stack_before;
  struct sigaction segv_before, bus_before;
  WildPointers() {
    static unsigned char alternate[64 << 10];
    stack_t stack{};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    sigaltstack(&stack, &stack_before);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &segv_before);
    sigaction(SIGBUS, &action, &bus_before);
  }
  ~WildPointers() {
    sigaltstack(&stack_before, nullptr);
    sigaction(SIGSEGV, &segv_before, nullptr);
    sigaction(SIGBUS, &bus_before, nullptr);
  }
};

}  // namespace

void block(const char* why, Site site) {
  Thread& self = *machine.thread;
  self.waits_for = why;
  self.waits_at = site;
  set_runnable(self.id, false);
  // A copy that lands may wake this thread itself.
  if (Thread* next = next_or_landed(self.id); next != &self) switch_to(next);
}

void wake(Thread& thread) { set_runnable(thread.id, true); }

void abandon(const std::string& report) {
  scheduler.fault = report;
  switch_to(nullptr);
  std::abort();  // nobody resumes an abandoned launch
}

void abandon(const char* kind, const std::string& report) {
  machine.reports.push_back({kind, report});
  abandon(report);
}

void fail(const char* kind, const char* text, Site site) { fail(kind, std::string(text), site); }

void fail(const char* kind, const std::string& text, Site site) {
  std::string full = text + " At " + describe_place(place_of(site)) + " (" +
                     describe_thread(*machine.thread) + ").";
  abandon(kind, full);
}

void launch(const Launch& launch) {
  static Stacks stacks;
  WildPointers catching;
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > most_threads)
    throw std::runtime_error(std::string(launch.name) + " was launched with " + std::to_string(threads) +
                             " threads a CTA; 1 to 1024 are possible.");
  if (launch.dynamic_shared_bytes > shared_bytes_per_cta)
    throw std::runtime_error(std::string(launch.name) + " asks for " + std::to_string(launch.dynamic_shared_bytes) +
                             " bytes of shared memory a CTA; this GPU has " + std::to_string(shared_bytes_per_cta) + ".");
  const Index3& grid = launch.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7FFFFFFFu)
    throw std::runtime_error(std::string(launch.name) + " was launched with a grid of " + std::to_string(grid.x) + " x " +
                             std::to_string(grid.y) + " x " + std::to_string(grid.z) +
                             " CTAs; the GPU allows 1 x 1 x 1 to 2147483647 x 65535 x 65535.");
  machine.launch = &launch;
  machine.dynamic_bytes = launch.dynamic_shared_bytes;
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(launch.body), &info);
  machine.module_base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  machine.module_file = info.dli_fname ? info.dli_fname : "";
  machine.launch_start = machine.clock++;
  if (machine.clock > 0x70000000u) throw std::runtime_error("The simulated GPU's clock ran out; start a new process.");
  ++machine.ledger.launches;
  start_launch_memory();
  blockDim = launch.block;
  gridDim = launch.grid;
  scheduler.fault.clear();
  const uint64_t count = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  for (uint64_t i = 0; i < count && scheduler.fault.empty(); ++i)
    run_cta(static_cast<int>(machine.options.schedule == Schedule::late ? count - 1 - i : i), stacks);
  machine.launch = nullptr;
  if (!scheduler.fault.empty()) throw std::runtime_error(scheduler.fault);
}

int thread_index() { return machine.thread->id; }
int lane_index() { return machine.thread->lane(); }

void on_fatal(void (*handler)(const char*)) { fatal_handler = handler; }

std::string where_now() { return machine.launch && machine.thread ? describe_thread(*machine.thread) : ""; }

}  // namespace simulator
