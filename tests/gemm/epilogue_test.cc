// The epilogue table of docs/tensor-cores.md section 3.3, term by term in plain fp32 expressions,
// on top of accumulators that sm90_test.cc has proven.
#include "kernels/gemm/epilogue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/numerics/cast.h"
#include "tests/gemm/operand_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kM = 21, kN = 83, kK = 96;

Tensor Floats(const std::vector<float>& values) {
  Tensor tensor = Tensor::Allocate(DType::kF32, {static_cast<int64_t>(values.size())}).value();
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return tensor;
}

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = (static_cast<float>(random() % 20001) - 10000.0f) / 3001.0f;
  }
  return values;
}

/// fp32 values as a tensor of `dtype`, RNE.
Tensor Cast(const std::vector<float>& values, DType dtype, Shape shape) {
  Tensor tensor = Tensor::Allocate(dtype, shape).value();
  for (size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::kBF16:
        tensor.as<uint16_t>()[i] = EncodeFloat<BFloat16>(values[i]);
        break;
      case DType::kF16:
        tensor.as<uint16_t>()[i] = EncodeFloat<Float16>(values[i]);
        break;
      case DType::kF8E4M3:
        tensor.as<uint8_t>()[i] = EncodeFloat<E4M3>(values[i]);
        break;
      case DType::kF8E5M2:
        tensor.as<uint8_t>()[i] = EncodeFloat<E5M2>(values[i]);
        break;
      default:
        tensor.as<float>()[i] = CanonicalFloat(values[i]);
        break;
    }
  }
  return tensor;
}

float Element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kBF16:
      return DecodeFloat<BFloat16>(tensor.as<uint16_t>()[i]);
    case DType::kF16:
      return DecodeFloat<Float16>(tensor.as<uint16_t>()[i]);
    default:
      return tensor.as<float>()[i];
  }
}

GemmDesc Fp8Desc(DType out) {
  GemmDesc desc;
  desc.a.data = MakeCodes(DType::kF8E4M3, kM, kK, CodePattern::kNear, 11);
  desc.b.data = MakeCodes(DType::kF8E4M3, kN, kK, CodePattern::kNear, 12);
  desc.arithmetic = Arithmetic::Parse("sm90:split").value();
  desc.out_dtype = out;
  return desc;
}

void ScalePerTensor(GemmDesc& desc) {
  desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
  desc.a.scale_inv = Floats({0.0123f});
  desc.b.scale_inv = Floats({3.7f});
}

/// Accumulators of `desc`: the same GEMM without any epilogue.
std::vector<float> Accumulators(const GemmDesc& desc) {
  GemmDesc plain = desc;
  plain.a.scaling = plain.b.scaling = ScaleMode::kNone;
  plain.a.scale_inv = plain.b.scale_inv = plain.c = plain.bias = plain.d_scale = Tensor();
  plain.alpha = 1;
  plain.beta = 0;
  plain.in_place = false;
  plain.out_dtype = DType::kF32;
  const GemmResult result = GemmCpu(plain, {}).value();
  return {result.d.as<float>(), result.d.as<float>() + result.d.element_count()};
}

/// d must hold, bit for bit, expected(acc, m, n) rounded once to the output type.
void ExpectOutputs(const GemmDesc& desc,
                   const std::function<float(float acc, int64_t m, int64_t n)>& expected) {
  const auto result = GemmCpu(desc, {});
  ASSERT_TRUE(result.ok()) << result.status();
  std::vector<float> values = Accumulators(desc);
  for (int64_t i = 0; i < kM * kN; ++i) values[i] = expected(values[i], i / kN, i % kN);
  const Tensor want = Cast(values, desc.out_dtype, {kM, kN});
  ASSERT_EQ(result->d.dtype(), desc.out_dtype);
  ASSERT_EQ(result->d.byte_size(), want.byte_size());
  const int bytes = DTypeBytes(desc.out_dtype);
  for (int64_t i = 0; i < kM * kN; ++i) {
    ASSERT_TRUE(std::equal(want.data() + i * bytes, want.data() + (i + 1) * bytes,
                           result->d.data() + i * bytes))
        << GemmText(desc) << " at [" << i / kN << "][" << i % kN << "]";
  }
}

class EpilogueTest : public testing::TestWithParam<DType> {};

TEST_P(EpilogueTest, CoefficientIsAlphaTimesScaleNTimesScaleM) {
  GemmDesc desc = Fp8Desc(GetParam());
  ScalePerTensor(desc);
  desc.alpha = 1.7f;
  const float alpha_n = 1.7f * 3.7f;
  const float coefficient = alpha_n * 0.0123f;
  ExpectOutputs(desc, [&](float acc, int64_t, int64_t) { return acc * coefficient; });
}

