/// @file
/// The simulated GPU's judgement of mbarriers, the copy engine, wgmma and warpgroups. Every fault of hopper_faults.cu gives
/// one report, of the right kind, that names kernel, CTA, warp, lane and lines, in every schedule; and the same kernel
/// without its fault gives none. Then the words of some reports, the ledger, and the mutants.
#include <doctest/doctest.h>

#include <map>

namespace {

constexpr int words = 16384;

}  // namespace

#include "tests/fault_tests.h"

TEST_CASE("mbarriers") {
  for (const char* kernel : {"never_initialized", "initialized_twice", "no_arrivals", "mbarrier_overwritten",
                             "arrival_too_many", "bytes_too_few", "parity_of_two"})
    check_fault(kernel, "mbarrier");
  check_fault("initialized_without_barrier", "race");
  check_fault("initialized_without_fence", "proxy");
  check_fault("mbarrier_in_global_memory", "address");
  for (const char* kernel :
       {"arrival_missing", "bytes_too_many", "load_names_the_wrong_barrier", "parity_of_the_producer", "waiter_lags"})
    check_fault(kernel, "deadlock");
  check_fault("parity_of_the_consumer", "async or deadlock");
  check_fault("bytes_of_one_box", "async or mbarrier");  // as the one box or the other lands first
}

TEST_CASE("a deadlock at an mbarrier says what is missing") {
  const auto text = [](const char* kernel) { return run(kernel, false).reports.at(0).text; };
  CHECK(contains(text("bytes_too_many"), "wait for mbarrier_wait at tests/hopper_faults.cu:"));
  CHECK(contains(text("bytes_too_many"), "(the mbarrier at shared+0x0, initialized at tests/hopper_faults.cu:"));
  CHECK(contains(text("bytes_too_many"),
                 ": parity 0, phase 0 running, 0 of 1 arrival missing, 16 bytes outstanding, 0 copies in flight)"));
  CHECK(contains(text("arrival_missing"), "phase 0 running, 1 of 128 arrivals missing, 0 bytes outstanding"));
  CHECK(contains(text("waiter_lags"), "parity 0, phase 2 running"));
  CHECK(contains(text("too_many_registers"), "from 168 to 240 registers a thread, 9216 in all; 8192 are free)"));
  CHECK(contains(text("one_warp_missing"), "(warpgroup 0: 96 of 128 threads arrived)"));
}

TEST_CASE("a waiter that is overtaken by two phases hangs, and the report says why") {
  const Outcome wrong = run("waiter_overtaken", false);  // early: the last thread at the barrier goes on first, to the wait
  REQUIRE(wrong.reports.size() == 2);
  CHECK(wrong.reports[0].kind == "mbarrier");
  check_names(wrong.reports[0].text, "waiter_overtaken");
  CHECK(contains(wrong.reports[0].text, "waits for phase 0"));
  CHECK(contains(wrong.reports[0].text, "phase 1 is over too"));
  CHECK(wrong.reports[1].kind == "deadlock");
  for (const simulator::Options& options : all_schedules) CHECK(run("waiter_overtaken", true, options).reports.empty());
}

TEST_CASE("loads of boxes") {
  for (const char* kernel : {"tile_read_before_it_landed", "tile_waited_for_by_one", "tile_never_waited_for",
                             "load_with_three_dimensions", "load_without_a_map"})
    check_fault(kernel, "async");
  check_fault("tile_overwritten", "race");
  check_fault("load_over_a_store", "proxy");
  check_fault("load_misaligned", "misaligned");
  check_fault("load_from_an_odd_column", "misaligned");
  check_fault("load_past_shared_memory", "out of bounds");
  check_fault("map_beyond_the_tensor", "out of bounds");
  check_fault("map_of_host_memory", "address");
}

TEST_CASE("stores of boxes") {
  check_fault("store_without_fence", "proxy");
  check_fault("store_with_a_late_fence", "proxy");
  check_fault("store_without_barrier", "race");
  check_fault("stored_tile_overwritten", "race");
  for (const char* kernel : {"store_not_waited_for", "store_not_committed", "store_before_the_tensor"})
    check_fault(kernel, "async");
}

TEST_CASE("wgmma: registers") {
  for (const char* kernel :
       {"accumulators_read_in_flight", "accumulators_written_in_flight", "one_group_too_few", "group_not_committed",
        "fence_missing", "accumulators_written_after_the_fence", "fence_without_the_factor", "fence_names_what_is_in_flight",
        "wait_without_the_accumulators", "factor_overwritten_in_flight", "wgmma_not_waited_for"})
    check_fault(kernel, "registers");
}

TEST_CASE("wgmma: tiles") {
  check_fault("tile_multiplied_before_it_landed", "async");
  check_fault("stage_released_too_early", "race");
  check_fault("tile_stored_over_in_flight", "race");
  check_fault("tile_written_without_fence", "proxy");
  check_fault("tile_inside_a_pattern", "misaligned");
  check_fault("tile_beyond_shared_memory", "out of bounds");
}

