// Block-scaled and small-format GEMMs: what is refused and by what name, what auto resolves to, and
// the global scales of nv16 in the epilogue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/numerics/cast.h"
#include "tests/gemm/models/scalar_outputs.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum DType;
using enum ScaleMode;

GemmDesc MakeDesc(DType dtype, ScaleMode a, ScaleMode b, const std::string& arithmetic = "auto",
                  int64_t k = 256) {
  GemmDesc desc;
  desc.a = MakeOperand(dtype, a, 20, k, false, CodePattern::kNear, ScalePattern::kUsual, 1);
  desc.b = MakeOperand(dtype, b, 24, k, false, CodePattern::kNear, ScalePattern::kUsual, 2);
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  return desc;
}

/// Code and message of a refusal, from CheckGemm and GemmCpu alike.
std::string Refusal(const GemmDesc& desc) {
  const absl::Status checked = CheckGemm(desc).status();
  EXPECT_FALSE(checked.ok());
  EXPECT_EQ(GemmCpu(desc, {}).status(), checked);
  return std::string(absl::StatusCodeToString(checked.code())) + " " +
         std::string(checked.message());
}

TEST(ScaledGemmTest, AutoTakesTheArchitectureThatHasTheOperands) {
  const auto resolved = [](const GemmDesc& desc) {
    return GemmCpu(desc, {})->arithmetic.ToString();
  };
  EXPECT_EQ(resolved(MakeDesc(kBF16, kNone, kNone)), "sm90");
  EXPECT_EQ(resolved(MakeDesc(kF8E4M3, kNone, kNone)), "sm90:fast");
  EXPECT_EQ(resolved(MakeDesc(kF8E4M3, k1x128, k128x128)), "sm90:split");
  EXPECT_EQ(resolved(MakeDesc(kF8E4M3, kMx32, kMx32)), "sm100");
  EXPECT_EQ(resolved(MakeDesc(kF6E3M2, kMx32, kMx32)), "sm100");
  EXPECT_EQ(resolved(MakeDesc(kF6E2M3, kNone, kNone)), "sm100");
  EXPECT_EQ(resolved(MakeDesc(kF4E2M1x2, kNv16, kNv16)), "sm100");
}

TEST(ScaledGemmTest, RefusesPairsThatNoKernelTakes) {
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, k128x128, k128x128)),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("2-D by 2-D blocks")));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, k1x128, kMx32)),
              AllOf(HasSubstr("b.scaling is mx32"), HasSubstr("a.scaling is 1x128")));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, kNone, k1x128)), HasSubstr("b.scaling is 1x128"));
  EXPECT_THAT(Refusal(MakeDesc(kF4E2M1x2, kMx32, kNv16)), HasSubstr("b.scaling is nv16"));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, kNv16, kNv16)),
              HasSubstr("nv16 scales go with f4_e2m1x2 operands, and a is f8_e4m3"));
  EXPECT_THAT(Refusal(MakeDesc(kBF16, kMx32, kMx32)), HasSubstr("FP8, FP6 and FP4"));
  EXPECT_THAT(Refusal(MakeDesc(kF6E2M3, k1x128, k1x128)), HasSubstr("only FP8 operands"));
}

TEST(ScaledGemmTest, RefusesBadScaleTensors) {
  GemmDesc desc = MakeDesc(kF8E4M3, kMx32, kMx32);
  desc.a.scale_inv =
      MakeOperand(kF8E4M3, kMx32, 19, 256, false, CodePattern::kNear, ScalePattern::kUsual, 1)
          .scale_inv;
  EXPECT_THAT(Refusal(desc), HasSubstr("a.scale_inv is f8_e8m0[19x8]: must be f8_e8m0[20x8]"));
  // In layout nt the scales lie as the data do.
  desc = MakeDesc(kF8E4M3, kMx32, kMx32);
  desc.a = MakeOperand(kF8E4M3, kMx32, 20, 256, true, CodePattern::kNear, ScalePattern::kUsual, 1);
  desc.b = MakeOperand(kF8E4M3, kMx32, 24, 256, true, CodePattern::kNear, ScalePattern::kUsual, 1);
  desc.layout = GemmLayout::kNT;
  EXPECT_TRUE(CheckGemm(desc).ok()) << CheckGemm(desc).status();
  desc.b.scale_inv = MakeDesc(kF8E4M3, kMx32, kMx32).b.scale_inv;
  EXPECT_THAT(Refusal(desc), HasSubstr("must be f8_e8m0[8x24]"));
  desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.layout = GemmLayout::kNN;
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("b is f4_e2m1x2"), HasSubstr("packed along k")));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, kMx32, kMx32, "auto", 48)),
              AllOf(HasSubstr("k is 48"), HasSubstr("a multiple of 32")));
  EXPECT_THAT(Refusal(MakeDesc(kF4E2M1x2, kNv16, kNv16, "exact", 40)), HasSubstr("multiple of 16"));
  // fp32 scales of 128 may end within a block.
  EXPECT_TRUE(CheckGemm(MakeDesc(kF8E4M3, k1x128, k128x128, "auto", 129)).ok());
}

