// The fp32 logarithms of library_rule.h against those of the C library in binary64, which are
// accurate enough wherever their rounding to fp32 is no near tie.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "kernels/numerics/library_rule.h"

namespace quantgate {
namespace QG_TEST_FILE {

using library_steps::CeilLog2Float;
using library_steps::FloorLog2Float;
using library_steps::NaturalLog;

float Log2Of(float value) { return static_cast<float>(std::log2(static_cast<double>(value))); }

void ExpectLogs(float value) {
  if (!(value > 0) || std::isinf(value)) return;
  ASSERT_EQ(static_cast<float>(FloorLog2Float(value)), std::floor(Log2Of(value))) << value;
  ASSERT_EQ(static_cast<float>(CeilLog2Float(value)), std::ceil(Log2Of(value))) << value;
}

// Only near powers of two can the rounding matter, and there it does.
TEST(LibraryRule, LogarithmsNextToPowersOfTwoRoundAsInFp32) {
  int moved = 0;
  for (int exponent = -149; exponent <= 128; ++exponent) {
    const auto power = std::bit_cast<uint32_t>(static_cast<float>(std::ldexp(1.0, exponent)));
    for (int step = -100; step <= 100; ++step) {
      const float value = std::bit_cast<float>(power + static_cast<uint32_t>(step));
      ExpectLogs(value);
      if (HasFatalFailure()) return;
      if (value > 0 && !std::isinf(value)) moved += FloorLog2Float(value) != std::ilogb(value);
    }
  }
  EXPECT_GT(moved, 1000);
}

TEST(LibraryRule, LogarithmsOfOtherNumbers) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000000; ++i) {
    ExpectLogs(std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7FFFFFFF));
    if (HasFatalFailure()) return;
  }
}

TEST(LibraryRule, NaturalLogarithmsAreRoundedOnce) {
  std::mt19937 random(8);
  for (int i = 0; i < 1000000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7FFFFFFF);
    if (!(value > 0) || std::isinf(value)) continue;
    ASSERT_EQ(NaturalLog(value), static_cast<float>(std::log(static_cast<double>(value)))) << value;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