TEST_CASE("wgmma_fp8") {
  check_fault("fp8_accumulators_read_in_flight", "registers");
  check_fault("fp8_factor_not_named", "registers");
  check_fault("fp8_tile_written_without_fence", "proxy");
  check_fault("fp8_tile_inside_a_pattern", "misaligned");
  check_fault("fp8_tile_beyond_its_row", "misaligned");
}

TEST_CASE("warpgroups") {
  for (const char* kernel : {"warps_with_different_descriptors", "warps_at_different_instructions", "half_a_warpgroup"})
    check_fault(kernel, "collective");
  for (const char* kernel :
       {"one_warp_missing", "too_many_registers", "registers_of_half_a_warpgroup", "turn_lost", "election_of_half_a_warp"})
    check_fault(kernel, "deadlock");
  check_fault("registers_fall_by_inc", "registers");
  check_fault("barrier_zero", "barrier");
  check_fault("barrier_of_half_warps", "barrier");
  check_fault("barrier_without_a_waiter", "barrier");
  check_fault("named_barrier_missing", "race");
  check_fault("store_after_the_arrival", "race");
  check_fault("stmatrix_misaligned", "misaligned");
  check_fault("stmatrix_to_global_memory", "address");
  const Outcome idle = run("registers_nobody_takes", false);
  REQUIRE(idle.reports.size() == 1);
  CHECK(idle.reports[0].kind == "registers");
  CHECK(contains(idle.reports[0].text,
                 "Warpgroup 1 executes no setmaxnreg, though another does, and stays at 168 registers a thread "
                 "(registers_nobody_takes, CTA 0"));
  CHECK(run("registers_nobody_takes", true).reports.empty());
}

TEST_CASE("the ledger of a kernel with copies of boxes and wgmma, in every schedule") {
  for (const simulator::Options& options : all_schedules) {
    INFO(words_of(options));
    CHECK(run("every_call", true, options).reports.empty());
    const simulator::Ledger& ledger = simulator::ledger();
    CHECK(ledger.copy_instructions == 7);
    CHECK(ledger.global_read == (6 * 64 - 16) * 128);  // the last box passes the tensor's end by 16 rows
    CHECK(ledger.global_read_distinct == 128 * 128);
    CHECK(ledger.global_written == 64 * 128);
    CHECK(ledger.shared_written == 7 * 64 * 128);
    CHECK(ledger.shared_read == 64 * 128);  // by the store; wgmma's reads are not counted
    CHECK(ledger.bank_conflicts == 0);
    CHECK(ledger.tensor_flops == 6 * 5 * 2 * 64 * 64 * 16);
    CHECK(ledger.barriers == 2);
  }
}

TEST_CASE("mutants: every synchronization call is a site, and altering any is noticed") {
  const Outcome plain = run("every_call", true);
  CHECK(plain.reports.empty());
  const std::vector<simulator::SyncSite> sites = simulator::sync_sites();
  std::map<std::string, std::vector<int>> by_call;
  for (const simulator::SyncSite& site : sites) by_call[site.call].push_back(site.line);
  const std::map<std::string, size_t> kinds = {
      {"__syncthreads", 1},      {"mbarrier_init", 2},     {"fence_mbarrier_init", 1}, {"mbarrier_arrive", 1},
      {"mbarrier_expect", 3},    {"mbarrier_wait", 2},     {"wgmma_fence", 1},         {"wgmma_commit", 1},
      {"wgmma_wait", 2},         {"fence_proxy_async", 1}, {"tma_commit", 1},          {"tma_wait_read", 2},
      {"named_barrier_sync", 4}, {"setmaxnreg_dec", 2},    {"setmaxnreg_inc", 2},      {"named_barrier_arrive", 4}};
  CHECK(by_call.size() == kinds.size());
  for (const auto& [call, count] : kinds) {
    CAPTURE(call);
    CHECK(by_call[call] == marked_lines("site: " + call));
    CHECK(!by_call[call].empty());
  }
  for (const simulator::SyncSite& site : sites) {
    CHECK(site.kinds.size() == kinds.at(site.call));
    for (const std::string& kind : site.kinds)
      for (simulator::Options options : all_schedules) {
        INFO(kind, " ", site.call, " at line ", site.line, ", ", words_of(options));
        options.mutant = {kind, site.line, site.file};
        const Outcome mutant = run("every_call", true, options);
        CHECK((!mutant.reports.empty() || mutant.data != plain.data));
      }
  }
}

TEST_CASE("fifty seeds of every kernel that is right: no report, the same results") {
  const std::vector<uint32_t> data = run("every_call", true).data;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    const Outcome outcome = run("every_call", true, {Schedule::random, seed, {}});
    CHECK_MESSAGE(outcome.reports.empty(), (outcome.reports.empty() ? "" : outcome.reports[0].text));
    CHECK(outcome.data == data);
  }
}
