/// @file
/// The user's side: reset, the ledger, the reports.
#include "simulator.h"

#include <set>

#include "machine.h"
#include "timeline.h"

namespace simulator {

void reset(const Options& options) {
  machine.options = options;
  machine.ledger = {};
  machine.reports.clear();
  machine.reported_places.clear();
  machine.reported.clear();
  machine.sites.clear();
  machine.random.seed(options.seed);
  forget_recorded();
}

const Ledger& ledger() { return machine.ledger; }
const std::vector<Report>& reports() { return machine.reports; }

std::vector<SyncSite> sync_sites() {
  std::vector<SyncSite> all;
  for (const auto& [key, site] : machine.sites) all.push_back(site);
  return all;
}

void count(Count what, uint64_t amount) {
  Ledger& ledger = machine.ledger;
  switch (what) {
    case Count::scalar_flops: ledger.scalar_flops += amount; break;
    case Count::tensor_flops: ledger.tensor_flops += amount; break;
    case Count::exponentials: ledger.exponentials += amount; break;
    case Count::divisions: ledger.divisions += amount; break;
    case Count::rescales: ledger.rescales += amount; break;
    case Count::shuffles: ledger.shuffles += amount; break;
  }
}

// Shared memory serves 128 bytes a pass from 32 banks of 4 bytes. A matrix of ldmatrix is eight rows of 16 bytes:
// one pass if the rows fall into eight different groups of four banks; rows at the same address share a pass.
void count_bank_conflicts(const void* const* rows, int count) {
  int passes = 1;
  for (int group = 0; group < 8; ++group) {
    std::set<uintptr_t> different;
    for (int i = 0; i < count; ++i) {
      const auto address = reinterpret_cast<uintptr_t>(rows[i]) / 16;
      if (address % 8 == static_cast<uintptr_t>(group)) different.insert(address);
    }
    passes = std::max(passes, static_cast<int>(different.size()));
  }
  machine.ledger.bank_conflicts += static_cast<uint64_t>(passes - 1);
}

}  // namespace simulator
