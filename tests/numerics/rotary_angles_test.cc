// Cosines, sines and powers of rotary positions against MPFR: correctly rounded in every case.
#include "kernels/numerics/rotary_angles.h"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "tests/numerics/mpfr_functions.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::SameBits;

/// An MPFR number of 24 bits; results below the smallest normal number of binary32 are not asked
/// for.
class Correct {
 public:
  Correct() {
    for (mpfr_ptr number : {a_, b_, result_}) mpfr_init2(number, 24);
  }
  ~Correct() {
    for (mpfr_ptr number : {a_, b_, result_}) mpfr_clear(number);
  }
  Correct(const Correct&) = delete;
  Correct& operator=(const Correct&) = delete;

  float Cosine(float x) { return Of(mpfr_cos, x); }
  float Sine(float x) { return Of(mpfr_sin, x); }
  float Power(float base, float exponent) {
    mpfr_set_flt(a_, base, MPFR_RNDN);
    mpfr_set_flt(b_, exponent, MPFR_RNDN);
    mpfr_pow(result_, a_, b_, MPFR_RNDN);
    return mpfr_get_flt(result_, MPFR_RNDN);
  }

 private:
  template <class Function>
  float Of(const Function& function, float x) {
    mpfr_set_flt(a_, x, MPFR_RNDN);
    function(result_, a_, MPFR_RNDN);
    return mpfr_get_flt(result_, MPFR_RNDN);
  }

  mpfr_t a_, b_, result_;
};

TEST(RotaryAnglesTest, WalkThroughAllMagnitudes) {
  Correct correct;
  int count = 0;
  for (uint32_t bits = 0x0D800000; bits < 0x7F800000; bits += 4093, ++count) {
    const float x = std::bit_cast<float>(bits);
    const auto [cosine, sine] = CosineAndSineOf(x);
    ASSERT_TRUE(SameBits(cosine, correct.Cosine(x))) << std::hexfloat << x << " " << cosine;
    ASSERT_TRUE(SameBits(sine, correct.Sine(x))) << std::hexfloat << x << " " << sine;
    const auto of_negative = CosineAndSineOf(-x);
    ASSERT_TRUE(SameBits(of_negative.cosine, cosine)) << x;
    ASSERT_TRUE(SameBits(of_negative.sine, -sine)) << x;
  }
  EXPECT_GT(count, 400000);
}

// The binary32 numbers next to multiples of pi / 2, where most digits cancel.
TEST(RotaryAnglesTest, NextToMultiplesOfARightAngle) {
  Correct correct;
  for (int64_t multiple = 1; multiple < 40000; ++multiple) {
    const auto nearest = static_cast<float>(static_cast<double>(multiple) * 0x1.921fb54442d18p+0);
    for (const float x : {nearest, std::nextafter(nearest, 0.0f)}) {
      const auto [cosine, sine] = CosineAndSineOf(x);
      ASSERT_TRUE(SameBits(cosine, correct.Cosine(x))) << std::hexfloat << x << " " << cosine;
      ASSERT_TRUE(SameBits(sine, correct.Sine(x))) << std::hexfloat << x << " " << sine;
    }
  }
  // The binary32 number nearest to one, by Muller, "Elementary Functions".
  const float near = 16367173.0f * 0x1p72f;
  const auto [cosine, sine] = CosineAndSineOf(near);
  EXPECT_LT(std::min(std::fabs(cosine), std::fabs(sine)), 0x1p-29f);
  EXPECT_TRUE(SameBits(cosine, correct.Cosine(near)));
  EXPECT_TRUE(SameBits(sine, correct.Sine(near)));
}

TEST(RotaryAnglesTest, Edges) {
  EXPECT_TRUE(SameBits(CosineAndSineOf(0.0f).cosine, 1.0f));
  EXPECT_TRUE(SameBits(CosineAndSineOf(0.0f).sine, 0.0f));
  EXPECT_TRUE(SameBits(CosineAndSineOf(-0.0f).sine, -0.0f));
  EXPECT_TRUE(SameBits(CosineAndSineOf(0x1p-149f).sine, 0x1p-149f));
  for (const float x : {INFINITY, -INFINITY, NAN}) {
    const auto [cosine, sine] = CosineAndSineOf(x);
    EXPECT_EQ(std::bit_cast<uint32_t>(cosine), 0x7FFFFFFFu);
    EXPECT_EQ(std::bit_cast<uint32_t>(sine), 0x7FFFFFFFu);
  }
}

TEST(RotaryAnglesTest, Powers) {
  Correct correct;
  for (const float base : {1e4f, 5e5f, 1e6f, 1e7f, 8e6f, 10.0f, 2.0f, 1.0f, 0.001f, 3e38f}) {
    for (int64_t columns = 2; columns <= 512; columns += 2) {
      for (int64_t i = 0; i < columns / 2; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(columns);
        ASSERT_TRUE(SameBits(PowerOf(base, exponent), correct.Power(base, exponent)))
            << base << "^" << exponent;
      }
    }
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 300000; ++i) {
    // Normal numbers, whose powers below 1 are normal too.
    const float base =
        std::bit_cast<float>(static_cast<uint32_t>(0x00800000 + random() % 0x7F000000));
    const float exponent = static_cast<float>(random() >> 40) * 0x1p-24f;
    ASSERT_TRUE(SameBits(PowerOf(base, exponent), correct.Power(base, exponent)))
        << std::hexfloat << base << "^" << exponent;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
