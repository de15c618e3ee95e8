/// @file
/// What the simulated hardware/ headers ask of the machine. Kernels never include this directly.
///
/// This header is read by units that are compiled with hooks and by units that are not, so it declares and
/// defines no inline function with a body worth sharing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulator {

/// Where in a kernel's source an instruction stands. Wrappers take it as default arguments, which the compiler
/// evaluates at the caller.
struct Site {
  const char* file;
  int line;
};
#define SIMULATOR_SITE_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIMULATOR_SITE ::simulator::Site { file, line }

struct Index3 {
  unsigned x, y, z;
};

/// One launch of a kernel whose type has been erased.
struct Launch {
  const char* name;
  Index3 grid, block;
  size_t dynamic_shared_bytes;
  void (*body)(const void* arguments);  ///< calls the kernel
  const void* arguments;                ///< live for the whole launch
  void* static_shared;                  ///< any __shared__ variable of the kernel's module
};

/// Runs every CTA to its end. Throws std::runtime_error with the report if the kernel cannot go on.
void launch(const Launch& launch);

/// First byte of the running CTA's dynamic shared memory, aligned to 1024 bytes as on the GPU.
void* dynamic_shared_memory();

// --- synchronization -----------------------------------------------------------------------------------------

/// The action of an instruction that a whole warp (or the lanes of a mask) executes together.
/// @param lanes  lanes[i] is the argument that lane i passed; null outside the mask
using WarpAction = void (*)(void* const* lanes, unsigned mask);

/// Waits until every lane of `mask` has arrived at the same instruction; the last one runs `action` for all.
void warp_collective(const char* instruction, unsigned mask, void* argument, WarpAction action, Site site);

/// __syncwarp: as a collective, and the lanes see each other's memory accesses afterwards.
void warp_sync(unsigned mask, Site site);

/// __syncthreads, and any barrier of the CTA: waits until `threads` threads are there (PTX barrier.sync).
/// @param threads  how many threads take part, 0 for all that have not returned
void barrier_sync(const char* call, int id, int threads, Site site);

/// Barriers 1..15 of some warps, with and without waiting (PTX bar.sync, bar.arrive).
void named_barrier_sync(int id, int threads, Site site);
void named_barrier_arrive(int id, int threads, Site site);

/// The registers a thread of the calling warpgroup, fewer or more (PTX setmaxnreg).
void setmaxnreg_dec(int count, Site site);
void setmaxnreg_inc(int count, Site site);

/// Is the call at this site the one that the current mutant alters in this way? Registers the site and the kind.
bool mutated(const char* call, const char* kind, Site site);

// --- memory, for wrapped instructions ------------------------------------------------------------------------

/// A load or store that a wrapped instruction makes for one lane: bounds, races and the ledger as for a plain one.
/// @param thread  threadIdx.x of the lane that it is made for
void wrapped_read(const void* address, size_t bytes, int thread, Site site);
void wrapped_write(void* address, size_t bytes, int thread, Site site);
/// Atomic read-modify-write of global or shared memory: never races with another atomic.
void atomic_access(void* address, size_t bytes, Site site);

/// Counts the extra passes that shared memory needs for accesses of 16 bytes made together.
void count_bank_conflicts(const void* const* rows, int count);

/// Is this an address of the running CTA's shared memory?
bool is_shared(const void* address);

// --- asynchronous copies -------------------------------------------------------------------------------------

/// cp.async: `bytes` from global `source` to shared `destination`, of which those past `valid` become zero.
void async_copy(void* destination, const void* source, int bytes, int valid, Site site);
void async_commit(Site site);
void async_wait(int groups_left_pending, Site site);

// --- mbarriers: hardware/mbarrier.h ----------------------------------------------------------------------------

void mbarrier_init(void* barrier, int arrivals, Site site);
void fence_mbarrier_init(Site site);
void mbarrier_arrive(void* barrier, Site site);
void mbarrier_expect(void* barrier, int bytes, Site site);
void mbarrier_wait(void* barrier, int parity, Site site);

// --- copies of boxes: hardware/tma.h -------------------------------------------------------------------------------

/// Writes a map of at most 128 bytes. Throws std::runtime_error with the rule and the number that breaks it.
void encode_tensor_map(void* map, const void* base, int rank, const uint64_t* size, const uint64_t* stride,
                       const uint32_t* box, int element_bytes, int swizzle_span);
/// @param at  coordinates of the box's first element, innermost first
void box_load(void* shared, const void* map, void* barrier, const int* at, int rank, Site site);
void box_store(const void* map, const void* shared, const int* at, int rank, Site site);
void box_commit(Site site);
void box_wait_read(int groups_left_pending, Site site);
void fence_proxy_async(Site site);

// --- matrices of a warpgroup: hardware/wgmma.h ---------------------------------------------------------------------

/// What a factor of wgmma consists of.
enum class Number { half, bfloat16, e4m3, e5m2 };
/// What one thread passes to wgmma.
struct WgmmaArguments {
  float* c;
  int count;                    ///< registers of c: half of the columns
  const uint32_t* a_registers;  ///< four, or null: A lies in shared memory
  uint64_t a, b;                ///< descriptors
  bool accumulate, mn_major;    ///< mn_major: B lies as [K][N]
  Number a_number = Number::half, b_number = Number::half;
};
/// Registers that a thread names.
struct RegisterArray {
  const void* begin;
  size_t bytes;
};
void wgmma(const WgmmaArguments& arguments, Site site);
void wgmma_fence(const RegisterArray* arrays, int count, Site site);
void wgmma_commit(Site site);
void wgmma_wait(int groups_left_pending, const RegisterArray* arrays, int count, Site site);
/// The address of shared memory that a descriptor holds: 0 is the first byte of the CTA's dynamic shared memory.
uint32_t shared_window(const void* address);

// --- counting and failing ------------------------------------------------------------------------------------

int thread_index();  ///< of the running thread within its CTA, x fastest
int lane_index();    ///< of the running thread within its warp

/// Ends the launch with a report (and the kernel's place).
[[noreturn]] void fail(const char* kind, const char* text, Site site);

/// Adds to a counter of the ledger.
enum class Count { scalar_flops, tensor_flops, exponentials, divisions, rescales, shuffles };
void count(Count what, uint64_t amount);

}  // namespace simulator
