// E8M0 scales at every exponent, by the rules of docs/quantizers.md section 5 worked out in
// binary64 or by hand. Every fp32 input of the rounding itself: cast_exhaustive_test.
#include "kernels/numerics/e8m0.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(E8m0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const auto stored = static_cast<uint8_t>(code);
    EXPECT_EQ(DecodeE8m0(stored), std::ldexp(1.0f, code - 127)) << code;
    EXPECT_EQ(E8m0Multiplier(stored), std::ldexp(1.0f, 127 - code)) << code;
    EXPECT_EQ(EncodeE8m0Up(DecodeE8m0(stored)), stored);
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(DecodeE8m0(0xFF)), 0x7FFFFFFFu);
  EXPECT_EQ(std::bit_cast<uint32_t>(E8m0Multiplier(0xFF)), 0x7FFFFFFFu);
}

TEST(E8m0, RoundsUpBetweenPowers) {
  for (int code = 0; code < 254; ++code) {
    const float power = std::ldexp(1.0f, code - 127);
    EXPECT_EQ(EncodeE8m0Up(std::nextafter(power, kInf)), code + 1) << code;
    EXPECT_EQ(EncodeE8m0Up(std::nextafter(2 * power, 0.0f)), code + 1) << code;
  }
  EXPECT_EQ(EncodeE8m0Up(0.0f), 0);
  EXPECT_EQ(EncodeE8m0Up(FLT_TRUE_MIN), 0);
  EXPECT_EQ(EncodeE8m0Up(FLT_MAX), 0xFE);
  EXPECT_EQ(EncodeE8m0Up(kInf), 0xFE);
  EXPECT_EQ(EncodeE8m0Up(kNan), 0xFF);
}

/// amax at max * 2^k and its neighbours, over every k of the normal range.
template <class F>
void ExpectRoundUpCoversTheMaximum(double max) {
  for (int k = -100; k <= 110; ++k) {
    const double edge = std::ldexp(max, k);
    if (edge > FLT_MAX || edge < FLT_MIN) continue;
    const auto amax = static_cast<float>(edge);
    EXPECT_EQ(E8m0Scale<F>(amax, ScaleRule::kRoundUp), 127 + k) << max << " " << k;
    EXPECT_EQ(E8m0Scale<F>(std::nextafter(amax, kInf), ScaleRule::kRoundUp), 128 + k);
    EXPECT_EQ(E8m0Scale<F>(std::nextafter(amax, 0.0f), ScaleRule::kRoundUp), 127 + k);
  }
}

/// torchao's RCEIL as its source has it: the power of two at or above f32(amax * f32(1 / max)), in
/// [2^-127, 2^127].
template <class F>
void ExpectRoundUpIsRceil(double max) {
  const float reciprocal = static_cast<float>(1.0 / max);
  for (uint32_t bits = 0; bits < 0x7F800000; bits += 4099) {
    const float amax = std::bit_cast<float>(bits);
    const double value = amax * reciprocal;
    int exponent = 0;
    const double mantissa = std::frexp(value, &exponent);
    if (mantissa == 0.5) --exponent;
    if (value == 0 || exponent < -127) exponent = -127;
    ASSERT_EQ(E8m0Scale<F>(amax, ScaleRule::kRoundUp), exponent + 127) << max << " " << bits;
  }
}

TEST(E8m0, RoundUpIsRceilOfFiniteBlocks) {
  ExpectRoundUpIsRceil<E4M3>(448);
  ExpectRoundUpIsRceil<E5M2>(57344);
  ExpectRoundUpIsRceil<E2M3>(7.5);
  ExpectRoundUpIsRceil<E3M2>(28);
  ExpectRoundUpIsRceil<E2M1>(6);
  // Where they part: torchao has 0xFF of both.
  EXPECT_EQ(E8m0Scale<E4M3>(kInf, ScaleRule::kRoundUp), 0xFE);
}

