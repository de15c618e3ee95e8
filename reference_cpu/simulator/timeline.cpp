/// @file
/// Records what the warps of a CTA do, and computes when.
#include "timeline.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "machine.h"

namespace simulator {

bool recording = false;

namespace {

using Kind = Operation::Kind;

struct Recorder {
  Record record, longest;
  std::map<std::pair<const void*, uint64_t>, int> gates;
};
Recorder recorder;

bool is_lane_0() { return machine.thread->lane() == 0; }

std::vector<Operation>& operations() { return recorder.record.warps[static_cast<size_t>(machine.thread->warp())]; }

int gate_number(const void* gate_of, uint64_t phase) {
  const auto [entry, added] = recorder.gates.insert({{gate_of, phase}, static_cast<int>(recorder.gates.size())});
  if (added) recorder.record.gates.emplace_back();
  return entry->second;
}

// Instructions that follow each other without a wait are one operation.
Operation& append_or_extend(Kind kind, int gate) {
  auto& all = operations();
  if (all.empty() || all.back().kind != kind || all.back().gate != gate) {
    all.push_back({kind, 0, 0, gate, 0});
    if (gate >= 0) ++recorder.record.gates[static_cast<size_t>(gate)].arrivals;
  }
  return all.back();
}

}  // namespace

size_t Record::size() const {
  size_t sum = 0;
  for (const auto& warp : warps) sum += warp.size();
  return sum;
}

const Record& recorded() { return recorder.longest; }

void forget_recorded() { recorder = {}; }

void start_recording(size_t warps) {
  recorder.record = {};
  recorder.record.warps.resize(warps);
  recorder.gates.clear();
  recording = true;
}

void end_recording() {
  recording = false;
  if (recorder.record.size() > recorder.longest.size()) recorder.longest = std::move(recorder.record);
}

void note_arithmetic(bool exponential) {
  if (!is_lane_0()) return;
  Operation& work = append_or_extend(Kind::arithmetic, -1);
  ++(exponential ? work.exponentials : work.amount);
}

void note_product(double flops, const void* group_of, uint64_t group) {
  if (!is_lane_0()) return;
  const int gate = group_of ? gate_number(group_of, group) : -1;
  append_or_extend(group_of ? Kind::wgmma : Kind::mma, gate).amount += flops;
  if (gate >= 0) recorder.record.gates[static_cast<size_t>(gate)].products = true;
}

void note_copy(Kind kind, double bytes, const void* gate_of, uint64_t phase, bool shared_by_lanes, Site site) {
  const int number = gate_number(gate_of, phase);
  Gate& gate = recorder.record.gates[static_cast<size_t>(number)];
  gate.copies = true;
  if (shared_by_lanes && gate.copy >= 0) {  // the lanes' pieces together are one copy
    recorder.record.warps[static_cast<size_t>(gate.warp)][static_cast<size_t>(gate.copy)].amount += bytes;
    return;
  }
  ++gate.arrivals;
  gate.warp = machine.thread->warp();
  gate.copy = static_cast<int>(operations().size());
  operations().push_back({kind, bytes, 0, number, site.line});
}

void note_arrival(const void* gate_of, uint64_t phase) {
  if (!is_lane_0()) return;
  const int gate = gate_number(gate_of, phase);
  ++recorder.record.gates[static_cast<size_t>(gate)].arrivals;
  operations().push_back({Kind::arrive, 0, 0, gate, 0});
}

void note_wait(const void* gate_of, uint64_t phase, Site site) {
  if (is_lane_0()) operations().push_back({Kind::wait, 0, 0, gate_number(gate_of, phase), site.line});
}

// --- the replay ------------------------------------------------------------------------------------------------------

namespace {

constexpr size_t quadrants = 4;

class Replay {
public:
  Replay(const Record& record, const Model& model)
      : record_(record), model_(model), warps_(record.warps.size()), gates_(record.gates.size()) {}

  Timeline run() {
    for (size_t i = earliest(); i < warps_.size(); i = earliest()) step(i);
    for (size_t i = 0; i < warps_.size(); ++i)
      if (warps_[i].next < record_.warps[i].size())
        throw std::logic_error("The timeline's model waits for something that never comes.");
    return std::move(timeline_);
  }

private:
  struct Warp {
    double clock = 0;
    size_t next = 0;
  };
  struct State {
    int arrived = 0;
    double time = 0;  // of the last arrival
  };

  bool is_open(int gate) const {
    return gates_[static_cast<size_t>(gate)].arrived == record_.gates[static_cast<size_t>(gate)].arrivals;
  }

  // The warp with the earliest clock that can go on. Nobody can disturb it any more, since nobody's past changes.
  size_t earliest() const {
    size_t best = warps_.size();
    for (size_t i = 0; i < warps_.size(); ++i) {
      if (warps_[i].next == record_.warps[i].size()) continue;
      const Operation& op = record_.warps[i][warps_[i].next];
      if (op.kind == Kind::wait && !is_open(op.gate)) continue;
      if (best == warps_.size() || ready(i, op) < ready(best, record_.warps[best][warps_[best].next])) best = i;
    }
    return best;
  }
  double ready(size_t warp, const Operation& op) const {
    const double clock = warps_[warp].clock;
    return op.kind == Kind::wait ? std::max(clock, gates_[static_cast<size_t>(op.gate)].time) : clock;
  }