TEST(ScaledGemmTest, RefusesBadAmaxes) {
  GemmDesc desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.a.amax = Tensor::Allocate(kF32, {7}).value();
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("a.amax is f32[7]"), HasSubstr("f32[20]")));
  desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.b.e4m3_max = 300;
  EXPECT_THAT(Refusal(desc), HasSubstr("b.e4m3_max is 300: must be 448 or 256"));
  desc = MakeDesc(kF8E4M3, kMx32, kMx32);
  desc.a.amax = Tensor::FromScalar(1).value();
  EXPECT_THAT(Refusal(desc), HasSubstr("only nv16 operands have one"));
}

TEST(ScaledGemmTest, ArchitecturesRefuseWhatTheyLack) {
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, kMx32, kMx32, "sm90")),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("arithmetic is sm90"), HasSubstr("mx32"),
                    HasSubstr("sm100, sm120, exact and fp32")));
  EXPECT_THAT(Refusal(MakeDesc(kBF16, kNone, kNone, "sm75")), HasSubstr("bf16 operands"));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, kNone, kNone, "sm80")), HasSubstr("fp8 operands"));
  EXPECT_THAT(Refusal(MakeDesc(kF16, kNone, kNone, "sm90_mma_fp8")), HasSubstr("fp16 operands"));
  EXPECT_THAT(Refusal(MakeDesc(kBF16, kNone, kNone, "sm80:acc=f16")),
              HasSubstr("no instruction for bf16 operands accumulates in fp16"));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, k1x128, k1x128, "sm90:fast")),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("no fast accumulation")));
  EXPECT_THAT(Refusal(MakeDesc(kF8E4M3, k1x128, k1x128, "sm100")),
              AllOf(HasSubstr("a.scale_inv[0] is "), HasSubstr("powers of two")));
}

/// alpha' of docs/tensor-cores.md section 3.5, each product rounded to fp32.
float Alpha(float alpha, float b_amax, float a_amax, float b_max, float a_max) {
  const float with_b = alpha * b_amax;
  const float with_both = with_b * a_amax;
  const float reciprocal = 1.0f / (36.0f * a_max * b_max);
  return with_both * reciprocal;
}

std::vector<float> AccumulatorsOf(GemmDesc desc) {
  desc.a.amax = desc.b.amax = Tensor();
  desc.alpha = 1;
  desc.beta = 0;
  desc.c = desc.bias = Tensor();
  desc.out_dtype = kF32;
  const GemmResult plain = GemmCpu(desc, {}).value();
  return {plain.d.as<float>(), plain.d.as<float>() + plain.d.element_count()};
}

TEST(Nvfp4EpilogueTest, GlobalScalesJoinAlpha) {
  GemmDesc desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.a.amax = Tensor::FromScalar(3.3f).value();
  desc.b.amax = Tensor::FromScalar(0.0717f).value();
  desc.b.e4m3_max = 256;
  desc.alpha = 1.7f;
  desc.beta = -0.3f;
  desc.c = MakeCodes(kF32, 20, 24, CodePattern::kNear, 5);
  const float alpha = Alpha(1.7f, 0.0717f, 3.3f, 256, 448);
  const std::vector<float> accumulators = AccumulatorsOf(desc);
  const GemmResult result = GemmCpu(desc, {}).value();
  for (size_t i = 0; i < accumulators.size(); ++i) {
    const float addend = -0.3f * desc.c.as<float>()[i];
    ASSERT_EQ(result.d.as<float>()[i], std::fma(accumulators[i], alpha, addend)) << i;
  }
  desc.arithmetic = Arithmetic::Parse("fp32").value();
  EXPECT_TRUE(GemmCpu(desc, {}).ok());
}

