// GemmCuda's accumulators against GemmCpu's, byte for byte: every rule of the registry with every
// pair of operand types, patterns that hurt, odd shapes, layouts, and what cuBLASLt gave on an
// H200.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "kernels/gemm/models/rules.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/gemm/gemm_on_device.h"
#include "tests/gemm/golden_cases.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

struct Mode {
  std::string arithmetic;
  DType a, b;
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
};

/// Pairs of operand types of a class.
std::vector<std::pair<DType, DType>> PairsOf(OperandClass operands) {
  using enum DType;
  switch (operands) {
    case OperandClass::kTf32:
      return {{kF32, kF32}};
    case OperandClass::kBF16:
      return {{kBF16, kBF16}};
    case OperandClass::kF16:
      return {{kF16, kF16}};
    case OperandClass::kNv16:
      return {{kF4E2M1x2, kF4E2M1x2}};
    default:
      break;
  }
  std::vector<std::pair<DType, DType>> pairs;
  for (const DType a : {kF8E4M3, kF8E5M2, kF6E2M3, kF6E3M2, kF4E2M1x2}) {
    for (const DType b : {kF8E4M3, kF8E5M2, kF6E2M3, kF6E3M2, kF4E2M1x2}) {
      const bool both_fp8 = IsFp8(a) && IsFp8(b);
      if (operands == OperandClass::kMx32 || both_fp8 != (operands == OperandClass::kF8F6F4)) {
        pairs.push_back({a, b});
      }
    }
  }
  return pairs;
}

std::vector<std::pair<ScaleMode, ScaleMode>> ScalingsOf(OperandClass operands) {
  using enum ScaleMode;
  switch (operands) {
    case OperandClass::kFp8Block:
      return {{k1x128, k1x128}, {k1x128, k128x128}, {k128x128, k1x128}};
    case OperandClass::kMx32:
      return {{kMx32, kMx32}};
    case OperandClass::kNv16:
      return {{kNv16, kNv16}};
    default:
      return {{kNone, kNone}};
  }
}

/// The parameters that a row of the registry takes.
std::vector<std::string> ParametersOf(const ArchitectureRule& row) {
  if (row.family != ArithmeticFamily::kSm90) {
    return row.f16_accumulator ? std::vector<std::string>{"", ":acc=f16"}
                               : std::vector<std::string>{""};
  }
  switch (row.operands) {
    case OperandClass::kFp8:
      return {":fast", ":split", ":fast,splitk=2", ":split,splitk=3"};
    case OperandClass::kTf32:
      return {""};
    default:
      return {"", ":splitk=2", ":splitk=5"};
  }
}

std::vector<Mode> EveryMode() {
  std::vector<Mode> modes;
  for (const ArchitectureRule& row : AllArchitectureRules()) {
    for (const std::string& parameters : ParametersOf(row)) {
      for (const auto& [a, b] : PairsOf(row.operands)) {
        for (const auto& [a_scaling, b_scaling] : ScalingsOf(row.operands)) {
          modes.push_back({std::string(ArithmeticFamilyName(row.family)) + parameters, a, b,
                           a_scaling, b_scaling});
        }
      }
    }
  }
  return modes;
}

bool IsPacked(DType dtype) { return dtype == DType::kF4E2M1x2; }

int64_t BlockOf(const Mode& mode) {
  if (mode.a_scaling == ScaleMode::kMx32) return 32;
  if (mode.a_scaling == ScaleMode::kNv16) return 16;
  return IsPacked(mode.a) || IsPacked(mode.b) ? 2 : 1;
}

