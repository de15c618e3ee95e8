/// @file
/// What a CTA has besides its threads since Hopper: mbarriers, copies of boxes, warpgroups with their tensor cores and
/// registers. machine.h includes it.
///
/// An engine is somebody who accesses memory without being a thread: the copies that count at one mbarrier, the stores
/// of one thread, the tensor cores of one warpgroup. Its accesses complete in order, so that a vector clock holds one
/// time for it as for a thread. Engines are numbered behind the threads of their CTA.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core.h"

namespace simulator {

struct Thread;
using Time = uint32_t;
inline constexpr uint32_t no_engine = 0xFFFFFFFF;
inline constexpr int warpgroup_size = 128;

/// For each thread and engine of the CTA, the latest time of its that is known to have happened before; behind them, for
/// each thread, the latest time whose writes the async proxy sees.
using Knowledge = std::shared_ptr<const std::vector<Time>>;

/// What a thread knew and had done when it released it, e.g. by arriving at an mbarrier.
struct Release {
  Knowledge knowledge;
  uint32_t id;  ///< of the thread
  Time now, fenced;
  uint32_t tensor_engine, store_engine;
  Time tensor_known, store_known;
};

/// What a TensorMap (hardware/tma.h) holds.
struct EncodedMap {
  uint64_t magic;  ///< tells a map from other memory
  uint64_t base;
  uint64_t size[5];    ///< in elements, innermost first
  uint64_t stride[5];  ///< in bytes, of each dimension
  uint32_t box[5];     ///< in elements
  int rank;
  uint16_t element, span;  ///< bytes of an element, and of the swizzle
};

/// The part of a tensor that one instruction copies.
struct Box {
  EncodedMap map;
  int at[5];  ///< coordinates of its first element
};

/// One copy of a box to shared memory, between its issue and its landing.
struct BoxLoad {
  int thread;
  unsigned char* destination;
  size_t bytes;  ///< that count at the mbarrier
  struct Mbarrier* barrier;
  uint32_t phase;  ///< of the barrier, when it was issued
  bool delivered = false;
  bool readable;  ///< all of it lies in allocations
  Site site;
  Box box;
};

struct Mbarrier {
  void* address;
  Site site;  ///< of its mbarrier_init
  uint32_t init_thread;
  Time init_time;
  Time fence_time = 0;    ///< when its thread made the initialization visible to the async proxy; 0: not yet
  int count, pending;     ///< arrivals a phase needs, and those that this one still misses
  int64_t bytes = 0;      ///< expected, less those that landed
  uint32_t phase = 0;     ///< that runs
  uint32_t observed = 0;  ///< phases that some wait has seen complete
  int in_flight = 0;      ///< copies that will count here
  Site expected_at{};     ///< the last mbarrier_expect
  uint32_t engine;
  std::vector<Release> arrivals;  ///< of the running phase
  Knowledge clock;                ///< what the completion of the last phase makes known
  Knowledge from, to;             ///< the last that acquired it: most threads of a warp knew the same before
  std::vector<Thread*> sleepers;
};

/// A store of a box from shared memory, between its issue and the wait that covers it.
struct BoxStore {
  Site site;
  Time time;  ///< of its reads, on the engine of its thread's stores
  bool delivered;
  Box box;
  const unsigned char* source;
};

/// A register array that a thread named to the tensor core, or that is in use there.
struct Registers {
  uintptr_t begin, end;
  bool clean;      ///< of named ones: a fence has handed them over, and no access came since
  uint64_t group;  ///< of those in use: the last wgmma group that uses them
  bool accumulators;
  bool spoiled;  ///< the thread accessed them in flight: what would be written back may be another variable by now
  Site site;
};

/// Accumulators from the first wgmma that uses them until the wait that hands them back: a chain of additions.
struct Chain {
  std::vector<float*> registers;  ///< by thread of the warpgroup
  int columns;
  std::vector<float> matrix;  ///< [64][columns]
  uint64_t group;             ///< the last that adds to it
  Site site;
};

/// One wgmma.
struct Multiplication {
  std::shared_ptr<Chain> chain;
  bool from_registers, accumulate, mn_major, executed;
  std::vector<const uint32_t*> a_registers;
  uint64_t a, b;
  uint64_t group;
  Time time;  ///< of its reads, on the warpgroup's tensor engine
  Site site;
  Number a_number = Number::half, b_number = Number::half;
};

struct Warpgroup {
  // The instruction whose threads have not all arrived.
  const char* instruction = nullptr;
  Site site{};
  int arrived = 0;
  void* arguments[warpgroup_size];

  // wgmma
  uint32_t engine = no_engine;
  uint64_t open_group = 0,
           complete_groups = 0;                ///< the group that the next commit closes; [0, complete) have been waited for
  std::vector<Multiplication> pipeline;        ///< not yet waited for, oldest first
  std::vector<std::shared_ptr<Chain>> chains;  ///< in flight
  std::vector<std::shared_ptr<Chain>> completed;  ///< by the last wait: each thread fetches its registers itself
  Time complete_time = 0;                         ///< of the latest read that has been waited for

  // setmaxnreg
  int registers = 0;  ///< a thread
  int wanted = 0;     ///< what setmaxnreg_inc waits for, 0: nothing
  Site wanted_at{};
  bool reallocated = false;
  std::vector<Thread*> sleepers;
};

}  // namespace simulator