TEST_P(EpilogueTest, OuterVectorsScaleByColumnFirst) {
  GemmDesc desc = Fp8Desc(GetParam());
  const std::vector<float> row_scales = RandomFloats(kM, 1), column_scales = RandomFloats(kN, 2);
  desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = Floats(row_scales);
  desc.b.scale_inv = Floats(column_scales);
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const float by_column = acc * column_scales[n];
    return by_column * row_scales[m];
  });
}

TEST_P(EpilogueTest, OuterVectorsTakeABiasLast) {
  GemmDesc desc = Fp8Desc(GetParam());
  const std::vector<float> row_scales = RandomFloats(kM, 3), column_scales = RandomFloats(kN, 4);
  desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = Floats(row_scales);
  desc.b.scale_inv = Floats(column_scales);
  desc.bias = Cast(RandomFloats(kN, 5), DType::kBF16, {kN});
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const float by_column = acc * column_scales[n];
    const float scaled = by_column * row_scales[m];
    return scaled + Element(desc.bias, n);
  });
}

TEST_P(EpilogueTest, BiasIsAddedAfterTheScaledValueIsRounded) {
  for (const DType bias : {DType::kBF16, DType::kF16, DType::kF32}) {
    GemmDesc desc = Fp8Desc(GetParam());
    ScalePerTensor(desc);
    desc.bias = Cast(RandomFloats(kN, 6), bias, {kN});
    const float coefficient = 3.7f * 0.0123f;
    ExpectOutputs(desc, [&](float acc, int64_t, int64_t n) {
      const float scaled = acc * coefficient;
      return scaled + Element(desc.bias, n);
    });
  }
}

TEST_P(EpilogueTest, BetaOutOfPlaceIsOneFusedStep) {
  GemmDesc desc = Fp8Desc(GetParam());
  ScalePerTensor(desc);
  const float coefficient = 3.7f * 0.0123f;
  for (const float beta : {1.0f, -0.3f}) {
    desc.beta = beta;
    desc.c = Cast(RandomFloats(kM * kN, 7), GetParam(), {kM, kN});
    ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
      const float scaled_c = beta * Element(desc.c, m * kN + n);
      return std::fma(acc, coefficient, scaled_c);
    });
  }
}

TEST_P(EpilogueTest, InPlaceRoundsBeforeItAdds) {
  GemmDesc desc = Fp8Desc(GetParam());
  ScalePerTensor(desc);
  const float coefficient = 3.7f * 0.0123f;
  desc.beta = 1;
  desc.in_place = true;
  desc.c = Cast(RandomFloats(kM * kN, 8), GetParam(), {kM, kN});
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const Tensor rounded = Cast({acc * coefficient}, GetParam(), {1});
    return Element(rounded, 0) + Element(desc.c, m * kN + n);
  });
}

TEST_P(EpilogueTest, InPlaceWithAnotherBetaIsAsOutOfPlace) {
  GemmDesc desc = Fp8Desc(GetParam());
  desc.beta = 0.7f;
  desc.in_place = true;
  desc.c = Cast(RandomFloats(kM * kN, 9), GetParam(), {kM, kN});
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const float scaled_c = 0.7f * Element(desc.c, m * kN + n);
    return std::fma(acc, 1.0f, scaled_c);
  });
}

TEST_P(EpilogueTest, OuterVectorsAreTheScaledAccumulatorOfAlphaAndBeta) {
  GemmDesc desc = Fp8Desc(GetParam());
  const std::vector<float> row_scales = RandomFloats(kM, 10), column_scales = RandomFloats(kN, 11);
  desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = Floats(row_scales);
  desc.b.scale_inv = Floats(column_scales);
  desc.alpha = 0.7f;
  desc.beta = -0.3f;
  desc.c = Cast(RandomFloats(kM * kN, 12), GetParam(), {kM, kN});
  desc.bias = Cast(RandomFloats(kN, 13), GetParam(), {kN});
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const float by_column = acc * column_scales[n];
    const float scaled = by_column * row_scales[m];
    const float scaled_c = -0.3f * Element(desc.c, m * kN + n);
    return std::fma(scaled, 0.7f, scaled_c) + Element(desc.bias, n);
  });
}

TEST_P(EpilogueTest, InPlaceTakesTheBiasBeforeItRounds) {
  GemmDesc desc = Fp8Desc(GetParam());
  ScalePerTensor(desc);
  const float coefficient = 3.7f * 0.0123f;
  desc.beta = 1;
  desc.in_place = true;
  desc.c = Cast(RandomFloats(kM * kN, 14), GetParam(), {kM, kN});
  desc.bias = Cast(RandomFloats(kN, 15), GetParam(), {kN});
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const float scaled = acc * coefficient;
    const Tensor rounded = Cast({scaled + Element(desc.bias, n)}, GetParam(), {1});
    return Element(rounded, 0) + Element(desc.c, m * kN + n);
  });
}

