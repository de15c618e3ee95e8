/// @file
/// The simulated GPU's judgement. Every fault of simulator_kernels.cu gives one report, of the right kind,
/// that names kernel, CTA, warp, lane and lines, in every schedule; and the same kernel without its fault
/// gives none. Then the ledger's counts, the forms of stores that the hooks see, the schedules and the
/// mutants.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "reference_cpu/simulator/simulator.h"
#include "tests/simulator_kernels.h"

namespace {

constexpr int words = 1022;  // not a multiple of a vector

}  // namespace

#include "tests/fault_tests.h"

namespace {

using simulator::Ledger;
constexpr std::pair<const char*, uint64_t Ledger::*> counters[] = {
    {"global_read", &Ledger::global_read},
    {"global_written", &Ledger::global_written},
    {"global_read_distinct", &Ledger::global_read_distinct},
    {"global_written_distinct", &Ledger::global_written_distinct},
    {"shared_read", &Ledger::shared_read},
    {"shared_written", &Ledger::shared_written},
    {"bank_conflicts", &Ledger::bank_conflicts},
    {"tensor_flops", &Ledger::tensor_flops},
    {"scalar_flops", &Ledger::scalar_flops},
    {"exponentials", &Ledger::exponentials},
    {"divisions", &Ledger::divisions},
    {"rescales", &Ledger::rescales},
    {"barriers", &Ledger::barriers},
    {"shuffles", &Ledger::shuffles},
    {"copy_instructions", &Ledger::copy_instructions},
    {"atomics", &Ledger::atomics},
    {"launches", &Ledger::launches},
    {"ctas", &Ledger::ctas},
};
static_assert(sizeof(Ledger) == std::size(counters) * sizeof(uint64_t), "a new counter needs a test");

}  // namespace

TEST_CASE("missing barriers are races") {
  for (const char* kernel :
       {"syncthreads_raw", "syncthreads_war", "syncwarp_raw", "syncwarp_war", "shuffle_is_no_barrier",
        "syncwarp_across_warps", "global_raw_in_a_cta", "count_too_small"})
    check_fault(kernel, "race");
}

TEST_CASE("CTAs that depend on each other race") {
  check_fault("ctas_write_the_same", "race");
  check_fault("cta_reads_what_another_writes", "race");
  check_fault("cta_writes_what_all_read", "race");
}

TEST_CASE("atomics race with plain accesses, not with each other") {
  check_fault("atomic_and_plain_global", "race");
  check_fault("atomic_and_plain_shared", "race");
}

TEST_CASE("accesses out of bounds") {
  for (const char* kernel :
       {"global_just_past_the_end", "global_before_the_begin", "global_far_away", "vector_half_past_the_end",
        "shared_past_the_end", "shared_before_the_begin", "shared_far_away", "static_index", "register_index",
        "copy_source_past_the_end", "copy_destination_past_the_end"})
    check_fault(kernel, "out of bounds");
  const auto text = [](const char* kernel) { return run(kernel, false).reports.at(0).text; };
  CHECK(contains(text("global_just_past_the_end"),
                 "writes 4 bytes outside every allocation: \"data\" at byte 4088 of 4088"));
  CHECK(contains(text("global_far_away"), "bytes past the end of \"data\""));
  CHECK(contains(text("shared_past_the_end"), "dynamic shared memory at offset 256 of 256"));
  CHECK(contains(text("shared_before_the_begin"), "dynamic shared memory at offset -4 of 256"));
  CHECK(contains(text("static_index"), "indexes an array with 64, past its end"));
}

TEST_CASE("pointers to nowhere end the program with a sentence") {
  for (const std::string kernel : {"null_pointer", "wild_pointer", "too_much_local_memory"}) {
    CAPTURE(kernel);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
      static int out = ends[1];
      simulator::on_fatal([](const char* text) {
        const std::string all = std::string(text) + "\nwhere: " + simulator::where_now();
        if (write(out, all.data(), all.size()) < 0) _exit(2);
        _exit(3);
      });
      run(kernel, false);
      _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 3);
    CHECK(contains(text, "out of bounds: "));
    CHECK(contains(text, "\nwhere: " + kernel + ", CTA 0, warp 0, lane "));
    if (kernel != "too_much_local_memory")
      check_names(text, kernel);
    else
      CHECK(contains(text, "too much local memory"));
    CHECK(run(kernel, true).error == "");
  }
}

TEST_CASE("other misuse of memory") {
  for (const char* kernel :
       {"misaligned_vector", "misaligned_copy_source", "misaligned_copy_destination", "misaligned_ldmatrix"})
    check_fault(kernel, "misaligned");
  check_fault("ldmatrix_of_global_memory", "address");
  check_fault("static_read_before_write", "uninitialized");
  check_fault("dynamic_read_before_write", "uninitialized");
  CHECK(run("small_alignment", true).reports.empty());
}

