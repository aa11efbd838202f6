// Stochastic rounding to E2M1: codes' own values stay, only neighbours appear, the chance of the
// upper one is the position between them in steps of 1/256, and the random bytes are uniform.
#include "kernels/numerics/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr std::array<float, 8> kValues = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

TEST(StochasticRounding, GridPointsStay) {
  for (int code = 0; code < 8; ++code) {
    for (int r = 0; r < 256; ++r) {
      EXPECT_EQ(EncodeE2m1Stochastic(kValues[code], static_cast<uint8_t>(r)), code);
      EXPECT_EQ(EncodeE2m1Stochastic(-kValues[code], static_cast<uint8_t>(r)), code | 8);
    }
  }
}

TEST(StochasticRounding, BeyondTheLargestIsTheLargest) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int r = 0; r < 256; ++r) {
    const auto random = static_cast<uint8_t>(r);
    for (const float x : {6.001f, 7.0f, 1e30f, inf}) {
      EXPECT_EQ(EncodeE2m1Stochastic(x, random), 7);
      EXPECT_EQ(EncodeE2m1Stochastic(-x, random), 15);
    }
    EXPECT_EQ(EncodeE2m1Stochastic(nan, random), 7);
    EXPECT_EQ(EncodeE2m1Stochastic(-nan, random), 7);
  }
}

/// Over all 256 bytes, a value i/4096 of the way between neighbours goes up floor(i / 16) times:
/// the byte r lifts it where position + r / 256 >= 1.
TEST(StochasticRounding, ChanceOfTheUpperNeighbour) {
  for (int code = 0; code + 1 < 8; ++code) {
    const float low = kValues[code], high = kValues[code + 1];
    for (int i = 0; i < 4096; ++i) {
      const float x = low + (high - low) * static_cast<float>(i) / 4096.0f;  // Exact: 15 bits.
      int ups = 0;
      for (int r = 0; r < 256; ++r) {
        const int rounded = EncodeE2m1Stochastic(x, static_cast<uint8_t>(r));
        ASSERT_TRUE(rounded == code || rounded == code + 1) << x << " " << r;
        ups += rounded == code + 1;
      }
      EXPECT_EQ(ups, i / 16) << x;
    }
  }
}

/// Drawn bytes: at each of the 256 chances P(up) of one interval, n draws; the sum of
/// (ups - n p)^2 / (n p (1 - p)) over the 255 chances other than 0 is chi-square with 255 degrees
/// of freedom. Mean 255, standard deviation sqrt(510) = 22.6; the critical value at 1e-6, by
/// Wilson-Hilferty 255 (1 - 2/2295 + 4.7534 sqrt(2/2295))^3, is 377.3, on
/// the other side 161.5.
TEST(StochasticRounding, ChiSquareOfDrawnBytes) {
  constexpr int kBlocks = 2000, kDraws = 16 * kBlocks;
  const StochasticStream stream = {.seed = 42, .call_id = 3, .usage = 1};
  std::array<int, 256> ups = {};
  double mean_error = 0;
  for (int position = 0; position < 256; ++position) {
    const float x = 4.0f + 2.0f * static_cast<float>(position) / 256.0f;
    double sum = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const PhiloxCounter bits =
          StochasticBits(stream, static_cast<uint64_t>(position), static_cast<uint64_t>(block));
      for (int i = 0; i < 16; ++i) {
        const uint8_t code = EncodeE2m1Stochastic(x, StochasticByte(bits, i));
        ups[position] += code == 7;
        sum += kValues[code];
      }
    }
    mean_error += sum / kDraws - x;
  }
  EXPECT_EQ(ups[0], 0);
  double chi_square = 0;
  for (int position = 1; position < 256; ++position) {
    const double p = position / 256.0, expected = kDraws * p;
    chi_square += (ups[position] - expected) * (ups[position] - expected) / (expected * (1 - p));
  }
  EXPECT_LT(chi_square, 377.3);
  EXPECT_GT(chi_square, 161.5);  // Nor suspiciously even.
  // The mean of 255 means of variance 4 p (1 - p) / n, p (1 - p) <= 1/4: five standard deviations
  // of their sum.
  EXPECT_LT(std::abs(mean_error), 5.0 * std::sqrt(255.0 / kDraws));
}

/// Every byte of the 16 is drawn from its own place of the Philox words.
TEST(StochasticRounding, BytesAreThoseOfPhilox) {
  const StochasticStream stream = {.seed = 0x0123456789ABCDEF, .call_id = 7, .usage = 1};
  const PhiloxCounter bits = StochasticBits(stream, 0x1'0000'0005, 9);
  const PhiloxCounter expected = Philox4x32({{9, 5, 7, 1}}, {{0x89ABCDEF, 0x01234567}});
  for (int word = 0; word < 4; ++word) EXPECT_EQ(bits.word[word], expected.word[word]);
  EXPECT_EQ(StochasticByte(bits, 0), expected.word[0] & 0xFF);
  EXPECT_EQ(StochasticByte(bits, 6), expected.word[1] >> 16 & 0xFF);
  EXPECT_EQ(StochasticByte(bits, 15), expected.word[3] >> 24);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