GemmDesc MakeDesc(const Mode& mode, GemmShape shape, GemmLayout layout, CodePattern a,
                  CodePattern b, ScalePattern scales, uint32_t seed) {
  GemmDesc desc;
  desc.layout = layout;
  desc.arithmetic = Arithmetic::Parse(mode.arithmetic).value();
  // Blackwell takes only powers of two of 128.
  const bool has_powers = mode.arithmetic.starts_with("sm1") && mode.a_scaling != ScaleMode::kMx32;
  const ScalePattern pattern =
      has_powers && mode.a_scaling != ScaleMode::kNv16 ? ScalePattern::kPowers : scales;
  const int64_t k = (shape.k + BlockOf(mode) - 1) / BlockOf(mode) * BlockOf(mode);
  desc.a =
      MakeOperand(mode.a, mode.a_scaling, shape.m, k, layout == GemmLayout::kNT, a, pattern, seed);
  desc.b = MakeOperand(mode.b, mode.b_scaling, shape.n, k, layout != GemmLayout::kTN, b, pattern,
                       seed + 1);
  return desc;
}

TEST(GemmCudaTest, EveryRuleOfTheRegistryHasATunedKernel) {
  EXPECT_GT(EveryMode().size(), 150u);
  for (const Mode& mode : EveryMode()) {
    const GemmShape shape{1, 1, 64};
    const GemmDesc desc = MakeDesc(mode, shape, GemmLayout::kTN, CodePattern::kNear,
                                   CodePattern::kNear, ScalePattern::kUsual, 1);
    const FusedRule rule = RuleFor(desc).value();
    EXPECT_TRUE(HasTunedKernel(rule, ScaleUseOf(rule, CudaOperandA(desc, shape))))
        << GemmText(desc);
  }
  FusedRule other;
  other.step = 12;
  EXPECT_FALSE(HasTunedKernel(other, ScaleUse::kNone));
  other.step = 16;
  other.align_bits = 26;
  EXPECT_FALSE(HasTunedKernel(other, ScaleUse::kNone));
}

