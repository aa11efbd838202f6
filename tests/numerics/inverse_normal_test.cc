// Accuracy of the generators' fixed formulas against the C library in long double. What their bits
// must be is tested by generate_test.
#include "kernels/numerics/inverse_normal.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quantgate {
namespace QG_TEST_FILE {

TEST(Log, AccurateOverItsRange) {
  for (double x = 0x1p-40; x < 4; x *= 1.0009765625) {
    const long double truth = std::log(static_cast<long double>(x));
    const double error = static_cast<double>(normal_steps::Log(x) - truth);
    EXPECT_LT(std::abs(error), 1e-13 * std::max(1.0, std::abs(double(truth)))) << x;
  }
}

TEST(FixedExp, AccurateOverItsRange) {
  for (double x = -700; x <= 700; x += 0.37) {
    const long double truth = std::exp(static_cast<long double>(x));
    EXPECT_LT(std::abs(static_cast<double>((FixedExp(x) - truth) / truth)), 1e-14) << x;
  }
  EXPECT_EQ(FixedExp(0), 1.0);
}

/// Wichura states a relative error of about 1e-16; the cumulative probability of the result must be
/// the one asked.
TEST(InverseNormal, InvertsTheCumulativeProbability) {
  for (uint64_t word = 0; word <= 0xFFFFFFFFu; word += 0x000FEDCBu) {
    const long double p = (static_cast<long double>(word) + 0.5L) * 0x1p-32L;
    const long double x = InverseNormal(static_cast<uint32_t>(word));
    const long double tail = p < 0.5L ? p : 1 - p;
    const long double found = std::erfc(std::abs(x) / std::sqrt(2.0L)) / 2;
    // d(tail) = -density dx, and density <= (|x| + 1) tail beyond the centre: 1e-14 in x.
    EXPECT_LT(std::abs(static_cast<double>((found - tail) / tail)), 1e-13 * (1 + double(x * x)))
        << word;
  }
}

TEST(InverseNormal, IsOdd) {
  for (const uint32_t word : {0u, 1u, 12345u, 0x10000000u, 0x7FFFFFFFu}) {
    EXPECT_EQ(InverseNormal(word), -InverseNormal(~word));
  }
  // P(z < -6.33) = 1.22e-10 > 2^-33 = 1.16e-10 > P(z < -6.34) = 1.15e-10.
  EXPECT_LT(InverseNormal(0), -6.33);
  EXPECT_GT(InverseNormal(0), -6.34);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
