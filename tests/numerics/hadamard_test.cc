// The Hadamard transform against the fused step that defines it, and as the orthogonal matrix that
// it is.
#include "kernels/numerics/hadamard.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/gemm/models/fused_step.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// R[i][j] from the list of signs and the definition of Sylvester's matrix.
uint16_t Entry(int i, int j) {
  static constexpr int kSigns[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  int sylvester = 1;
  for (int bit = 1; bit < 16; bit *= 2) {
    if ((i & bit) != 0 && (j & bit) != 0) sylvester = -sylvester;
  }
  return kSigns[i] * sylvester < 0 ? 0xBE80 : 0x3E80;  // -1/4, 1/4.
}

void ExpectFusedSteps(const uint16_t* g) {
  uint16_t y[16];
  HadamardTransform(g, y);
  for (int j = 0; j < 16; ++j) {
    uint16_t column[16];
    for (int i = 0; i < 16; ++i) column[i] = Entry(i, j);
    const uint32_t sum = FusedStep<Wgmma16Bit, BFloat16, BFloat16>(g, column, 16, 0);
    ASSERT_EQ(y[j], EncodeFloat<BFloat16>(std::bit_cast<float>(sum))) << "output " << j;
  }
}

TEST(Hadamard, IsSixteenFusedSteps) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    // Exponents within 1 ... 256 of each other, anywhere; any sign and mantissa, specials included.
    const int width = 1 << random() % 9, base = static_cast<int>(random() % 256);
    uint16_t g[16];
    for (uint16_t& value : g) {
      const int exponent = std::min(base + static_cast<int>(random() % width), 255);
      const int field = exponent == 255 && random() % 8 != 0 ? 254 : exponent;
      value = static_cast<uint16_t>((random() & 0x807F) | field << 7);
      if (random() % 16 == 0) value &= 0x8000;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectFusedSteps(g)) << round;
  }
}

TEST(Hadamard, Corners) {
  const uint16_t zeros[16] = {0, 0x8000};
  ExpectFusedSteps(zeros);
  uint16_t largest[16];
  std::fill(largest, largest + 16, 0x7F7F);  // Sums up to 4 * FLT_MAX: infinities.
  ExpectFusedSteps(largest);
  std::fill(largest, largest + 16, 0x0001);
  ExpectFusedSteps(largest);
  for (const uint16_t special : {0x7F80, 0xFF80, 0x7FC0, 0xFFFF}) {
    uint16_t g[16] = {0x3F80, static_cast<uint16_t>(special), 0x4000};
    ExpectFusedSteps(g);
    g[5] = 0xFF80;
    ExpectFusedSteps(g);
  }
}

/// (x R)(dy R)^T = x dy^T: small integers, so that nothing rounds and sums are exact.
TEST(Hadamard, TransformedOperandsMultiplyToTheSame) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    uint16_t x[16], dy[16], xr[16], dyr[16];
    int64_t product = 0;
    for (int i = 0; i < 16; ++i) {
      const int a = static_cast<int>(random() % 9) - 4, b = static_cast<int>(random() % 9) - 4;
      x[i] = EncodeFloat<BFloat16>(static_cast<float>(a));
      dy[i] = EncodeFloat<BFloat16>(static_cast<float>(b));
      product += a * b;
    }
    HadamardTransform(x, xr);
    HadamardTransform(dy, dyr);
    // Multiples of 1/4 up to 16: products are multiples of 1/16.
    int64_t transformed = 0;
    for (int j = 0; j < 16; ++j) {
      transformed += static_cast<int64_t>(DecodeFloat<BFloat16>(xr[j]) * 4) *
                     static_cast<int64_t>(DecodeFloat<BFloat16>(dyr[j]) * 4);
    }
    EXPECT_EQ(transformed, 16 * product);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
