// CheckBound on a GPU: the CPU's counts, and ratios that are the same doubles.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/exact/exact_products.h"
#include "tests/gemm/exact/exact_vectors.h"
#include "tests/gemm/gemm_on_device.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

void ExpectTheCpus(const GemmDesc& desc, const Tensor& subject, const Tensor& exact,
                   const std::string& what) {
  const std::string text = GemmText(desc) + " " + what;
  const absl::StatusOr<BoundCheck> expected = CheckBound(desc, subject, exact, {});
  ASSERT_TRUE(expected.ok()) << text << ": " << expected.status();
  const GemmDesc on_device = OnDevice(desc);
  for (const ExactCudaPath path : {ExactCudaPath::kTensorCores, ExactCudaPath::kPlain}) {
    const auto actual = CheckBoundCudaBy(path, TestDevice(), on_device, OnDevice(subject),
                                         OnDevice(exact), nullptr);
    ASSERT_TRUE(actual.ok()) << text << ": " << actual.status();
    EXPECT_EQ(actual->pass, expected->pass) << text;
    EXPECT_EQ(actual->violation_count, expected->violation_count) << text;
    EXPECT_EQ(std::bit_cast<uint64_t>(actual->worst_ratio),
              std::bit_cast<uint64_t>(expected->worst_ratio))
        << text << ": " << actual->worst_ratio << " instead of " << expected->worst_ratio;
    EXPECT_EQ(actual->bound.factor, expected->bound.factor) << text;
    EXPECT_EQ(actual->bound.absolute, expected->bound.absolute) << text;
    EXPECT_EQ(actual->bound.derivation, expected->bound.derivation) << text;
  }
}

/// The exact value before d_scale, in f32.
Tensor ExactOf(GemmDesc desc) {
  if (desc.c.has_value() && desc.out_dtype != DType::kF32) {
    std::vector<uint32_t> wide;
    for (int64_t i = 0; i < desc.c.element_count(); ++i) {
      wide.push_back(CodeAt(desc.c, i) << 16);  // bf16 only.
    }
    desc.c = TensorOfCodes(DType::kF32, desc.c.shape(), wide);
  }
  desc.out_dtype = DType::kF32;
  desc.d_scale = Tensor();
  desc.in_place = false;
  return ExactGemm(desc, {}).value().d;
}

/// What the model computes, and the same with some codes changed: violations, NaN and infinities.
void ExpectTheCpusOfTheModel(const GemmDesc& desc, const std::string& what) {
  const Tensor exact = ExactOf(desc);
  const Tensor subject = GemmCpu(desc, {}).value().d;
  ExpectTheCpus(desc, subject, exact, what);
  std::vector<uint32_t> codes(subject.element_count());
  for (int64_t i = 0; i < subject.element_count(); ++i) {
    codes[i] = CodeAt(subject, i);
    if (i % 7 == 0) codes[i] ^= 1u << (i % (8 * DTypeBytes(subject.dtype())));
  }
  ExpectTheCpus(desc, TensorOfCodes(subject.dtype(), subject.shape(), codes), exact,
                what + " changed");
}

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
      {"e4m3", {"sm90:fast", "sm90:split,splitk=2", "sm100", "fp32", "exact"}, kF8E4M3, kF8E4M3},
      {"e5m2_e4m3", {"sm90:fast", "sm89"}, kF8E5M2, kF8E4M3},
      {"bf16", {"sm90", "sm90:splitk=3", "sm80", "fp32", "exact"}, kBF16, kBF16},
      {"f16", {"sm90", "sm70", "fp32"}, kF16, kF16},
      {"f32", {"sm90", "fp32", "exact"}, kF32, kF32},
      {"e2m3_e2m1", {"sm100", "fp32"}, kF6E2M3, kF4E2M1x2},
      {"mx_e4m3", {"sm100", "fp32"}, kF8E4M3, kF8E4M3, kMx32, kMx32},
      {"mx_e5m2_e3m2", {"sm100", "fp32"}, kF8E5M2, kF6E3M2, kMx32, kMx32},
      {"nv16", {"sm100", "fp32"}, kF4E2M1x2, kF4E2M1x2, kNv16, kNv16},
      {"vectors", {"sm90", "sm90:splitk=2", "fp32"}, kF8E4M3, kF8E4M3, k1x128, k1x128},
      {"tiles", {"sm90", "fp32"}, kF8E5M2, kF8E4M3, k1x128, k128x128},
      {"powers", {"sm100"}, kF8E4M3, kF8E4M3, k128x128, k1x128},
  };
}

constexpr int64_t kRows = 45, kColumns = 150;

GemmDesc MakeDesc(const Mode& mode, int64_t k, CodePattern codes, ScalePattern scales) {
  GemmDesc desc;
  desc.a = MakeOperand(mode.a, mode.a_scaling, kRows, k, false, codes, scales, 41);
  desc.b = MakeOperand(mode.b, mode.b_scaling, kColumns, k, false, codes, scales, 43);
  return desc;
}

class CheckBoundCudaTest : public testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(All, CheckBoundCudaTest, testing::ValuesIn(Modes()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CheckBoundCudaTest, EveryPatternGivesTheCpusRatios) {
  using enum CodePattern;
  const Mode& mode = GetParam();
  for (const std::string& arithmetic : mode.arithmetics) {
    for (const CodePattern codes : {kFinite, kNear, kWideRows, kSmall, kMaximal, kAll, kLaced}) {
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
          ExpectTheCpusOfTheModel(desc,
                                  PatternName(codes) + " scales " + std::to_string(int(scales)));
          if (HasFailure()) return;
        }
      }
    }
  }
}

