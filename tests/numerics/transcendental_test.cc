// exp, tanh, sigmoid and 1/sqrt: edges, and MPFR on a walk through all floats.
#include "kernels/numerics/transcendental.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "tests/numerics/mpfr_functions.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::EveryFunction;
using testing::FunctionOfFloats;

constexpr float kInfinity = INFINITY;

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

class TranscendentalTest : public ::testing::TestWithParam<FunctionOfFloats> {};

TEST_P(TranscendentalTest, NanBecomesCanonical) {
  for (const uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
    EXPECT_EQ(Bits(GetParam().function(FloatOf(nan))), 0x7FFFFFFFu) << std::hex << nan;
  }
}

/// MPFR on about a million inputs with every sign and exponent, in rising order of magnitude, and
/// whether the results rise or fall with them. rsqrt has two roundings and may be one off.
TEST_P(TranscendentalTest, WalkThroughAllFloats) {
  const FunctionOfFloats& f = GetParam();
  const int64_t allowed = f.name == "rsqrt" ? 1 : 0;
  for (const uint32_t sign : {0u, 0x80000000u}) {
    float last = f.function(FloatOf(sign));
    for (uint32_t magnitude = 0; magnitude <= 0x7F800000; magnitude += 4093) {
      const float x = FloatOf(sign | magnitude);
      const float value = f.function(x), correct = f.correct(x);
      ASSERT_TRUE(testing::SameBits(value, correct) ||
                  (testing::Distance(value, correct) <= allowed && value != 0))
          << std::hexfloat << f.name << "(" << x << ") = " << value << ", correct " << correct;
      if (x < f.from || x != x || value != value) continue;
      ASSERT_TRUE(f.is_rising == (sign == 0) ? value >= last : value <= last)
          << std::hexfloat << f.name << "(" << x << ") = " << value << " after " << last;
      last = value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, TranscendentalTest, ::testing::ValuesIn(EveryFunction()),
                         [](const auto& info) { return info.param.name; });

TEST(ExpTest, Edges) {
  EXPECT_EQ(Bits(Exp(0.0f)), Bits(1.0f));
  EXPECT_EQ(Bits(Exp(-0.0f)), Bits(1.0f));
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Bits(Exp(-kInfinity)), 0u);
  EXPECT_EQ(Exp(3.0e38f), kInfinity);
  EXPECT_EQ(Bits(Exp(-3.0e38f)), 0u);
  // ln of the largest binary32 number lies between these two neighbours.
  EXPECT_LT(Exp(FloatOf(0x42B17217)), kInfinity);
  EXPECT_EQ(Exp(FloatOf(0x42B17218)), kInfinity);
  // e^-103.97 is above half of the smallest number, e^-103.98 below: 150 ln 2 = 103.972.
  EXPECT_EQ(Bits(Exp(-103.97f)), 1u);
  EXPECT_EQ(Bits(Exp(-103.98f)), 0u);
  EXPECT_EQ(Bits(Exp(1.0f)), 0x402DF854u);  // 2.71828175: e, rounded.
}

TEST(TanhTest, Edges) {
  EXPECT_EQ(Bits(Tanh(0.0f)), 0u);
  EXPECT_EQ(Bits(Tanh(-0.0f)), 0x80000000u);
  EXPECT_EQ(Tanh(kInfinity), 1.0f);
  EXPECT_EQ(Tanh(-kInfinity), -1.0f);
  EXPECT_EQ(Bits(Tanh(FloatOf(1))), 1u);  // x itself where x^3 / 3 is out of sight.
  EXPECT_EQ(Bits(Tanh(FloatOf(0x80000001))), 0x80000001u);
}

TEST(SigmoidTest, Edges) {
  EXPECT_EQ(Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(-0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(kInfinity), 1.0f);
  EXPECT_EQ(Bits(Sigmoid(-kInfinity)), 0u);
  EXPECT_EQ(Bits(Sigmoid(-103.97f)), 1u);
  EXPECT_EQ(Bits(Sigmoid(-103.98f)), 0u);
}

/// 1/2 + x/4 is the middle between two numbers for odd multiples of 2^-23 and 2^-24, and x^3 / 48
/// decides.
TEST(SigmoidTest, BesideTheMiddleOfTwoNumbers) {
  const FunctionOfFloats& sigmoid = EveryFunction()[2];
  ASSERT_EQ(sigmoid.name, "sigmoid");
  for (int k = -4097; k <= 4097; k += 2) {
    for (const float unit : {0x1p-22f, 0x1p-23f, 0x1p-24f}) {
      const float x = static_cast<float>(k) * unit;
      ASSERT_EQ(Sigmoid(x), sigmoid.correct(x)) << std::hexfloat << x;
    }
  }
}

TEST(SigmoidTest, ByFloats) {
  const FunctionOfFloats& exp = EveryFunction()[0];
  ASSERT_EQ(exp.name, "exp");
  int differing = 0;
  for (uint32_t bits = 0x3A000000; bits < 0x43000000; bits += 10007) {
    for (const float x : {FloatOf(bits), -FloatOf(bits)}) {
      const float sum = 1.0f + exp.correct(-x);
      ASSERT_EQ(SigmoidByFloats(x), 1.0f / sum) << std::hexfloat << x;
      if (SigmoidByFloats(x) != Sigmoid(x)) ++differing;
    }
  }
  EXPECT_GT(differing, 100);                     // A variant of its own.
  EXPECT_EQ(Bits(SigmoidByFloats(-89.0f)), 0u);  // e^89 is infinite.
  EXPECT_EQ(Bits(SigmoidByFloats(NAN)), 0x7FFFFFFFu);
}

TEST(ReciprocalSqrtTest, Edges) {
  EXPECT_EQ(ReciprocalSqrt(0.0f), kInfinity);
  EXPECT_EQ(ReciprocalSqrt(-0.0f), -kInfinity);
  EXPECT_EQ(Bits(ReciprocalSqrt(kInfinity)), 0u);
  EXPECT_EQ(Bits(ReciprocalSqrt(-1.0f)), 0x7FFFFFFFu);
  EXPECT_EQ(Bits(ReciprocalSqrt(-kInfinity)), 0x7FFFFFFFu);
  EXPECT_EQ(ReciprocalSqrt(4.0f), 0.5f);
  EXPECT_EQ(ReciprocalSqrt(0x1p-148f), 0x1p74f);  // A subnormal.
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
