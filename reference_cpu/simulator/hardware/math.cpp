/// @file
#include "math.h"

#include "../timeline.h"

inline namespace simulated {
namespace {

float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

}  // namespace

float multiply_add(float a, float b, float c) {
  simulator::count(simulator::Count::scalar_flops, 2);
  return std::fmaf(a, b, c);
}

float exp2_approx(float x) {
  simulator::count(simulator::Count::exponentials, 1);
  if (simulator::recording) [[unlikely]] simulator::note_arithmetic(true);
  return flush(std::exp2f(flush(x)));
}

float reciprocal(float x) {
  simulator::count(simulator::Count::divisions, 1);
  if (simulator::recording) [[unlikely]] simulator::note_arithmetic(false);
  return flush(1.0f / flush(x));
}

float rescale(float x, float factor) {
  simulator::count(simulator::Count::rescales, 1);
  if (simulator::recording) [[unlikely]] simulator::note_arithmetic(false);
  return x * factor;
}

}  // namespace simulated
