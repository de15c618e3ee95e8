/// @file
/// The C interface of device.gpu.so, the one library that calls the CUDA runtime for the program.
///
/// Every function that can fail returns a CUDA error number (0 is success) and writes a full sentence to
/// `error`.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// What the first GPU is.
typedef struct flash_gpu_info {
  char name[256];
  char driver[64];       ///< driver version, "580.159.03", or "" if NVML is absent
  int32_t major, minor;  ///< compute capability
  int32_t sm_count;
  uint64_t memory_bytes;
  uint64_t shared_bytes_per_cta;
  int32_t driver_cuda;  ///< CUDA version of the driver, 13000 = 13.0
  int32_t toolkit;      ///< CUDA version of the compiler
  int32_t debug;        ///< 1 if this library was compiled with -G or without -DNDEBUG
} flash_gpu_info;

int32_t flash_gpu_open(flash_gpu_info* info, char* error, int64_t error_bytes);

/// Global memory, aligned to 256 bytes.
int32_t flash_gpu_allocate(void** pointer, uint64_t bytes, char* error, int64_t error_bytes);
int32_t flash_gpu_free(void* pointer, char* error, int64_t error_bytes);
/// Between host and GPU, either way.
int32_t flash_gpu_copy(void* to, const void* from, uint64_t bytes, char* error, int64_t error_bytes);
/// Sets every byte.
int32_t flash_gpu_fill(void* pointer, int32_t byte, uint64_t bytes, char* error, int64_t error_bytes);
/// Waits until all work is done; reports an error of the kernels since the last call.
int32_t flash_gpu_synchronize(char* error, int64_t error_bytes);

/// Enqueues work on a stream (a cudaStream_t); returns 0, or not 0 to give up.
typedef int32_t (*flash_gpu_work)(void* context, void* stream);

/// Measures work that is launched over and over.
typedef struct flash_gpu_timing {
  double seconds;       ///< in: launch until this long has passed on the GPU
  int64_t capacity;     ///< in: no more launches than this; the room in start_ms and ms
  int32_t graph;        ///< in: 1 captures the work in a CUDA graph once, and launches that
  double clock_after;   ///< in: read the SM clock once after so many seconds
  double* start_ms;     ///< out: begin of each launch after the first one's begin
  double* ms;           ///< out: from one launch's end to the next one's end
  int64_t launches;     ///< out
  double sm_clock_mhz;  ///< out: 0 if it was not or could not be read
} flash_gpu_timing;

/// The GPU never waits for the host in between: a few launches are always in the queue.
int32_t flash_gpu_time(flash_gpu_work work, void* context, flash_gpu_timing* timing, char* error,
                       int64_t error_bytes);

/// Copies within the GPU's memory, on a stream (a cudaStream_t).
int32_t flash_gpu_copy_within(void* to, const void* from, uint64_t bytes, void* stream);

#ifdef __cplusplus
}
#endif
