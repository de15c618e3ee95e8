/// @file
/// The simulated GPU, as its user (the `learn` program, a test) sees it. Kernels see simulator/hardware/ only.
///
/// A CUDA thread is a fiber; the CTAs of a launch run one after another on the calling thread. Every plain load
/// and store of a kernel is seen (the kernel's unit is compiled with -fsanitize=thread,bounds and linked with
/// this library instead of the sanitizer's runtime). Nothing here is thread-safe: one simulated GPU a process.
///
/// Where the PTX ISA leaves a choice, the machine takes the side of what kernels do in practice, and says so here:
/// - that one warp has waited for a wgmma means that its warpgroup's part of it is complete;
/// - who stores to shared memory must itself fence the store for the async proxy, before the barrier that tells the reader;
///   ordinary reads before a copy overwrites what they read need the barrier alone;
/// - registers are handed to wgmma and back by the fence and the wait that name them;
/// - a launch has 65536 / threads registers a thread, rounded down to a multiple of 8 and at most 256;
/// - an mbarrier must not be in the middle of a phase when its CTA ends, and a barrier at which all only arrive is a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simulator {

/// What a run asked of the machine, summed over launches since reset(). Bytes are bytes, the rest are counts.
struct Ledger {
  uint64_t global_read = 0;            ///< bytes asked by loads, cp.async and the like; of boxes those inside the tensor
  uint64_t global_written = 0;         ///< bytes asked by stores, and those of boxes that are not clipped
  uint64_t global_read_distinct = 0;   ///< distinct bytes read, per launch
  uint64_t global_written_distinct = 0;///< distinct bytes written, per launch
  uint64_t shared_read = 0;            ///< bytes of shared memory, plain, wrapped and of boxes; not what wgmma reads
  uint64_t shared_written = 0;
  uint64_t bank_conflicts = 0;         ///< extra passes of wrapped shared-memory instructions (ldmatrix, stmatrix)
  uint64_t tensor_flops = 0;           ///< 2*m*n*k a matrix instruction
  uint64_t scalar_flops = 0;           ///< 2 an FFMA (hardware/math.h: fma)
  uint64_t exponentials = 0;           ///< exp2_approx
  uint64_t divisions = 0;              ///< reciprocal
  uint64_t rescales = 0;               ///< multiplications that carry O to a new maximum (rescale)
  uint64_t barriers = 0;               ///< CTA-wide and named barriers completed, per CTA
  uint64_t shuffles = 0;               ///< warp shuffles and votes completed, per warp
  uint64_t copy_instructions = 0;      ///< cp.async and bulk copies issued, per thread
  uint64_t atomics = 0;                ///< atomic operations on global memory
  uint64_t launches = 0;
  uint64_t ctas = 0;
};

/// When the effects of asynchronous instructions become visible, and in which order threads run.
enum class Schedule {
  early,  ///< effects at issue, threads in ascending order
  late,   ///< effects at the last legal moment, threads in descending order
  random  ///< both drawn from a seed
};

/// One altered synchronization call, named by its place in the kernel's source.
struct Mutant {
  std::string kind;  ///< "" (none), "drop", or a kind listed by sync_sites()
  int line = 0;      ///< of the call, in `file`
  std::string file;  ///< last component of the path is compared
};

struct Options {
  Schedule schedule = Schedule::early;
  uint64_t seed = 1;
  Mutant mutant;
  bool timeline = false;  ///< record the first CTA of each launch, for timeline.h
  /// Sums of wgmma_fp8 in an accumulator as narrow as Hopper's; false: in float. NVIDIA does not document it. The model:
  /// let e be the largest exponent among the 32 products of an instruction and the accumulator; each of them is cut towards
  /// zero to a multiple of 2^(e - 13), the sum of these is exact, and of the result 13 bits behind the leading one are kept.
  /// It follows what others found (SageAttention-2, arXiv 2411.10958: 1 + 8 + 13 bits; DeepSeek-V3, arXiv 2412.19437:
  /// aligned to the largest exponent, then cut). And it agrees with what FlashAttention-3's FP8 kernel loses of O on an H200
  /// when V has mean 1: measured 1.0, 2.3, 5.0, 10.1, 18.5, 30.2 % at 1k .. 32k keys, the model 0.9, 2.3, 5.0, 10.0, 18.6,
  /// 30.0 %; cut downwards, 14.6 % at 8k. Not known: whether all 32 products are aligned together, and what happens behind
  /// bit 13 on the way. So single bits may differ from the GPU's.
  bool narrow_fp8_sums = true;
};

/// A fault found while a kernel ran. Each is reported once, not once per lane.
struct Report {
  /// race, proxy, out of bounds, uninitialized, misaligned, address, async, mbarrier, registers, deadlock, barrier,
  /// collective
  std::string kind;
  std::string text;  ///< full sentence: kernel, CTA, warp and lane, source lines, barrier
};

/// A synchronization call that ran at least once since reset(), and how it can be mutated.
struct SyncSite {
  std::string file;
  int line = 0;
  std::string call;                ///< "__syncthreads", ...
  std::vector<std::string> kinds;  ///< "drop", ...
};

/// Forgets ledger, reports and sites, and sets the options. Memory stays allocated.
void reset(const Options& options = {});

/// Global memory. It starts as NaN (0xFF bytes); an access outside every allocation is reported.
/// @param name  for reports, e.g. "Q"
void* allocate(size_t bytes, const char* name);
void free_all();

/// Is the simulated machine's global memory (for steps that size their workspace by it).
inline constexpr size_t memory_bytes = size_t{256} << 20;
/// Streaming multiprocessors and shared memory a CTA: an H200's.
inline constexpr int sm_count = 132;
inline constexpr size_t shared_bytes_per_cta = 232448;

const Ledger& ledger();
const std::vector<Report>& reports();
std::vector<SyncSite> sync_sites();

/// A one-line description of what is running now ("scores_kernel, CTA 3, warp 2, lane 5"),
/// for a program that gives up on a run that takes too long. "" if nothing runs.
std::string where_now();

/// Called with a report's text when the kernel cannot go on (a wild pointer); must not return.
void on_fatal(void (*handler)(const char* text));

}  // namespace simulator
