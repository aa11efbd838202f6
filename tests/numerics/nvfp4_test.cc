// NVFP4's scales at their corners, by the order of operations of docs/quantizers.md sections 6.2
// and 6.7; expected numbers by hand or by numpy in fp32. Whole tensors: nvfp4_vectors_test.
#include "kernels/numerics/nvfp4.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <limits>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Nvfp4TensorScale, Corners) {
  const auto encode = [](float amax) {
    return MakeNvfp4TensorScale(amax, 448, ScaleRule::kTwoLevel).encode;
  };
  EXPECT_EQ(encode(2688.0f), 1.0f);
  EXPECT_EQ(encode(1.0f), 2688.0f);
  EXPECT_EQ(encode(0.0f), 1.0f);
  EXPECT_EQ(encode(kInf), 1.0f);
  EXPECT_EQ(encode(FLT_TRUE_MIN), FLT_MAX);
  EXPECT_EQ(encode(kNan), FLT_MAX);
  EXPECT_EQ(MakeNvfp4TensorScale(1.0f, 256, ScaleRule::kTwoLevel).encode, 1536.0f);
}

/// The product of constants comes first: 2688 / 5 * f32(1/6) = 89.6, times 3.
TEST(Nvfp4BlockScale, OrderOfOperations) {
  const Nvfp4TensorScale tensor = MakeNvfp4TensorScale(5.0f, 448, ScaleRule::kTwoLevel);
  EXPECT_EQ(std::bit_cast<uint32_t>(tensor.encode_sixth), 0x42b33333u);
  const Nvfp4BlockScale scale = MakeNvfp4BlockScale(3.0f, tensor);
  EXPECT_EQ(DecodeFloat<E4M3>(scale.code), 256.0f);  // Of 268.8, below the tie at 272.
  EXPECT_EQ(scale.factor, 1.0f / (256.0f * tensor.decode));
  EXPECT_FALSE(scale.divides);
}

TEST(Nvfp4BlockScale, ZeroTinyAndInfiniteBlocks) {
  const Nvfp4TensorScale one = MakeNvfp4TensorScale(2688.0f, 448, ScaleRule::kTwoLevel);
  EXPECT_EQ(MakeNvfp4BlockScale(0.0f, one).code, 0);
  EXPECT_EQ(MakeNvfp4BlockScale(0.0f, one).factor, FLT_MAX);
  EXPECT_EQ(MakeNvfp4BlockScale(6 * 0x1p-11f, one).code, 0);  // Rounds to 0: saturated codes.
  EXPECT_EQ(MakeNvfp4BlockScale(6 * 0x1p-9f, one).code, 1);
  const Nvfp4BlockScale infinite = MakeNvfp4BlockScale(kInf, one);
  EXPECT_EQ(infinite.code, 0x7E);
  EXPECT_EQ(infinite.factor, 1.0f / 448.0f);
}

TEST(Nvfp4BlockScale, RulesWithoutZeroScales) {
  const Nvfp4TensorScale single = MakeNvfp4TensorScale(0.0f, 448, ScaleRule::kSingleLevel);
  EXPECT_EQ(MakeNvfp4BlockScale(0.0f, single).code, 0x08);   // 2^-6.
  EXPECT_EQ(MakeNvfp4BlockScale(12.0f, single).code, 0x40);  // 2.
  EXPECT_EQ(MakeNvfp4BlockScale(12.0f, single).Scaled(6.0f), 3.0f);
  EXPECT_EQ(MakeNvfp4BlockScale(1e9f, single).code, 0x7E);
  const Nvfp4TensorScale clamped = MakeNvfp4TensorScale(2688.0f, 448, ScaleRule::kTwoLevelClamped);
  EXPECT_EQ(clamped.decode, 1.0f);
  EXPECT_EQ(MakeNvfp4BlockScale(6 * 0x1p-9f, clamped).code, 0x08);
  EXPECT_EQ(MakeNvfp4TensorScale(0.0f, 448, ScaleRule::kTwoLevelClamped).decode, 1.0f);
  EXPECT_EQ(MakeNvfp4TensorScale(kInf, 448, ScaleRule::kTwoLevelClamped).decode, 1.0f);
}

TEST(FourOverSix, CandidatesAndErrors) {
  const Nvfp4TensorScale tensor = MakeNvfp4TensorScale(1536.0f, 256, ScaleRule::kTwoLevel);
  EXPECT_EQ(tensor.encode, 1.0f);
  const FourOverSixScales scales = MakeFourOverSixScales(48.0f, tensor);
  EXPECT_EQ(DecodeFloat<E4M3>(scales.six.code), 8.0f);
  EXPECT_EQ(DecodeFloat<E4M3>(scales.four.code), 12.0f);
  // Code 5 (3) at scale 8 is 24: 1 from 25.
  EXPECT_EQ(FourOverSixError(25.0f, 5, scales.six.code, 1536.0f, 256, false), 1.0f);
  EXPECT_EQ(FourOverSixError(27.0f, 5, scales.six.code, 1536.0f, 256, true), 9.0f);
  EXPECT_EQ(MakeFourOverSixScales(48000.0f, tensor).four.code, 0x7E);
}

TEST(Nvfp4Dequantize, ScaleTimesAmaxThenTheConstant) {
  EXPECT_EQ(Nvfp4DequantizeScale(0x38, 2688.0f, Nvfp4AmaxFactor(448)), 2688.0f * (1.0f / 2688.0f));
  EXPECT_EQ(std::bit_cast<uint32_t>(Nvfp4AmaxFactor(448)), 0x39c30c31u);
  EXPECT_EQ(std::bit_cast<uint32_t>(Nvfp4AmaxFactor(256)), 0x3a2aaaabu);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
