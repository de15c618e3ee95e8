// A step that misbehaves in the way that the number of heads asks for.
#include <cstdlib>

#include <hardware/half.h>
#include <hardware/launch.h>
#include <hardware/simt.h>

#include "reference_cpu/attention.h"

namespace faulty_step {
namespace {

// Keep in step with test_course.cpp.
enum Fault {
  writes_zeros = 1,
  writes_nothing,
  loops_forever,
  deadlocks,
  writes_past_O,
  wild_pointer,
  writes_Q,
  aborts,
  exits,
  refuses
};

__global__ void faulty_kernel(int fault, half* Q, half* O, float* LSE, int64_t rows, int64_t dim) {
  const int64_t n = rows * dim;
  if (fault == loops_forever)
    for (;;) LSE[threadIdx.x % 2] = 1;
  if (fault == deadlocks) {
    if (threadIdx.x < 32) __syncthreads();
    if (threadIdx.x >= 32) __syncwarp(threadIdx.x == 32 ? 3u : 1u);
  }
  if (fault == wild_pointer) *reinterpret_cast<volatile float*>(16) = 1;
  if (fault == writes_Q && threadIdx.x == 0) Q[0] = to_half(7);
  if (fault == writes_nothing) return;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) O[i] = to_half(0);
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) LSE[i] = 0;
  if (fault == writes_past_O && threadIdx.x == 0) O[n] = to_half(0);
}

}  // namespace

size_t workspace_bytes(const attention::Problem&, const Device&) { return 0; }

void forward(const attention::Problem& p, const attention::Tensors& t, const Device& device) {
  if (p.heads == aborts) std::abort();
  if (p.heads == exits) std::_Exit(0);
  if (p.heads == refuses) throw attention::Refused("Ten heads are too many for this step.");
  launch("faulty_kernel", faulty_kernel, dim3(1), 64, 0, device, static_cast<int>(p.heads),
         const_cast<half*>(static_cast<const half*>(t.Q)), static_cast<half*>(t.O), t.LSE, p.query_rows(),
         p.dim);
}

}  // namespace faulty_step
