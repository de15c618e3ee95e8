/// @file
/// A latency model on top of the simulation: when each copy, product, softmax and wait of one CTA would begin and end.
///
/// While a kernel runs, the first CTA of each launch is recorded, if Options::timeline asks for it: for each warp, the
/// wrapped instructions that its lane 0 executes, in order. Times are computed afterwards. Every warp has a clock that its
/// instructions advance; every phase of an mbarrier, barrier or group is a gate, which opens when the last arrival has come
/// and sends its waiters on. So the model needs no marks in a kernel.
///
/// A tensor core, an exponential unit and the copy engine serve one request after another, in the order in which they came.
/// (A fair share of the tensor core for all who ask was tried: then equal warpgroups stay in step for ever, and 31, 32 and
/// 33 idle 50, 49 and 48 %. The H200's profile says 49, 35 and 29, this model 50, 40 and 31.)
///
/// It teaches; it does not promise microseconds. Left out: other CTAs on the SM, ordinary loads and stores, ldmatrix and
/// stmatrix, bank conflicts, misses of the L2, power and clock, the instructions one by one and what the compiler moves, and
/// what lanes other than 0 do alone. Absolute times may be off by a factor of two.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "core.h"

namespace simulator {

/// The parameters, an H200's. A quadrant is a quarter of an SM: it has every fourth warp, and tensor core and exponential
/// unit of its own. Times are cycles of the SM. The rates of tensor core and exponentials are the hardware's. The numbers
/// about instructions are fitted to the profile of 32, the copies' rate was chosen with that of 34 in view: at half of it,
/// 34 waits for its tiles and idles as much as 33. The latencies are guesses.
struct Model {
  double tensor_flops = 1024;             ///< a clock and quadrant, dense FP16: 4096 an SM
  double mma_sync_share = 2.0 / 3;        ///< of tensor_flops that mma.sync reaches on Hopper
  double tensor_latency = 100;            ///< from the end of a wgmma group until a waiter goes on
  double exponentials = 4;                ///< a clock and quadrant: 16 an SM
  double instructions_an_exponential = 6.5;  ///< itself and all else in softmax, so that a block has ncu's 498 a warp (32)
  double cycles_an_instruction = 3.6;     ///< of a warp that waits for nobody; ncu's stall reasons in docs/results/h200
  double copy_bytes = 64;                 ///< a clock and SM, from L2
  double copy_latency = 700;              ///< until the first byte
  double barrier_latency = 30;            ///< from the last arrival until a waiter goes on
};

/// What one warp does next.
struct Operation {
  enum class Kind { arithmetic, mma, wgmma, copy, store, arrive, wait } kind;
  double amount;        ///< instructions without exponentials, FLOP, or bytes
  double exponentials;  ///< of the warp: one instruction is one
  int gate;             ///< where it arrives (a copy or wgmma: when it is done), or what it waits for; -1: none
  int line;             ///< in the kernel's source, 0: unknown
};

/// A phase of a barrier, or a group of copies or products.
struct Gate {
  int arrivals = 0;  ///< that open it
  bool copies = false, products = false;  ///< among them
  int warp = -1, copy = -1;               ///< the cp.async that the lanes of a warp share
};

/// What one CTA did.
struct Record {
  std::vector<std::vector<Operation>> warps;
  std::vector<Gate> gates;
  size_t size() const;
};

/// One bar of the timeline.
struct Span {
  enum class Kind { softmax, arithmetic, product, copy, store, wait_for_copy, wait_for_tensor, wait_for_warps } kind;
  enum class Unit { warp, tensor, copy_engine } unit;
  int number;         ///< of the warp or quadrant
  double begin, end;  ///< cycles since the CTA began
  double amount;      ///< FLOP or bytes
  int warp;           ///< that started it
  int line;           ///< of the instruction, or 0
};

/// All of them, and how long the CTA lives.
struct Timeline {
  std::vector<Span> spans;
  double end = 0;
};

/// A part of a CTA's life, and which share of it the tensor core has nothing to do.
struct Steady {
  double begin, end, idle;
};

/// The longest record since reset() with Options::timeline.
const Record& recorded();

/// Computes the times.
Timeline replay(const Record& record, const Model& model = {});

/// Cycles before `time` in which the tensor cores work, on the average of the quadrants.
double tensor_busy(const Timeline& timeline, double time);
/// The part in which the second and third quarter of all products are done: without the first loads, the first softmax and
/// the end. For a loop it is a whole number of rounds.
Steady steady_part(const Timeline& timeline);

// --- what the simulator's units tell the recorder, for the running thread ------------------------------------------

[[gnu::visibility("hidden")]] extern bool recording;  ///< ask before each call: that is all that a run without pays
void forget_recorded();
void start_recording(size_t warps);
void end_recording();
void note_arithmetic(bool exponential);
void note_product(double flops, const void* group_of, uint64_t group);  ///< of the warp; null: mma.sync, done at once
void note_copy(Operation::Kind kind, double bytes, const void* gate_of, uint64_t phase, bool shared_by_lanes, Site site);
void note_arrival(const void* gate_of, uint64_t phase);
void note_wait(const void* gate_of, uint64_t phase, Site site);

}  // namespace simulator