TEST_CASE("asynchronous copies") {
  for (const char* kernel : {"copy_read_before_wait", "copy_without_wait", "copy_without_commit",
                             "wait_one_group_too_few", "store_into_a_copy", "copy_into_a_copy",
                             "swapped_stage", "copy_into_global_memory", "too_many_valid_bytes"})
    check_fault(kernel, "async");
  for (const char* kernel : {"no_barrier_after_the_wait", "refill_without_barrier"})
    check_fault(kernel, "race");
}

TEST_CASE("barriers and warps that do not come together") {
  check_fault("divergent_barrier", "barrier");
  for (const char* kernel :
       {"lane_missing_at_shuffle", "lane_missing_at_syncwarp", "lanes_at_different_shuffles",
        "lane_missing_at_mma", "returned_before_the_barrier", "different_barriers",
        "deadlock_with_copies_in_flight"})
    check_fault(kernel, "deadlock");
  check_fault("mask_without_the_lane", "collective");
  check_fault("different_counts", "barrier");
  check_fault("count_of_no_whole_warps", "barrier");
  const auto text = [](const char* kernel) { return run(kernel, false).reports.at(0).text; };
  CHECK(contains(text("lane_missing_at_shuffle"), "lanes 0xbfffffff of 0xffffffff arrived"));
  CHECK(contains(text("returned_before_the_barrier"), "barrier 1: 32 of 64 threads arrived"));
  CHECK(contains(text("returned_before_the_barrier"), "32 threads have returned"));
}

TEST_CASE("launches that the machine refuses, in a sentence with the number") {
  const std::map<std::string, std::string> refused = {{"no_threads", "0 threads"},
                                                      {"1025 threads", "1025 threads"},
                                                      {"too much shared memory", "232449 bytes"},
                                                      {"empty grid", "4 x 0 x 1 CTAs"},
                                                      {"high grid", "1 x 65536 x 1 CTAs"},
                                                      {"deep grid", "1 x 1 x 65536 CTAs"}};
  for (const auto& [kernel, number] : refused) {
    const std::string error = run(kernel, true).error;
    INFO(error);
    CHECK(error.starts_with(kernel + " "));
    CHECK(contains(error, number));
    CHECK(simulator::ledger().ctas == 0);
  }
  CHECK(run("1024 threads", true).error == "");
  CHECK(run("all shared memory", true).error == "");
}

TEST_CASE("the ledger is exact, in every schedule") {
  const auto check = [](const char* kernel, Ledger should) {
    for (const simulator::Options& options : all_schedules) {
      CAPTURE(kernel);
      const Outcome outcome = run(kernel, true, options);
      CHECK(outcome.error == "");
      CHECK_MESSAGE(outcome.reports.empty(), (outcome.reports.empty() ? "" : outcome.reports[0].text));
      const Ledger is = simulator::ledger();
      should.launches = 1;
      for (const auto& [name, counter] : counters) {
        CAPTURE(name);
        CHECK(is.*counter == should.*counter);
      }
    }
  };
  const uint64_t ctas = 3, threads = 64, all = ctas * threads;
  Ledger l;
  l.ctas = ctas;
  l.global_read = all * (16 + 4);
  l.global_read_distinct = threads * 16 + all * 4;
  l.global_written = all * (4 + 4 + 2);
  l.global_written_distinct = all * (4 + 2);
  l.barriers = ctas;
  check("traffic", l);

  l = {};
  l.ctas = ctas;
  l.shared_written = all * 4;
  l.shared_read = all * 16;
  l.global_written = l.global_written_distinct = all * 4;
  l.barriers = 2 * ctas;
  check("traffic_shared", l);

  l = {};
  l.ctas = 1;
  l.copy_instructions = 17;
  l.global_read = l.global_read_distinct =
      16 * 17 / 2;  // 0 + 1 + ... + 16: bytes that are not valid are not read
  l.shared_written = 17 * 16;
  check("traffic_copies", l);

  l = {};
  l.ctas = 2;
  l.scalar_flops = 128 * 2;
  l.exponentials = 128 * 3;
  l.divisions = 128 * 5;
  l.rescales = 128 * 7;
  l.tensor_flops = 4 * 2 * 16 * 8 * 16;  // of four warps
  l.shuffles = 4 * 2;
  l.atomics = 4;
  l.global_written = 4 * 4;
  l.global_written_distinct = 4;
  check("instructions", l);

  // Extra passes of the four matrices of one ldmatrix.
  const std::map<std::string, uint64_t> conflicts = {{"rows_of_16", 0},
                                                     {"rows_of_64", 4 * 3},
                                                     {"rows_of_128", 4 * 7},
                                                     {"rows_swizzled", 0},
                                                     {"rows_the_same", 0}};
  for (const auto& [kernel, extra] : conflicts) {
    l = {};
    l.ctas = 1;
    l.shared_written = 32 * 128 + 16;
    l.shared_read = 32 * 16;
    l.bank_conflicts = extra;
    check(kernel.c_str(), l);
  }
}