Tensor Vector(DType dtype, int64_t count, uint32_t seed) {
  return MakeCodes(dtype, 1, count, CodePattern::kNear, seed).Reinterpret(dtype, {count}).value();
}

TEST(CheckBoundCudaTest, EveryEpilogueGivesTheCpusRatios) {
  const Mode fp8 = Modes()[0], bf16 = Modes()[2];
  GemmDesc desc = MakeDesc(fp8, 64, CodePattern::kNear, ScalePattern::kUsual);
  desc.arithmetic = Arithmetic::Parse("sm90:fast").value();
  desc.alpha = 0.1f;
  desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = Vector(DType::kF32, kRows, 1);
  desc.b.scale_inv = Vector(DType::kF32, kColumns, 2);
  ExpectTheCpusOfTheModel(desc, "outer");
  desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
  desc.a.scale_inv = Tensor::FromScalar(0x1.3p-80f).value();
  desc.b.scale_inv = Tensor::FromScalar(0x1.7p-66f).value();
  ExpectTheCpusOfTheModel(desc, "subnormal coefficient");
  for (const bool in_place : {false, true}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      for (const float beta : {1.0f, -1.7f}) {
        desc = MakeDesc(bf16, 64, CodePattern::kNear, ScalePattern::kUsual);
        desc.out_dtype = out;
        desc.c = MakeCodes(out, kRows, kColumns, CodePattern::kNear, 9);
        desc.beta = beta;
        desc.in_place = in_place;
        desc.bias = Vector(beta == 1 ? DType::kBF16 : DType::kF32, kColumns, 5);
        ExpectTheCpusOfTheModel(desc, "c and bias");
      }
    }
  }
}

TEST(CheckBoundCudaTest, GlobalScalesGiveTheCpusRatios) {
  const Mode nv16 = Modes()[8];
  ASSERT_EQ(nv16.name, "nv16");
  for (const bool row_scaled : {false, true}) {
    for (const float scale : {1.0f, 0x1.234p-70f, 0x1.234p-132f}) {
      GemmDesc desc = MakeDesc(nv16, 480, CodePattern::kFinite, ScalePattern::kUsual);
      desc.arithmetic = Arithmetic::Parse("sm100").value();
      desc.a.amax = row_scaled ? Vector(DType::kF32, kRows, 3) : Tensor::FromScalar(77.7f).value();
      desc.b.amax = Tensor::FromScalar(scale).value();
      desc.b.e4m3_max = 256;
      desc.alpha = -0.3f;
      ExpectTheCpusOfTheModel(desc, row_scaled ? "row-scaled" : "global scales");
    }
  }
}

TEST(CheckBoundCudaTest, ClassesGiveTheCpusRatios) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {kNan,
                                     kInf,
                                     -kInf,
                                     0,
                                     -0.0f,
                                     1,
                                     -1,
                                     0x1.fp127f,
                                     0x1.8p127f,
                                     0x1p-149f,
                                     -3e38f,
                                     0x1.fffffep127f,
                                     -0x1.fffffep127f};
  GemmDesc desc = MakeDesc(Modes()[2], 16, CodePattern::kNear, ScalePattern::kUsual);
  const auto count = static_cast<int64_t>(values.size());
  desc.a.data = MakeCodes(DType::kBF16, count, 16, CodePattern::kNear, 1);
  desc.b.data = MakeCodes(DType::kBF16, count, 16, CodePattern::kNear, 2);
  desc.a.data.as<uint16_t>()[3] = 0x7F80;
  std::vector<uint32_t> subject, exact;
  for (const float found : values) {
    for (const float truth : values) {
      subject.push_back(std::bit_cast<uint32_t>(found));
      exact.push_back(std::bit_cast<uint32_t>(truth));
    }
  }
  // One at a time: ratios of infinity would hide the others.
  ExpectTheCpus(desc, TensorOfCodes(DType::kF32, {count, count}, subject),
                TensorOfCodes(DType::kF32, {count, count}, exact), "classes");
  desc.a.data = MakeCodes(DType::kBF16, 1, 16, CodePattern::kNear, 1);
  desc.b.data = MakeCodes(DType::kBF16, 1, 16, CodePattern::kNear, 2);
  for (size_t i = 0; i < subject.size(); ++i) {
    ExpectTheCpus(desc, TensorOfCodes(DType::kF32, {1, 1}, {subject[i]}),
                  TensorOfCodes(DType::kF32, {1, 1}, {exact[i]}), std::to_string(i));
  }
}

TEST(CheckBoundCudaTest, EmptyAndRefusedAsOnTheCpu) {
  const auto empty = [](DType dtype) { return OnDevice(Tensor::Allocate(dtype, {0, 3}).value()); };
  GemmDesc desc;
  desc.a.data = Tensor::Allocate(DType::kBF16, {0, 16}).value();
  desc.b.data = MakeCodes(DType::kBF16, 3, 16, CodePattern::kNear, 1);
  const auto check = CheckBoundCudaBy(ExactCudaPath::kTensorCores, TestDevice(), OnDevice(desc),
                                      empty(DType::kBF16), empty(DType::kF32), nullptr);
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_TRUE(check->pass);
  EXPECT_EQ(check->worst_ratio, 0);
  const Tensor wrong = OnDevice(TensorOfCodes(DType::kF32, {3, 1}, {0, 0, 0}));
  EXPECT_EQ(CheckBoundCudaBy(ExactCudaPath::kTensorCores, TestDevice(), OnDevice(desc), wrong,
                             wrong, nullptr)
                .status(),
            CheckBound(desc, wrong, wrong, {}).status());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