TEST_P(EpilogueTest, SplitKAddsCToTheRoundedProductInPlaceOrNot) {
  for (const bool in_place : {false, true}) {
    GemmDesc desc = Fp8Desc(GetParam());
    ScalePerTensor(desc);
    desc.arithmetic = Arithmetic::Parse("sm90:split,splitk=2").value();
    const float coefficient = 3.7f * 0.0123f;
    for (const float beta : {1.0f, 0.3f}) {
      desc.beta = beta;
      desc.in_place = in_place;
      desc.c = Cast(RandomFloats(kM * kN, 16), GetParam(), {kM, kN});
      desc.bias = Cast(RandomFloats(kN, 17), GetParam(), {kN});
      ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
        const float scaled = acc * coefficient;
        return std::fma(beta, Element(desc.c, m * kN + n), scaled) + Element(desc.bias, n);
      });
    }
  }
}

TEST_P(EpilogueTest, AnExactlyZeroProductIsPositive) {
  GemmDesc desc = Fp8Desc(GetParam());
  desc.alpha = -1;
  std::fill(desc.a.data.as<uint8_t>(), desc.a.data.as<uint8_t>() + kM * kK, uint8_t{0});
  ExpectOutputs(desc, [](float, int64_t, int64_t) { return 0.0f; });
  desc = Fp8Desc(GetParam());
  desc.alpha = 0;
  ExpectOutputs(desc, [](float, int64_t, int64_t) { return 0.0f; });
  desc.alpha = -1;
  desc.b.data = MakeCodes(DType::kF8E4M3, kN, kK, CodePattern::kMaximal, 1);
  std::fill(desc.a.data.as<uint8_t>(), desc.a.data.as<uint8_t>() + kM * kK, uint8_t{0});
  desc.arithmetic = Arithmetic::Parse("sm90:splitk=2").value();  // But for the sum after split-K.
  ExpectOutputs(desc, [](float, int64_t, int64_t) { return -0.0f; });
}