TEST(E8m0, RoundUpIsTheSmallestScaleThatHoldsTheMaximum) {
  ExpectRoundUpCoversTheMaximum<E4M3>(448);
  ExpectRoundUpCoversTheMaximum<E5M2>(57344);
  ExpectRoundUpCoversTheMaximum<E2M3>(7.5);
  ExpectRoundUpCoversTheMaximum<E3M2>(28);
  ExpectRoundUpCoversTheMaximum<E2M1>(6);
}

TEST(E8m0, RulesAtOneAmax) {
  // E4M3: emax 8. 1.9 tells floor from the rest; 1.97 = 1.111|11.. carries under even; 1.4 and 1.42
  // lie about sqrt(2).
  EXPECT_EQ(E8m0Scale<E4M3>(1.9f, ScaleRule::kFloor), 127 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(1.9f, ScaleRule::kRoundUp), 127 - 7);
  EXPECT_EQ(E8m0Scale<E4M3>(1.9f, ScaleRule::kCeil), 127 - 7);
  EXPECT_EQ(E8m0Scale<E4M3>(1.0f, ScaleRule::kCeil), 127 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(1.9f, ScaleRule::kEven), 127 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(1.9375f, ScaleRule::kEven), 127 - 7);  // 1.1111: a tie, up.
  EXPECT_EQ(E8m0Scale<E4M3>(std::nextafter(1.9375f, 0.0f), ScaleRule::kEven), 127 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(1.41421354f, ScaleRule::kNearest), 127 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(std::nextafter(1.41421354f, 2.0f), ScaleRule::kNearest), 127 - 7);
  EXPECT_EQ(E8m0Scale<E2M1>(1.75f, ScaleRule::kEven), 127 - 1);
  EXPECT_EQ(E8m0Scale<E2M1>(1.7f, ScaleRule::kEven), 127 - 2);
}

TEST(E8m0, EveryExponentOfAmax) {
  for (int field = 1; field < 255; ++field) {
    const float amax = std::ldexp(1.5f, field - 127);
    const auto at_least_0 = [](int code) { return code < 0 ? 0 : code; };
    EXPECT_EQ(E8m0Scale<E4M3>(amax, ScaleRule::kFloor), at_least_0(field - 8));
    EXPECT_EQ(E8m0Scale<E4M3>(amax, ScaleRule::kCeil), at_least_0(field + 1 - 8));
    EXPECT_EQ(E8m0Scale<E4M3>(amax, ScaleRule::kEven), at_least_0(field - 8));
    EXPECT_EQ(E8m0Scale<E4M3>(amax, ScaleRule::kNearest), at_least_0(field + 1 - 8));
    EXPECT_EQ(E8m0Scale<E5M2>(amax, ScaleRule::kFloor), at_least_0(field - 15));
  }
}

TEST(E8m0, SpecialAmaxes) {
  for (const ScaleRule rule :
       {ScaleRule::kFloor, ScaleRule::kCeil, ScaleRule::kEven, ScaleRule::kNearest}) {
    EXPECT_TRUE(PropagatesNan(rule));
    EXPECT_EQ(E8m0Scale<E4M3>(0.0f, rule), 0);
    EXPECT_EQ(E8m0Scale<E4M3>(FLT_TRUE_MIN, rule), 0);
    EXPECT_EQ(E8m0Scale<E4M3>(kInf, rule), 0xFF);
    EXPECT_EQ(E8m0Scale<E4M3>(kNan, rule), 0xFF);
  }
  EXPECT_FALSE(PropagatesNan(ScaleRule::kRoundUp));
  EXPECT_EQ(E8m0Scale<E4M3>(kInf, ScaleRule::kRoundUp), 0xFE);
  EXPECT_EQ(E8m0Scale<E4M3>(0.0f, ScaleRule::kRoundUp), 0);
  // Near the top: an even amax that rounds up to 2^128 has no scale, the others do.
  EXPECT_EQ(E8m0Scale<E4M3>(FLT_MAX, ScaleRule::kEven), 0xFF);
  EXPECT_EQ(E8m0Scale<E4M3>(FLT_MAX, ScaleRule::kFloor), 254 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(FLT_MAX, ScaleRule::kCeil), 255 - 8);
  EXPECT_EQ(E8m0Scale<E4M3>(FLT_MAX, ScaleRule::kNearest), 255 - 8);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