TEST(GemmCudaTest, PatternsEqualTheCpu) {
  using enum CodePattern;
  uint32_t seed = 100;
  for (const Mode& mode : EveryMode()) {
    for (const auto& [a, b] :
         std::vector<std::pair<CodePattern, CodePattern>>{{kFinite, kFinite},
                                                          {kNear, kNear},
                                                          {kWideRows, kWideRows},
                                                          {kSmall, kFinite},
                                                          {kSparse, kSparse},
                                                          {kMaximal, kMaximal},
                                                          {kMaximal, kNegativeMaximal},
                                                          {kAll, kAll},
                                                          {kLaced, kNear}}) {
      for (const ScalePattern scales : {ScalePattern::kUsual, ScalePattern::kWide,
                                        ScalePattern::kSmall, ScalePattern::kLaced}) {
        if (mode.a_scaling == ScaleMode::kNone && scales != ScalePattern::kUsual) continue;
        ExpectTheCpusBytes(MakeDesc(mode, {9, 70, 323}, GemmLayout::kTN, a, b, scales, seed++),
                           PatternName(a) + " x " + PatternName(b) + " scales " +
                               std::to_string(static_cast<int>(scales)));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GemmCudaTest, OddShapesEqualTheCpu) {
  uint32_t seed = 200;
  for (const Mode& mode : EveryMode()) {
    for (const GemmShape& shape : std::vector<GemmShape>{
             {1, 1, 1}, {2, 3, 8}, {3, 33, 17}, {129, 65, 31}, {5, 1, 129}, {131, 257, 96}}) {
      ExpectTheCpusBytes(MakeDesc(mode, shape, GemmLayout::kTN, CodePattern::kFinite,
                                  CodePattern::kNear, ScalePattern::kUsual, seed++),
                         "odd shape");
      if (HasFailure()) return;
    }
  }
}

TEST(GemmCudaTest, LayoutsEqualTheCpu) {
  uint32_t seed = 300;
  for (const Mode& mode : EveryMode()) {
    const bool is_packed = IsPacked(mode.a) || IsPacked(mode.b);
    if (is_packed && BlockOf(mode) != 32) continue;  // Packed along k, but for mx32.
    const GemmShape shape = is_packed ? GemmShape{38, 134, 160} : GemmShape{37, 133, 160};
    for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT}) {
      ExpectTheCpusBytes(MakeDesc(mode, shape, layout, CodePattern::kFinite, CodePattern::kLaced,
                                  ScalePattern::kLaced, seed++),
                         "layout");
      if (HasFailure()) return;
    }
  }
}

TEST(GemmCudaTest, LongSumsEqualTheCpu) {
  uint32_t seed = 400;
  for (const Mode& mode : EveryMode()) {
    if (mode.arithmetic.ends_with("acc=f16")) continue;  // The CPU's scalar path: minutes.
    ExpectTheCpusBytes(MakeDesc(mode, {70, 90, 4100}, GemmLayout::kTN, CodePattern::kFinite,
                                CodePattern::kFinite, ScalePattern::kUsual, seed++),
                       "long");
    if (HasFailure()) return;
  }
}

TEST(GemmCudaTest, DistributionsEqualTheCpu) {
  const auto generated = [](Distribution distribution, DType dtype, Shape shape, uint64_t seed) {
    return ValueOrAbort(Generate(
        {.distribution = distribution, .seed = seed, .dtype = dtype, .shape = std::move(shape)},
        {}));
  };
  for (const Distribution distribution : AllDistributions()) {
    for (const auto& [arithmetic, dtype] :
         std::vector<std::pair<const char*, DType>>{{"sm90:fast", DType::kF8E4M3},
                                                    {"sm90:split", DType::kF8E5M2},
                                                    {"sm100", DType::kF8E4M3},
                                                    {"sm90", DType::kBF16},
                                                    {"sm90", DType::kF16},
                                                    {"sm90", DType::kF32},
                                                    {"fp32", DType::kF32},
                                                    {"fp32", DType::kBF16}}) {
      GemmDesc desc;
      desc.arithmetic = Arithmetic::Parse(arithmetic).value();
      desc.a.data = generated(distribution, dtype, {300, 700}, 1);
      desc.b.data = generated(distribution, dtype, {260, 700}, 2);
      ExpectTheCpusBytes(desc, std::string(DistributionName(distribution)));
    }
  }
}

TEST(GemmCudaTest, Fp32EqualsTheCpu) {
  using enum DType;
  using enum ScaleMode;
  uint32_t seed = 500;
  for (const Mode& mode : std::vector<Mode>{{"fp32", kF32, kF32},
                                            {"fp32", kBF16, kBF16},
                                            {"fp32", kF16, kF16},
                                            {"fp32", kF8E4M3, kF8E5M2},
                                            {"fp32", kF6E2M3, kF6E3M2},
                                            {"fp32", kF4E2M1x2, kF8E4M3},
                                            {"fp32", kF8E4M3, kF8E4M3, k1x128, k128x128},
                                            {"fp32", kF8E5M2, kF6E2M3, kMx32, kMx32},
                                            {"fp32", kF4E2M1x2, kF4E2M1x2, kNv16, kNv16}}) {
    for (const CodePattern pattern :
         {CodePattern::kFinite, CodePattern::kAll, CodePattern::kSmall, CodePattern::kSparse}) {
      for (const ScalePattern scales : {ScalePattern::kWide, ScalePattern::kLaced}) {
        for (const GemmShape& shape :
             std::vector<GemmShape>{{1, 1, 1}, {37, 133, 161}, {129, 260, 300}}) {
          ExpectTheCpusBytes(
              MakeDesc(mode, shape, GemmLayout::kTN, pattern, CodePattern::kFinite, scales, seed++),
              PatternName(pattern));
          if (IsPacked(mode.a) || IsPacked(mode.b)) continue;
          ExpectTheCpusBytes(
              MakeDesc(mode, shape, GemmLayout::kNT, pattern, CodePattern::kFinite, scales, seed++),
              PatternName(pattern));
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GemmCudaTest, UnderflowToNegativeZeroStaysInFp32) {
  GemmDesc desc;
  desc.arithmetic = Arithmetic::Parse("fp32").value();
  // -2^-100 * 2^-100 rounds to -0 on +0; k is no multiple of anything.
  desc.a.data = Tensor::FromScalar(-0x1p-100f)->Reinterpret(DType::kF32, {1, 1}).value();
  desc.b.data = Tensor::FromScalar(0x1p-100f)->Reinterpret(DType::kF32, {1, 1}).value();
  desc.bias = Tensor::FromScalar(-0.0f).value();
  ExpectTheCpusBytes(desc, "underflow");
}

TEST(GemmCudaTest, ViewsAtAnyOffsetEqualTheCpu) {
  const GemmShape shape{67, 45, 130};
  uint32_t seed = 600;
  for (const Mode& mode : EveryMode()) {
    GemmDesc desc = MakeDesc(mode, shape, GemmLayout::kTN, CodePattern::kNear, CodePattern::kFinite,
                             ScalePattern::kUsual, seed++);
    desc.beta = 1;
    desc.c = MakeCodes(DType::kF32, shape.m, shape.n, CodePattern::kNear, seed);
    const GemmResult expected = ValueOrAbort(GemmCpu(desc, {}));
    const GemmDesc shifted =
        ValueOrAbort(WithTensors(desc, [](const Tensor& tensor) -> absl::StatusOr<Tensor> {
          return OnDeviceShifted(tensor, 1);
        }));
    ExpectSame(expected, GemmCuda(TestDevice(), shifted, nullptr), GemmText(desc) + " shifted");
    if (HasFailure()) return;
  }
}

/// A real layer, quantized in every format: fc1 forward.
TEST(GemmCudaTest, RealOperandsEqualTheCpu) {
  const Tensor x = RealTensor("fc1.x"), weight = RealTensor("fc1.weight");
  for (const QuantizerFormat format :
       {QuantizerFormat::kIdentity, QuantizerFormat::kFp8Tensor, QuantizerFormat::kFp8Block,
        QuantizerFormat::kMxfp8, QuantizerFormat::kNvfp4}) {
    const Quantizer quantizer(QuantizerSpec{
        .format = format,
        .element = format == QuantizerFormat::kNvfp4 ? DType::kF4E2M1x2 : DType::kF8E4M3});
    const auto operand = [&](const Tensor& tensor) {
      const QuantizedTensor quantized =
          ValueOrAbort(QuantizeCpu(tensor, quantizer, {true, false}, {}, {}));
      return OperandOf(*quantized.rowwise);
    };
    GemmDesc desc;
    desc.a = operand(x);
    desc.b = operand(weight);
    desc.bias = RealTensor("fc1.bias");
    desc.out_dtype = DType::kBF16;
    ExpectTheCpusBytes(desc, std::string(QuantizerFormatName(format)));
  }
}

class GoldenGemmCudaTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenGemmCudaTest, EveryOutputEqualsTheHardware) {
  const GoldenFile golden = ReadGolden(GetParam());
  ASSERT_GT(golden.cases.size(), 0u);
  for (const Json& one : golden.cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const absl::StatusOr<GemmResult> result =
        GemmCuda(TestDevice(), OnDevice(DescOf(golden, one)), nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    if (one.contains("d_sha256")) {
      EXPECT_EQ(Sha256Of(OnHost(result->d).bytes()).Hex(), one["d_sha256"].get<std::string>());
      continue;
    }
    EXPECT_TRUE(SameTensor(*golden.tensors.Find(one["d"].get<std::string>()), result->d));
    if (one.contains("amax_bits")) {
      EXPECT_EQ(std::bit_cast<uint32_t>(*OnHost(result->amax).as<float>()),
                one["amax_bits"].get<uint32_t>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenGemmCudaTest,
                         ::testing::Values("bf16", "f16", "tf32", "fp8_e4m3", "fp8_e5m2_e4m3",
                                           "fp8_e4m3_e5m2", "epilogue_high_precision", "fp8_block",
                                           "block_splitk", "epilogue_fp8", "splitk", "large"));

}  // namespace QG_TEST_FILE
}  // namespace quantgate