INSTANTIATE_TEST_SUITE_P(Outputs, EpilogueTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

class Fp8EpilogueTest : public testing::TestWithParam<DType> {};

TEST_P(Fp8EpilogueTest, ScaleComesAfterAmaxAndSaturates) {
  GemmDesc desc = Fp8Desc(GetParam());
  ScalePerTensor(desc);
  const float d_scale = GetParam() == DType::kF8E4M3 ? 130.0f : 20000.0f;
  desc.d_scale = Floats({d_scale});
  const float coefficient = 3.7f * 0.0123f;
  ExpectOutputs(desc, [&](float acc, int64_t, int64_t) {
    const float value = acc * coefficient;
    return value * d_scale;
  });

  const GemmResult result = GemmCpu(desc, {}).value();
  float amax = 0;
  for (const float acc : Accumulators(desc)) amax = std::max(amax, std::fabs(acc * coefficient));
  EXPECT_EQ(*result.amax.as<float>(), amax);
  // The scale was chosen so that some outputs saturate.
  const uint8_t largest = GetParam() == DType::kF8E4M3 ? 0x7E : 0x7B;
  EXPECT_TRUE(std::any_of(result.d.as<uint8_t>(), result.d.as<uint8_t>() + kM * kN,
                          [&](uint8_t code) { return (code & 0x7F) == largest; }));
}

TEST_P(Fp8EpilogueTest, NanIsCanonicalAndReachesAmax) {
  GemmDesc desc = Fp8Desc(GetParam());
  desc.a.data.as<uint8_t>()[0] = 0xFF;  // NaN in row 0.
  const GemmResult result = GemmCpu(desc, {}).value();
  for (int64_t n = 0; n < kN; ++n) EXPECT_EQ(result.d.as<uint8_t>()[n], 0x7F);
  EXPECT_EQ(*result.amax.as<uint32_t>(), 0x7FFFFFFFu);  // As on an H200: golden_gemm_epilogue_fp8.
}

// An H200's, which the test cublaslt_gemm_cuda_test repeats there: after split-K a NaN output
// counts nothing, and without any number the amax is 0.
TEST_P(Fp8EpilogueTest, AmaxAfterSplitKIsThatOfTheNumbers) {
  GemmDesc desc = Fp8Desc(GetParam());
  desc.a.data.as<uint8_t>()[0] = 0xFF;  // NaN in row 0.
  desc.arithmetic = Arithmetic::Parse("sm90:splitk=2").value();
  float amax = 0;
  for (const float acc : Accumulators(desc)) {
    if (!std::isnan(acc)) amax = std::max(amax, std::fabs(acc));
  }
  EXPECT_GT(amax, 0);
  EXPECT_EQ(*GemmCpu(desc, {}).value().amax.as<float>(), amax);
  for (int64_t m = 0; m < kM; ++m) desc.a.data.as<uint8_t>()[m * kK] = 0xFF;
  EXPECT_EQ(*GemmCpu(desc, {}).value().amax.as<uint32_t>(), 0u);
}

TEST_P(Fp8EpilogueTest, CIsBFloat16) {
  GemmDesc desc = Fp8Desc(GetParam());
  desc.beta = 0.3f;
  desc.c = Cast(RandomFloats(kM * kN, 21), DType::kBF16, {kM, kN});
  ExpectOutputs(desc, [&](float acc, int64_t m, int64_t n) {
    const float scaled_c = 0.3f * Element(desc.c, m * kN + n);
    return std::fma(acc, 1.0f, scaled_c);
  });
}

// An H200's: cuBLASLt gives 0x80 for a sum that the coefficient makes -0 after split-K, and 0x00
// without (docs/tensor-cores.md section 3.3).
TEST_P(Fp8EpilogueTest, AZeroKeepsItsSignAfterSplitKOnly) {
  GemmDesc desc = Fp8Desc(GetParam());
  desc.alpha = -1;
  std::fill(desc.a.data.as<uint8_t>(), desc.a.data.as<uint8_t>() + kM * kK, uint8_t{0});
  const GemmResult whole = GemmCpu(desc, {}).value();
  desc.arithmetic = Arithmetic::Parse("sm90:splitk=2").value();
  const GemmResult sliced = GemmCpu(desc, {}).value();
  for (int64_t i = 0; i < kM * kN; ++i) {
    ASSERT_EQ(whole.d.as<uint8_t>()[i], 0x00);
    ASSERT_EQ(sliced.d.as<uint8_t>()[i], 0x80);
  }
}

INSTANTIATE_TEST_SUITE_P(Outputs, Fp8EpilogueTest, testing::Values(DType::kF8E4M3, DType::kF8E5M2),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

/// One output of one product, 1 * value, so that its rounding is seen alone.
uint16_t RoundedToBFloat16(uint32_t value_bits) {
  GemmDesc desc;
  desc.a.data = Tensor::Allocate(DType::kF32, {1, 1}).value();
  desc.b.data = Tensor::Allocate(DType::kF32, {1, 1}).value();
  desc.a.data.as<float>()[0] = 1.0f;
  desc.b.data.as<uint32_t>()[0] = value_bits;
  desc.arithmetic = Arithmetic::Parse("fp32").value();
  desc.out_dtype = DType::kBF16;
  return GemmCpu(desc, {}).value().d.as<uint16_t>()[0];
}

TEST(EpilogueRoundingTest, BFloat16TiesGoToEvenAndNanIsCanonical) {
  EXPECT_EQ(RoundedToBFloat16(0x3F808000), 0x3F80);  // Tie, even below.
  EXPECT_EQ(RoundedToBFloat16(0x3F818000), 0x3F82);  // Tie, even above.
  EXPECT_EQ(RoundedToBFloat16(0x3F808001), 0x3F81);
  EXPECT_EQ(RoundedToBFloat16(0x7F7FFFFF), 0x7F80);  // Rounds up to infinity.
  EXPECT_EQ(RoundedToBFloat16(0xFF800000), 0xFF80);
  EXPECT_EQ(RoundedToBFloat16(0xFFFFFFFF), 0x7FFF);  // The carry of all ones must not make -0.
  EXPECT_EQ(RoundedToBFloat16(0x7F800001), 0x7FFF);
  EXPECT_EQ(RoundedToBFloat16(0x00018000), 0x0002);  // Subnormal tie.
}

TEST(EpilogueRoundingTest, BFloat16EqualsTheScalarCastEverywhere) {
  // 2^20 values of every sign and exponent through a 1024 x 1024 outer product with k = 1.
  GemmDesc desc;
  desc.a.data = Tensor::Allocate(DType::kF32, {1, 1}).value();
  desc.a.data.as<float>()[0] = 1.0f;
  constexpr int64_t kCount = 1 << 20;
  desc.b.data = MakeCodes(DType::kF32, kCount, 1, CodePattern::kAll, 5);
  desc.arithmetic = Arithmetic::Parse("fp32").value();
  desc.out_dtype = DType::kBF16;
  const GemmResult result = GemmCpu(desc, {}).value();
  for (int64_t i = 0; i < kCount; ++i) {
    // +0 + -0 is +0: the accumulator starts from +0.
    const float value = 0.0f + desc.b.data.as<float>()[i];
    ASSERT_EQ(result.d.as<uint16_t>()[i], EncodeFloat<BFloat16>(value)) << i;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
