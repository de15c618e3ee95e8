/// @file
/// The tensor cores of a warpgroup: matrices from shared memory and registers, multiplied at some moment between issue and
/// wait (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). tensor_core.cpp multiplies.
#include <algorithm>
#include <cmath>

#include "machine.h"
#include "tensor_core.h"
#include "timeline.h"

namespace simulator {
namespace {

// Where register i of thread t lies in the 64 x columns matrix.
size_t element_of(int t, int i, int columns) {
  const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
  return static_cast<size_t>(row * columns + column);
}

// The chain that these accumulators continue, or a new one.
std::shared_ptr<Chain> chain_of(Warpgroup& group, void* const* arguments, Site site) {
  std::vector<float*> registers(warpgroup_size);
  for (size_t t = 0; t < warpgroup_size; ++t) registers[t] = static_cast<const WgmmaArguments*>(arguments[t])->c;
  for (const auto& chain : group.chains)
    if (chain->registers == registers) return chain;
  const int count = static_cast<const WgmmaArguments*>(arguments[0])->count;
  auto chain = std::make_shared<Chain>(
      Chain{std::move(registers), 2 * count, std::vector<float>(static_cast<size_t>(128 * count)), 0, site});
  for (int t = 0; t < warpgroup_size; ++t)
    for (int i = 0; i < count; ++i) {
      float& r = chain->registers[static_cast<size_t>(t)][i];
      chain->matrix[element_of(t, i, chain->columns)] = r;
      r = NAN;  // until the wait
    }
  group.chains.push_back(chain);
  return chain;
}

void execute_pending(Warpgroup& group, uint64_t groups) {
  for (Multiplication& op : group.pipeline)
    if (!op.executed && op.group < groups) execute(op);
}

void issue(Warpgroup& group, void* const* arguments, Site site) {
  const auto& first = *static_cast<const WgmmaArguments*>(arguments[0]);
  for (int t = 1; t < warpgroup_size; ++t) {
    const auto& other = *static_cast<const WgmmaArguments*>(arguments[t]);
    if (other.a != first.a || other.b != first.b || other.accumulate != first.accumulate)
      fail("collective",
           "The threads of a warpgroup pass different " +
               std::string(other.accumulate != first.accumulate ? "flags to accumulate" : "descriptors") +
               " to wgmma: thread " + std::to_string(t) + " and thread 0 of the warpgroup do.",
           site);
  }
  if (group.engine == no_engine) group.engine = new_engine(site);
  Multiplication op{chain_of(group, arguments, site),
                    first.a_registers != nullptr,
                    first.accumulate,
                    first.mn_major,
                    false,
                    {},
                    first.a,
                    first.b,
                    group.open_group,
                    engine_time(group.engine),
                    site,
                    first.a_number,
                    first.b_number};
  op.chain->group = op.group;
  if (op.from_registers)
    for (int t = 0; t < warpgroup_size; ++t)
      op.a_registers.push_back(static_cast<const WgmmaArguments*>(arguments[t])->a_registers);
  check_factors(op, group);
  count(Count::tensor_flops, static_cast<uint64_t>(2 * 64 * depth_of(op.a_number) * op.chain->columns));
  group.pipeline.push_back(std::move(op));
  const Schedule schedule = machine.options.schedule;
  if (schedule == Schedule::early || (schedule == Schedule::random && machine.random() % 2))
    execute_pending(group, UINT64_MAX);
}

// The groups up to group.complete_groups are waited for.
void complete(Warpgroup& group, void* const*, Site) {
  execute_pending(group, group.complete_groups);
  auto done = [&](uint64_t last) { return last < group.complete_groups; };
  for (const Multiplication& op : group.pipeline)
    if (done(op.group)) group.complete_time = op.time;
  std::erase_if(group.pipeline, [&](const Multiplication& op) { return done(op.group); });
  group.completed.clear();
  for (const auto& chain : group.chains)
    if (done(chain->group)) group.completed.push_back(chain);
  std::erase_if(group.chains, [&](const auto& chain) { return done(chain->group); });
}

Warpgroup* own_warpgroup() {
  const auto number = static_cast<size_t>(machine.thread->warpgroup());
  return number < machine.cta->warpgroups.size() ? &machine.cta->warpgroups[number] : nullptr;
}

void nothing(Warpgroup&, void* const*, Site) {}

}  // namespace

void wgmma_fence(const RegisterArray* arrays, int count, Site site) {
  if (mutated("wgmma_fence", "drop", site)) return;
  for (int i = 0; i < count; ++i) name_registers(*machine.thread, arrays[i], site);
  warpgroup_collective("wgmma_fence", nullptr, nothing, site);
}

void wgmma(const WgmmaArguments& arguments, Site site) {
  Thread& self = *machine.thread;
  if (const Warpgroup* group = own_warpgroup()) {
    use_registers(self, arguments.c, static_cast<size_t>(arguments.count) * 4, true, group->open_group, site);
    if (arguments.a_registers) use_registers(self, arguments.a_registers, 16, false, group->open_group, site);
  }
  auto copy = arguments;
  warpgroup_collective("wgmma", &copy, issue, site);
  const Warpgroup& group = *own_warpgroup();
  // 16 rows a warp, and FP16's depth: FP8 has twice that at twice the rate.
  if (recording) note_product(2.0 * 16 * 16 * 2 * arguments.count, &group, group.open_group);
}

void wgmma_commit(Site site) {
  if (mutated("wgmma_commit", "drop", site)) return;
  warpgroup_collective(
      "wgmma_commit", nullptr, [](Warpgroup& group, void* const*, Site) { ++group.open_group; }, site);
}

void wgmma_wait(int groups_left_pending, const RegisterArray* arrays, int count, Site site) {
  if (mutated("wgmma_wait", "drop", site)) return;
  if (mutated("wgmma_wait", "one group fewer", site)) ++groups_left_pending;
  Thread& self = *machine.thread;
  warpgroup_collective(
      "wgmma_wait", &groups_left_pending,
      [](Warpgroup& group, void* const* arguments, Site here) {
        const auto pending = static_cast<uint64_t>(*static_cast<const int*>(arguments[0]));
        if (group.open_group > pending) group.complete_groups = std::max(group.complete_groups, group.open_group - pending);
        complete(group, arguments, here);
      },
      site);
  Warpgroup& group = *own_warpgroup();
  if (recording && group.complete_groups > 0) note_wait(&group, group.complete_groups - 1, site);
  self.tensor_engine = group.engine;
  self.tensor_known = group.complete_time;
  const auto t = static_cast<size_t>(self.id % warpgroup_size);
  check_waited_registers(self, group.complete_groups, arrays, count, site);
  for (const Registers& r : self.in_use) {
    if (r.group >= group.complete_groups || !r.accumulators || r.spoiled) continue;
    for (const auto& chain : group.completed)
      if (float* c = chain->registers[t]; reinterpret_cast<uintptr_t>(c) == r.begin)
        for (int i = 0; i < chain->columns / 2; ++i)
          c[i] = chain->matrix[element_of(static_cast<int>(t), i, chain->columns)];
  }
  std::erase_if(self.in_use, [&](const Registers& r) { return r.group < group.complete_groups; });
}

void end_wgmma(Cta& cta) {
  for (const Warpgroup& group : cta.warpgroups)
    for (const Multiplication& op : group.pipeline)
      report_once("registers", place_of(op.site), place_of(op.site), [&] {
        const auto first = static_cast<size_t>(&group - cta.warpgroups.data()) * warpgroup_size;
        return "The wgmma at " + describe_place(place_of(op.site)) + " (" + describe_thread(cta.threads[first]) +
               ") is in flight when the CTA ends: no wgmma_wait has covered it.";
      });
}

}  // namespace simulator
