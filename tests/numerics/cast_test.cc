// Corner values of the casts, from the tables of the OCP FP8 specification and docs/quantizers.md
// section 1. The whole input space is walked by cast_exhaustive_test.
#include "kernels/numerics/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kEven = ElementRounding::kNearestEven;
constexpr auto kAway = ElementRounding::kNearestAway;

TEST(EncodeFloat, E4m3SaturatesAndKeepsSigns) {
  EXPECT_EQ(EncodeFloat<E4M3>(448.0f), 0x7E);
  EXPECT_EQ(EncodeFloat<E4M3>(1e30f), 0x7E);
  EXPECT_EQ(EncodeFloat<E4M3>(-kInf), 0xFE);
  EXPECT_EQ(EncodeFloat<E4M3>(-0.0f), 0x80);
  EXPECT_EQ(EncodeFloat<E4M3>(-0x1p-10f), 0x80);  // Half of the smallest subnormal: a tie, to even.
  EXPECT_EQ(EncodeFloat<E4M3>(std::nextafter(0x1p-10f, 1.0f)), 0x01);
  EXPECT_EQ(EncodeFloat<E4M3>(kNan), 0x7F);
  EXPECT_EQ(EncodeFloat<E4M3>(-kNan), 0x7F);
}

TEST(EncodeFloat, E5m2SaturatesBelowInfinity) {
  EXPECT_EQ(EncodeFloat<E5M2>(61440.0f), 0x7B);
  EXPECT_EQ(EncodeFloat<E5M2>(kInf), 0x7B);
  EXPECT_EQ(EncodeFloat<E5M2>(-kInf), 0xFB);
  EXPECT_EQ(EncodeFloat<E5M2>(0x1p-17f), 0x00);
  EXPECT_EQ(EncodeFloat<E5M2>(-kNan), 0x7F);
}

/// The ties of E2M1 lie at 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.
TEST(EncodeFloat, E2m1TiesGoToTheEvenCode) {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const uint8_t even[] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(EncodeFloat<E2M1>(ties[i]), even[i]) << ties[i];
    EXPECT_EQ(EncodeFloat<E2M1>(-ties[i]), even[i] | 8);
    EXPECT_EQ(EncodeFloat<E2M1>(std::nextafter(ties[i], 0.0f)), i);
    EXPECT_EQ(EncodeFloat<E2M1>(std::nextafter(ties[i], 9.0f)), i + 1);
    EXPECT_EQ(EncodeFloat<E2M1>(ties[i], kAway), i + 1);
  }
}

TEST(EncodeFloat, FormatsWithoutNanTakeTheLargest) {
  for (const float x : {kNan, -kNan, kInf, 1e30f}) {
    EXPECT_EQ(EncodeFloat<E2M1>(x), 0x7);
    EXPECT_EQ(EncodeFloat<E2M3>(x), 0x1F);
    EXPECT_EQ(EncodeFloat<E3M2>(x), 0x1F);
  }
  EXPECT_EQ(EncodeFloat<E2M1>(-kInf), 0xF);
  EXPECT_EQ(EncodeFloat<E2M3>(-8.0f), 0x3F);
  EXPECT_EQ(EncodeFloat<E2M1>(-0.0f), 0x8);
}

TEST(EncodeFloat, OverflowToNanOrInfinity) {
  EXPECT_EQ(EncodeFloat<E4M3>(464.0f, kEven, Overflow::kNan), 0x7E);  // A tie, to the even 448.
  EXPECT_EQ(EncodeFloat<E4M3>(465.0f, kEven, Overflow::kNan), 0x7F);
  EXPECT_EQ(EncodeFloat<E4M3>(-kInf, kEven, Overflow::kNan), 0x7F);
  EXPECT_EQ(EncodeFloat<E5M2>(61439.0f, kEven, Overflow::kNan), 0x7B);
  EXPECT_EQ(EncodeFloat<E5M2>(-61440.0f, kEven, Overflow::kNan), 0xFC);
  EXPECT_EQ(EncodeFloat<E5M2>(kInf, kEven, Overflow::kNan), 0x7C);
}

TEST(EncodeFloat, TiesAwayFromZero) {
  EXPECT_EQ(EncodeFloat<E4M3>(1.0625f, kEven), 0x38);
  EXPECT_EQ(EncodeFloat<E4M3>(1.0625f, kAway), 0x39);
  EXPECT_EQ(EncodeFloat<E4M3>(-1.0625f, kAway), 0xB9);
  EXPECT_EQ(EncodeFloat<E4M3>(1.1875f, kEven), 0x3A);
  EXPECT_EQ(EncodeFloat<E4M3>(0x1p-10f, kAway), 0x01);
  EXPECT_EQ(EncodeFloat<E4M3>(464.0f, kAway, Overflow::kNan), 0x7F);
}