  void step(size_t i) {
    Warp& warp = warps_[i];
    const Operation& op = record_.warps[i][warp.next++];
    const size_t quadrant = i % quadrants;
    switch (op.kind) {
      case Kind::arithmetic: return compute(i, op);
      case Kind::mma: {
        const double end = serve(tensor_[quadrant], warp.clock, op.amount / (model_.tensor_flops * model_.mma_sync_share));
        add(Span::Kind::product, Span::Unit::warp, i, warp.clock, end, op, i);
        add(Span::Kind::product, Span::Unit::tensor, quadrant, served_from_, end, op, i);
        warp.clock = end;
        return;
      }
      case Kind::wgmma: {
        warp.clock += model_.cycles_an_instruction;
        const double end = serve(tensor_[quadrant], warp.clock, op.amount / model_.tensor_flops);
        add(Span::Kind::product, Span::Unit::tensor, quadrant, served_from_, end, op, i);
        return arrive(op.gate, end + model_.tensor_latency);
      }
      case Kind::copy:
      case Kind::store: {
        warp.clock += model_.cycles_an_instruction;
        const bool load = op.kind == Kind::copy;
        const double read = serve(copy_engine_, warp.clock, op.amount / model_.copy_bytes), end = read + model_.copy_latency;
        add(load ? Span::Kind::copy : Span::Kind::store, Span::Unit::copy_engine, 0, served_from_, end, op, i);
        return arrive(op.gate, load ? end : read);  // who waits for a store waits until it has read shared memory
      }
      case Kind::arrive:
        warp.clock += model_.cycles_an_instruction;
        return arrive(op.gate, warp.clock + model_.barrier_latency);
      case Kind::wait: {
        const Gate& gate = record_.gates[static_cast<size_t>(op.gate)];
        const double end = ready(i, op);
        add(gate.products ? Span::Kind::wait_for_tensor
            : gate.copies ? Span::Kind::wait_for_copy
                          : Span::Kind::wait_for_warps,
            Span::Unit::warp, i, warp.clock, end, op, i);
        warp.clock = end + model_.cycles_an_instruction;
      }
    }
  }

  // A warp's arithmetic takes the time of its instructions, or longer if its quadrant's exponential unit is behind.
  void compute(size_t i, const Operation& op) {
    Warp& warp = warps_[i];
    const double instructions = op.amount + op.exponentials * model_.instructions_an_exponential;
    double end = warp.clock + instructions * model_.cycles_an_instruction;
    if (op.exponentials > 0)
      end = std::max(end, serve(exponential_[i % quadrants], warp.clock, op.exponentials * warp_size / model_.exponentials));
    add(op.exponentials > 0 ? Span::Kind::softmax : Span::Kind::arithmetic, Span::Unit::warp, i, warp.clock, end, op, i);
    warp.clock = end;
  }

  // One piece of work after another, in the order in which they are asked for. Returns the end.
  double serve(double& free_from, double now, double cycles) {
    served_from_ = std::max(now, free_from);
    return free_from = served_from_ + cycles;
  }

  void arrive(int gate, double time) {
    State& state = gates_[static_cast<size_t>(gate)];
    ++state.arrived;
    state.time = std::max(state.time, time);
  }

  void add(Span::Kind kind, Span::Unit unit, size_t number, double begin, double end, const Operation& op, size_t warp) {
    timeline_.end = std::max(timeline_.end, end);
    if (end > begin)
      timeline_.spans.push_back(
          {kind, unit, static_cast<int>(number), begin, end, op.amount, static_cast<int>(warp), op.line});
  }

  const Record& record_;
  const Model& model_;
  std::vector<Warp> warps_;
  std::vector<State> gates_;
  std::array<double, quadrants> tensor_{}, exponential_{};  // when each is free
  double copy_engine_ = 0, served_from_ = 0;
  Timeline timeline_;
};

}  // namespace

Timeline replay(const Record& record, const Model& model) { return Replay(record, model).run(); }

double tensor_busy(const Timeline& timeline, double time) {
  double busy = 0;
  for (const Span& s : timeline.spans)
    if (s.unit == Span::Unit::tensor) busy += std::clamp(time, s.begin, s.end) - s.begin;
  return busy / static_cast<double>(quadrants);
}

Steady steady_part(const Timeline& timeline) {
  const double all = tensor_busy(timeline, timeline.end);
  auto when_done = [&](double share) {  // the first time at which so much is done
    double low = 0, high = timeline.end;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (tensor_busy(timeline, middle) < share * all - 1e-6 ? low : high) = middle;
    }
    return high;
  };
  const double begin = when_done(0.25), end = when_done(0.75);
  return {begin, end, end > begin ? std::max(0.0, 1 - all / 2 / (end - begin)) : 0};
}

}  // namespace simulator
