/// @file
/// The warp's side of shuffles and votes, and the atomics.
#include "simt.h"

#include <bit>

inline namespace simulated {
namespace {

template <typename T>
T add(T* address, T value, simulator::Site site) {
  simulator::atomic_access(address, sizeof(T), site);
  const T before = *address;
  *address = before + value;
  return before;
}

}  // namespace

void shuffle(const char* instruction, unsigned mask, ShuffleArgument& argument, simulator::Site site) {
  simulator::warp_collective(
      instruction, mask, &argument,
      [](void* const* lanes, unsigned active) {
        simulator::count(simulator::Count::shuffles, 1);
        for (unsigned rest = active; rest; rest &= rest - 1) {
          auto* self = static_cast<ShuffleArgument*>(lanes[std::countr_zero(rest)]);
          auto* source = static_cast<ShuffleArgument*>(lanes[self->source & 31]);
          self->result = source ? source->value : 0xFFFFFFFFu;  // undefined on the GPU: a lane outside the mask
        }
      },
      site);
}

unsigned ballot(const char* instruction, unsigned mask, int predicate, simulator::Site site) {
  struct Vote {
    int predicate;
    unsigned result;
  } vote{predicate, 0};
  simulator::warp_collective(
      instruction, mask, &vote,
      [](void* const* lanes, unsigned active) {
        simulator::count(simulator::Count::shuffles, 1);
        unsigned result = 0;
        for (unsigned rest = active; rest; rest &= rest - 1)
          if (static_cast<Vote*>(lanes[std::countr_zero(rest)])->predicate) result |= 1u << std::countr_zero(rest);
        for (unsigned rest = active; rest; rest &= rest - 1)
          static_cast<Vote*>(lanes[std::countr_zero(rest)])->result = result;
      },
      site);
  return vote.result;
}

unsigned atomicAdd(unsigned* address, unsigned value, const char* file, int line) {
  return add(address, value, SIMULATOR_SITE);
}
int atomicAdd(int* address, int value, const char* file, int line) { return add(address, value, SIMULATOR_SITE); }
float atomicAdd(float* address, float value, const char* file, int line) { return add(address, value, SIMULATOR_SITE); }

}  // namespace simulated
