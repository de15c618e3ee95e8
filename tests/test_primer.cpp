/// @file
/// The kernels of docs/primer.md do what it says, on the simulated GPU.
#include "tests/kernel_tests.h"

TEST_CASE("one thread an element, the last CTA not full") {
  Words in(1000), should(1000);
  for (int i = 0; i < 1000; ++i) {
    in[i] = bits(static_cast<float>(i));
    should[i] = bits(3.0f * i);
  }
  check_equal(run("scale", in, in.size()), should);
}

TEST_CASE("each CTA reverses its numbers, and no schedule sees a race") {
  Words x(512), should(512);
  for (int i = 0; i < 512; ++i) {
    x[i] = i;
    should[i ^ 255] = i;
  }
  check_equal(run("reverse", {}, x), should);
}
