// The bounds of other architectures and of block-scaled operands: models stay within them, broken
// ones do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/exact/exact.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

struct Mode {
  std::string name;
  std::vector<std::string> arithmetics;
  DType a, b;
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
};

std::vector<Mode> Modes() {
  using enum DType;
  using enum ScaleMode;
  return {
      {"f16", {"sm70", "sm75", "sm80", "sm86", "sm89", "sm100", "sm120"}, kF16, kF16},
      {"bf16", {"sm80", "sm100"}, kBF16, kBF16},
      {"tf32", {"sm80", "sm89", "sm100"}, kF32, kF32},
      {"e4m3", {"sm89", "sm90_mma_fp8", "sm100"}, kF8E4M3, kF8E4M3},
      {"e5m2", {"sm89", "sm90_mma_fp8", "sm100"}, kF8E5M2, kF8E5M2},
      {"e2m3_e2m1", {"sm100", "fp32"}, kF6E2M3, kF4E2M1x2},
      {"mx_e4m3", {"sm100", "fp32"}, kF8E4M3, kF8E4M3, kMx32, kMx32},
      {"mx_e5m2_e3m2", {"sm100", "fp32"}, kF8E5M2, kF6E3M2, kMx32, kMx32},
      {"nv16", {"sm100", "fp32"}, kF4E2M1x2, kF4E2M1x2, kNv16, kNv16},
      {"vectors", {"sm90", "sm90:splitk=2", "fp32"}, kF8E4M3, kF8E4M3, k1x128, k1x128},
      {"tiles", {"sm90", "sm90:splitk=3", "fp32"}, kF8E5M2, kF8E4M3, k1x128, k128x128},
      {"powers", {"sm100"}, kF8E4M3, kF8E4M3, k128x128, k1x128},
  };
}

GemmDesc MakeDesc(const Mode& mode, int64_t k, CodePattern codes, ScalePattern scales) {
  GemmDesc desc;
  desc.a = MakeOperand(mode.a, mode.a_scaling, 40, k, false, codes, scales, 41);
  desc.b = MakeOperand(mode.b, mode.b_scaling, 48, k, false, codes, scales, 43);
  return desc;
}

/// The exact value before d_scale, in f32.
Tensor ExactOf(GemmDesc desc) {
  desc.out_dtype = DType::kF32;
  desc.d_scale = Tensor();
  return ExactGemm(desc, ExecutionContext()).value().d;
}

BoundCheck CheckModel(const GemmDesc& desc) {
  const GemmResult result = GemmCpu(desc, ExecutionContext()).value();
  return CheckBound(desc, result.d, ExactOf(desc), ExecutionContext()).value();
}

class BoundTest : public testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(All, BoundTest, testing::ValuesIn(Modes()),
                         [](const auto& info) { return info.param.name; });

TEST_P(BoundTest, ModelsStayWithinTheirBounds) {
  using enum CodePattern;
  const Mode& mode = GetParam();
  const bool is_wide = mode.a == DType::kBF16 || mode.a == DType::kF32;
  for (const std::string& arithmetic : mode.arithmetics) {
    for (const CodePattern codes :
         {kFinite, kNear, kWideRows, kSmall, kSparse, kMaximal, kAll, kLaced}) {
      if (is_wide && codes != kNear && codes != kSmall) continue;  // Sums may pass 2^128.
      for (const ScalePattern scales : {ScalePattern::kUsual, ScalePattern::kSmall,
                                        ScalePattern::kLaced, ScalePattern::kPowers}) {
        const bool is_powers = scales == ScalePattern::kPowers;
        if (mode.a_scaling == ScaleMode::kNone && scales != ScalePattern::kUsual) continue;
        if ((mode.name == "powers") != is_powers && mode.a_scaling != ScaleMode::kNone) continue;
        for (const DType out : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
          GemmDesc desc = MakeDesc(mode, 480, codes, scales);
          desc.arithmetic = Arithmetic::Parse(arithmetic).value();
          desc.out_dtype = out;
          if (IsFp8(out)) desc.d_scale = Tensor::FromScalar(0.013f).value();
          const BoundCheck check = CheckModel(desc);
          EXPECT_TRUE(check.pass) << GemmText(desc) << " " << PatternName(codes) << " scales "
                                  << static_cast<int>(scales) << ": " << check.violation_count
                                  << " " << check.worst_ratio << " " << check.bound.derivation;
        }
      }
    }
  }
}