TEST(EncodeFloat, SixteenBitFormatsGoToInfinity) {
  EXPECT_EQ(EncodeFloat<BFloat16>(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(EncodeFloat<BFloat16>(-kInf), 0xFF80);
  EXPECT_EQ(EncodeFloat<BFloat16>(kNan), 0x7FFF);
  EXPECT_EQ(EncodeFloat<BFloat16>(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(EncodeFloat<Float16>(65519.0f), 0x7BFF);
  EXPECT_EQ(EncodeFloat<Float16>(65520.0f), 0x7C00);
  EXPECT_EQ(EncodeFloat<Float16>(-0x1p-25f), 0x8000);
  EXPECT_EQ(EncodeFloat<Float16>(0x1.8p-25f), 0x0001);
}

TEST(EncodeDouble, RoundsOnce) {
  // Through binary32 this is a tie at 1 + 2^-8, which would go down to 1; it lies above the tie.
  EXPECT_EQ(EncodeDouble<BFloat16>(1.0 + 0x1p-8 + 0x1p-40), 0x3F81);
  EXPECT_EQ(EncodeDouble<Float32>(0x1p-149), 0x00000001u);
  EXPECT_EQ(EncodeDouble<Float32>(-0x1p-150), 0x80000000u);
  EXPECT_EQ(EncodeDouble<Float32>(1e300), 0x7F800000u);
  EXPECT_EQ(EncodeDouble<Float32>(std::numeric_limits<double>::quiet_NaN()), 0x7FFFFFFFu);
}

template <class F>
void ExpectRoundTrip() {
  using C = FormatConstants<F>;
  constexpr auto kUsual = F::kSpecials == Specials::kNone ? Overflow::kSaturate : Overflow::kNan;
  for (uint32_t code = 0; code < (1u << C::kBits); ++code) {
    const auto stored = static_cast<typename F::Storage>(code);
    const float value = DecodeFloat<F>(stored);
    const FloatClass kind = Unpack<F>(stored).kind;
    EXPECT_EQ(FloatClassOf<F>(stored), kind) << "code " << code;
    const bool is_nan = kind == FloatClass::kNan;
    EXPECT_EQ(EncodeFloat<F>(value, kEven, kUsual), is_nan ? F::kCanonicalNan : stored)
        << "code " << code;
  }
}

TEST(DecodeFloat, EveryCodeComesBack) {
  ExpectRoundTrip<E4M3>();
  ExpectRoundTrip<E5M2>();
  ExpectRoundTrip<E2M3>();
  ExpectRoundTrip<E3M2>();
  ExpectRoundTrip<E2M1>();
  ExpectRoundTrip<BFloat16>();
  ExpectRoundTrip<Float16>();
}

TEST(FloatClassOf, Binary32) {
  const auto class_of = [](float x) { return FloatClassOf<Float32>(std::bit_cast<uint32_t>(x)); };
  for (const float zero : {0.0f, -0.0f}) EXPECT_EQ(class_of(zero), FloatClass::kZero);
  for (const float finite : {0x1p-149f, -0x1p-149f, 1.0f, std::numeric_limits<float>::max(),
                             std::numeric_limits<float>::lowest()}) {
    EXPECT_EQ(class_of(finite), FloatClass::kFinite) << finite;
  }
  for (const float infinite : {kInf, -kInf}) EXPECT_EQ(class_of(infinite), FloatClass::kInfinite);
  for (const uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    EXPECT_EQ(FloatClassOf<Float32>(nan), FloatClass::kNan) << nan;
  }
}

TEST(DecodeFloat, KnownValues) {
  EXPECT_EQ(DecodeFloat<E4M3>(0x01), 0x1p-9f);
  EXPECT_EQ(DecodeFloat<E4M3>(0xFE), -448.0f);
  EXPECT_EQ(DecodeFloat<E2M1>(0x1), 0.5f);
  EXPECT_EQ(DecodeFloat<E2M1>(0xF), -6.0f);
  EXPECT_EQ(DecodeFloat<E2M3>(0x1F), 7.5f);
  EXPECT_EQ(DecodeFloat<E2M3>(0x01), 0.125f);
  EXPECT_EQ(DecodeFloat<E3M2>(0x1F), 28.0f);
  EXPECT_EQ(DecodeFloat<E3M2>(0x21), -0.0625f);
  EXPECT_EQ(DecodeFloat<E5M2>(0x7B), 57344.0f);
  EXPECT_EQ(DecodeFloat<E5M2>(0x01), 0x1p-16f);
  EXPECT_EQ(DecodeFloat<E5M2>(0xFC), -kInf);
  EXPECT_EQ(DecodeFloat<BFloat16>(0x0001), 0x1p-133f);
  EXPECT_EQ(DecodeFloat<Float16>(0x03FF), 0x1.FF8p-15f);
  EXPECT_EQ(std::bit_cast<uint32_t>(DecodeFloat<E4M3>(0xFF)), 0x7FFFFFFFu);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