TEST(Nvfp4EpilogueTest, RowScalesMultiplyTheFp32Result) {
  GemmDesc desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.a.amax = Tensor::Allocate(kF32, {20}).value();
  for (int row = 0; row < 20; ++row) desc.a.amax.as<float>()[row] = 0.1f + 0.77f * row;
  desc.b.amax = Tensor::FromScalar(0.0717f).value();
  desc.bias = MakeCodes(kBF16, 1, 24, CodePattern::kNear, 5).Reinterpret(kBF16, {24}).value();
  desc.out_dtype = kBF16;
  const float alpha = Alpha(1, 1, 1, 448, 448);
  const std::vector<float> accumulators = AccumulatorsOf(desc);
  const GemmResult result = GemmCpu(desc, {}).value();
  for (size_t i = 0; i < accumulators.size(); ++i) {
    const float unit = accumulators[i] * alpha;
    const float factor = desc.a.amax.as<float>()[i / 24] * 0.0717f;
    const float scaled = unit * factor;
    const float with_bias = scaled + DecodeFloat<BFloat16>(desc.bias.as<uint16_t>()[i % 24]);
    ASSERT_EQ(result.d.as<uint16_t>()[i], EncodeFloat<BFloat16>(with_bias)) << i;
  }
}

TEST(Nvfp4EpilogueTest, RowScalesTakeNothingElse) {
  GemmDesc desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.a.amax = Tensor::Allocate(kF32, {20}).value();
  desc.beta = 1;
  desc.c = MakeCodes(kF32, 20, 24, CodePattern::kNear, 5);
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("row-scaled")));
  desc.beta = 0;
  desc.c = Tensor();
  desc.out_dtype = kF8E4M3;
  EXPECT_THAT(Refusal(desc), HasSubstr("no FP8 output"));
  desc = MakeDesc(kF4E2M1x2, kNv16, kNv16);
  desc.b.amax = Tensor::Allocate(kF32, {24}).value();
  EXPECT_THAT(Refusal(desc), HasSubstr("only a may be row-scaled"));
}

TEST(Fp32Test, MultipliesElementsByTheirScalesFirst) {
  for (const ScaleMode mode : {k1x128, kMx32}) {
    const GemmDesc desc = MakeDesc(kF8E4M3, mode, mode, "fp32", 160);
    const int64_t block = mode == kMx32 ? 32 : 128;
    const GemmResult result = GemmCpu(desc, {}).value();
    const auto value = [&](const GemmOperand& operand, int64_t row, int64_t k) {
      const int64_t at = row * ((160 + block - 1) / block) + k / block;
      const float scale = mode == kMx32
                              ? std::ldexp(1.0f, operand.scale_inv.as<uint8_t>()[at] - 127)
                              : operand.scale_inv.as<float>()[at];
      return DecodeFloat<E4M3>(operand.data.as<uint8_t>()[row * 160 + k]) * scale;
    };
    for (int64_t i = 0; i < 20 * 24; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < 160; ++k) {
        sum = std::fma(value(desc.a, i / 24, k), value(desc.b, i % 24, k), sum);
      }
      ASSERT_EQ(result.d.as<float>()[i], sum) << i;
    }
  }
}

TEST(ScaledGemmTest, HasTheScalarOutputsAfterItsEpilogue) {
  for (const char* arithmetic : {"sm90:split", "sm90:split,splitk=2"}) {
    GemmDesc desc = MakeDesc(kF8E4M3, kNone, kNone, arithmetic, 512);
    desc.a.scaling = desc.b.scaling = kOuter;
    desc.a.scale_inv =
        MakeCodes(kF32, 1, 20, CodePattern::kNear, 1).Reinterpret(kF32, {20}).value();
    desc.b.scale_inv =
        MakeCodes(kF32, 1, 24, CodePattern::kNear, 2).Reinterpret(kF32, {24}).value();
    desc.out_dtype = kBF16;
    desc.beta = 0.7f;
    desc.alpha = -1.1f;
    desc.c = MakeCodes(kBF16, 20, 24, CodePattern::kNear, 5);
    desc.bias = MakeCodes(kF32, 1, 24, CodePattern::kNear, 3).Reinterpret(kF32, {24}).value();
    std::vector<OutputCoordinate> coordinates = {{0, 0}, {19, 23}, {7, 11}, {7, 12}};
    const std::vector<uint32_t> codes = ScalarOutputs(desc, coordinates).value();
    const Tensor d = GemmCpu(desc, {})->d;
    for (size_t i = 0; i < coordinates.size(); ++i) {
      EXPECT_EQ(codes[i], d.as<uint16_t>()[coordinates[i].m * 24 + coordinates[i].n]);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