// A kernel that forgets the scales of one block of the first row.
TEST_P(BoundTest, AForgottenScaleLeavesTheBound) {
  const Mode& mode = GetParam();
  if (mode.a_scaling == ScaleMode::kNone) return;
  const ScalePattern scales = mode.name == "powers" ? ScalePattern::kPowers : ScalePattern::kUsual;
  GemmDesc desc = MakeDesc(mode, 512, CodePattern::kNear, scales);
  desc.arithmetic = Arithmetic::Parse(mode.arithmetics[0]).value();
  GemmDesc broken = desc;
  std::vector<std::byte> bytes(desc.a.scale_inv.bytes().begin(), desc.a.scale_inv.bytes().end());
  if (desc.a.scale_inv.dtype() == DType::kF32) {
    const uint32_t doubled = *desc.a.scale_inv.as<uint32_t>() + 0x00800000;
    std::memcpy(bytes.data(), &doubled, sizeof(doubled));
  } else {
    const int binade = desc.a.scale_inv.dtype() == DType::kF8E8M0 ? 1 : 8;
    bytes[0] = static_cast<std::byte>(static_cast<int>(bytes[0]) + binade);
  }
  broken.a.scale_inv =
      Tensor::FromBytes(desc.a.scale_inv.dtype(), desc.a.scale_inv.shape(), bytes).value();
  const Tensor subject = GemmCpu(broken, ExecutionContext()).value().d;
  const BoundCheck check = CheckBound(desc, subject, ExactOf(desc), ExecutionContext()).value();
  EXPECT_FALSE(check.pass) << GemmText(desc) << " " << check.worst_ratio;
}

TEST(BoundForTest, GlobalScalesStayWithinTheirBounds) {
  Mode mode = Modes()[8];
  ASSERT_EQ(mode.name, "nv16");
  std::vector<float> amaxes;
  for (int row = 0; row < 40; ++row) amaxes.push_back(0.37f + 1.1f * static_cast<float>(row));
  for (const bool row_scaled : {false, true}) {
    // The last product of amaxes is subnormal.
    for (const float scale : {1.0f, 0x1.234p-70f, 0x1.234p-132f}) {
      for (const char* arithmetic : {"sm100", "fp32"}) {
        GemmDesc desc = MakeDesc(mode, 480, CodePattern::kFinite, ScalePattern::kUsual);
        desc.arithmetic = Arithmetic::Parse(arithmetic).value();
        desc.out_dtype = DType::kF32;
        const auto* bytes = reinterpret_cast<const std::byte*>(amaxes.data());
        desc.a.amax = row_scaled ? Tensor::FromBytes(DType::kF32, {40}, {bytes, 160}).value()
                                 : Tensor::FromScalar(77.7f).value();
        desc.b.amax = Tensor::FromScalar(scale).value();
        desc.b.e4m3_max = 256;
        desc.alpha = -0.3f;
        desc.bias = MakeCodes(DType::kBF16, 1, 48, CodePattern::kNear, 7)
                        .Reinterpret(DType::kBF16, {48})
                        .value();
        const BoundCheck check = CheckModel(desc);
        EXPECT_TRUE(check.pass) << GemmText(desc) << " " << check.worst_ratio;
      }
    }
  }
}

TEST(BoundForTest, DerivationsNameTheirTerms) {
  const auto derivation = [](const Mode& mode, const std::string& arithmetic) {
    GemmDesc desc = MakeDesc(mode, 512, CodePattern::kNear, ScalePattern::kUsual);
    desc.arithmetic = Arithmetic::Parse(arithmetic).value();
    return BoundFor(desc).value().derivation;
  };
  const std::vector<Mode> modes = Modes();
  EXPECT_EQ(derivation(modes[0], "sm70"), "128 steps x (4 x 2^-23 + 2^-23)");
  EXPECT_EQ(derivation(modes[3], "sm90_mma_fp8"), "2 steps x (16 x 2^-25 + 2^-23) + 15 x 2^-24");
  EXPECT_EQ(derivation(modes[6], "sm100"), "16 steps x (32 x 2^-25 + 2^-23)");
  EXPECT_EQ(derivation(modes[8], "sm100"), "8 steps x (4 x 2^-35 + 2^-23)");
  EXPECT_EQ(derivation(modes[9], "sm90"), "4 steps x (32 x 2^-13 + 2^-13) + (1 + 4) x 2^-24");
  EXPECT_EQ(derivation(modes[9], "fp32"), "512 fp32 roundings of 2^-24 + 2 of the scaled operands");
}

TEST(BoundForTest, Fp16AccumulatorsHaveNone) {
  GemmDesc desc = MakeDesc(Modes()[0], 64, CodePattern::kNear, ScalePattern::kUsual);
  desc.arithmetic = Arithmetic::Parse("sm80:acc=f16").value();
  const absl::Status status = BoundFor(desc).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sm80:acc=f16: no bound"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
