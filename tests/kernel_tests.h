/// @file
/// How a test program runs the kernels of the module that it is linked with (hardware_kernels.h), for one machine.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/hardware_kernels.h"

namespace {

using Words = std::vector<uint32_t>;
constexpr int skipped = 77;

// Without its machine this program ends before its first test.
const bool machine_is_here = [] {
  if (const char* why = flash_test_unavailable()) {
    std::printf("skipped: %s\n", why);
    std::exit(skipped);
  }
  return true;
}();

Words run(const std::string& kernel, const Words& in, Words out) {
  const char* error =
      flash_test_run(kernel.c_str(), in.data(), static_cast<int>(in.size()), out.data(), static_cast<int>(out.size()));
  const std::string sentence = error ? error : "";
  INFO(kernel);
  REQUIRE_MESSAGE(error == nullptr, sentence);
  return out;
}
Words run(const std::string& kernel, const Words& in, size_t out_words) { return run(kernel, in, Words(out_words, 0)); }

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

// Compares and names the first word that differs.
void check_equal(const Words& is, const Words& should) {
  REQUIRE(is.size() == should.size());
  const auto [a, b] = std::mismatch(is.begin(), is.end(), should.begin());
  if (a == is.end()) return;
  INFO("first difference at word ", a - is.begin(), " of ", is.size());
  CHECK(*a == *b);
}

}  // namespace