TEST_CASE("a second launch counts its distinct bytes anew, reset forgets") {
  run("traffic", true);
  const simulator::Ledger one = simulator::ledger();
  auto* data = static_cast<uint32_t*>(simulator::allocate(words * 4, "more"));
  for (int i = 0; i < 2; ++i) CHECK(flash_test_launch("traffic", 1, data, words) == nullptr);
  CHECK(simulator::ledger().global_read_distinct == 3 * one.global_read_distinct);
  CHECK(simulator::ledger().global_written_distinct == 3 * one.global_written_distinct);
  CHECK(simulator::ledger().launches == 3);
  simulator::reset();
  CHECK(simulator::ledger().launches == 0);
  CHECK(simulator::ledger().global_read == 0);
}

TEST_CASE("the hooks see stores of every form that kernels use") {
  const std::map<std::string, uint64_t> forms = {{"half_of_wrapper", 2},
                                                 {"half_of_function", 2},
                                                 {"half_of_member", 2},
                                                 {"half_of_lambda", 2},
                                                 {"half_copied", 2},
                                                 {"half_chosen", 2},
                                                 {"float2_of_function", 8},
                                                 {"float2_of_wrapper", 8},
                                                 {"float4_of_maker", 16},
                                                 {"float4_of_function", 16},
                                                 {"uint4_copied", 16},
                                                 {"uint4_through_registers", 16},
                                                 {"struct_copied", 8},
                                                 {"struct_braced", 8},
                                                 {"long_struct_copied", 48},
                                                 {"long_struct_of_function", 48},
                                                 {"long_struct_cleared", 48},
                                                 {"memcpy_of_16", 16},
                                                 {"compound", 4}};
  for (const auto& [form, bytes] : forms) {
    CAPTURE(form);
    CHECK(run(form, true).reports.empty());
    CHECK(simulator::ledger().global_written == 2 * bytes);
    CHECK(simulator::ledger().global_written_distinct == 2 * bytes);
  }
}

TEST_CASE("the schedules differ, and a seed repeats its own") {
  std::map<std::string, std::vector<uint32_t>> orders;
  std::set<std::vector<uint32_t>> different;
  for (const simulator::Options& options : all_schedules) {
    const Outcome outcome = run("order", true, options);
    CHECK(outcome.reports.empty());
    std::vector<uint32_t> order(outcome.data.begin() + 1, outcome.data.begin() + 1 + 192);
    CHECK(run("order", true, options).data == outcome.data);
    orders[words_of(options)] = order;
    different.insert(order);
    std::sort(order.begin(), order.end());
    for (uint32_t i = 0; i < 192; ++i) CHECK(order[i] == i);
  }
  CHECK(different.size() == all_schedules.size());
  for (uint32_t i = 0; i < 192; ++i) {
    CHECK(orders["early"][i] == i);
    CHECK(orders["late"][i] == 191 - i);
  }
  // A race: whoever comes last. And a copy that nobody waits for: as early, or as late as can be.
  CHECK(run("last_one_wins", true, {Schedule::early, 1, {}}).data[0] == 63);
  CHECK(run("last_one_wins", true, {Schedule::late, 1, {}}).data[0] == 0);
  CHECK(run("copy_read_before_wait", false, {Schedule::early, 1, {}}).data[4] == 5);
  CHECK(run("copy_read_before_wait", false, {Schedule::late, 1, {}}).data[4] == 0xFFFFFFFF);
}

TEST_CASE("mutants: every synchronization call is a site, and dropping any is noticed") {
  CHECK(run("every_call", true).reports.empty());
  const std::vector<simulator::SyncSite> sites = simulator::sync_sites();
  std::map<std::string, std::vector<int>> by_call;
  for (const simulator::SyncSite& site : sites) by_call[site.call].push_back(site.line);
  for (const std::string call :
       {"__syncthreads", "__syncwarp", "named_barrier", "cp_async_commit", "cp_async_wait"}) {
    CAPTURE(call);
    CHECK(by_call[call] == marked_lines("site: " + call));
    CHECK(!by_call[call].empty());
  }
  CHECK(by_call.size() == 5);
  const std::map<std::string, std::string> noticed = {{"__syncthreads", "race"},
                                                      {"__syncwarp", "race"},
                                                      {"named_barrier", "async"},
                                                      {"cp_async_commit", "async"},
                                                      {"cp_async_wait", "async"}};
  for (const simulator::SyncSite& site : sites) {
    CHECK(site.kinds.size() == (site.call == "cp_async_wait" ? 2 : 1));
    for (const std::string& kind : site.kinds)
      for (simulator::Options options : all_schedules) {
        INFO(kind, " ", site.call, " at line ", site.line, ", ", words_of(options));
        options.mutant = {kind, site.line, site.file};
        const Outcome mutant = run("every_call", true, options);
        REQUIRE(mutant.reports.size() >= 1);
        CHECK(mutant.reports[0].kind == noticed.at(site.call));
        options.mutant.line += 1000;  // nobody's
        CHECK(run("every_call", true, options).reports.empty());
      }
  }
}
