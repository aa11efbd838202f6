// Explaining GEMMs: results of an H200 (tests/data/golden_gemm_*.safetensors) and of the other
// models, and rules that no named arithmetic has.
#include "kernels/validate/explain/explain_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/gemm/models/scalar_dot.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/gemm/golden_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// Names of all arithmetics that reproduce everything.
std::vector<std::string> EntireNames(const GemmExplanation& explanation) {
  std::vector<std::string> names;
  for (const GemmCandidate& candidate : explanation.candidates) {
    if (!candidate.is_entire()) continue;
    for (const auto& name : absl::StrSplit(candidate.arithmetic, ", "))
      names.push_back(std::string(name));
  }
  return names;
}

GemmExplanation Explained(const GemmDesc& desc, const Tensor& d) {
  auto explanation = ExplainGemm({desc, d}, {});
  EXPECT_TRUE(explanation.ok()) << explanation.status();
  return explanation.ok() ? *std::move(explanation) : GemmExplanation();
}

/// The name that a golden case must have.
std::string NameOf(const GemmDesc& desc) {
  std::string name = "sm90";
  if (IsFp8(desc.a.data.dtype()))
    absl::StrAppend(&name, desc.use_split_accumulator ? ":split" : ":fast");
  if (desc.arithmetic.split_k > 1) {
    absl::StrAppend(&name, IsFp8(desc.a.data.dtype()) ? "," : ":",
                    "splitk=", desc.arithmetic.split_k);
  }
  return name;
}

TEST(ExplainGemm, NamesTheHardwareOfEveryFamily) {
  int explained = 0;
  for (const char* file : {"bf16", "f16", "tf32", "fp8_e4m3", "fp8_e5m2_e4m3", "epilogue_fp8",
                           "epilogue_high_precision", "splitk"}) {
    const GoldenFile golden = ReadGolden(file);
    int of_file = 0;
    for (const auto& one : golden.cases) {
      // Enough products that rules differ, few enough for a test; stored whole, not as digests.
      const GemmDesc desc = DescOf(golden, one);
      const int64_t k = desc.a.data.shape()[desc.layout == GemmLayout::kNT ? 0 : 1];
      if (k < 128 || k > 1200 || !one["d"].is_string() || of_file >= 4) continue;
      if (!IsHighPrecision(desc.out_dtype)) continue;
      SCOPED_TRACE(one["name"].get<std::string>());
      const Tensor d = *golden.tensors.Find(one["d"].get<std::string>());
      if (d.shape().size() != 2) continue;
      const GemmExplanation explanation = Explained(desc, d);
      EXPECT_THAT(EntireNames(explanation), Contains(NameOf(desc)));
      ++of_file;
      ++explained;
    }
  }
  EXPECT_GE(explained, 20);
}

Tensor Generated(DType dtype, uint64_t seed, Shape shape) {
  GeneratorSpec spec{Distribution::kNormal, seed, dtype, std::move(shape), 4.0f};
  return *Generate(spec, {});
}

GemmDesc DescOfType(DType dtype) {
  GemmDesc desc;
  desc.a.data = Generated(dtype, 1, {48, 512});
  desc.b.data = Generated(dtype, 2, {40, 512});
  return desc;
}

// Each model's own output is told from every other model's.
TEST(ExplainGemm, TellsModelsApart) {
  for (const auto& [dtype, names] : std::vector<std::pair<DType, std::vector<std::string>>>{
           {DType::kF16, {"sm70", "sm75", "sm90"}},
           {DType::kBF16, {"sm80", "sm90"}},
           {DType::kF8E4M3, {"sm89", "sm90:fast", "sm90:split", "sm90_mma_fp8", "sm100"}}}) {
    for (const std::string& name : names) {
      SCOPED_TRACE(name);
      GemmDesc desc = DescOfType(dtype);
      desc.arithmetic = *Arithmetic::Parse(name);
      const auto result = GemmCpu(desc, {});
      ASSERT_TRUE(result.ok()) << result.status();
      const GemmExplanation explanation = Explained(desc, result->d);
      EXPECT_TRUE(explanation.is_established);
      const std::vector<std::string> entire = EntireNames(explanation);
      EXPECT_THAT(entire, Contains(HasSubstr(name)));
      for (const std::string& other : names) {
        if (other != name) {
          EXPECT_THAT(entire, Not(Contains(other)));
        }
      }
      // What the others would have given, and where.
      for (const GemmCandidate& candidate : explanation.candidates) {
        EXPECT_EQ(candidate.first_difference.has_value(), !candidate.is_entire());
      }
    }
  }
}

// A rule of no GPU: L=64, F=17, promoted every 256.
TEST(ExplainGemm, FindsRulesWithoutAName) {
  GemmDesc desc = DescOfType(DType::kF8E4M3);
  desc.arithmetic = *Arithmetic::Parse("sm90:fast");
  FusedRule rule;
  rule.step = 64;
  rule.align_bits = 17;
  rule.out_mantissa = 23;
  rule.promotion = Promotion::kAdd;
  rule.promote_k = 256;
  Tensor d = *Tensor::Allocate(DType::kF32, {48, 40});
  const GemmShape shape = *CheckGemm(desc);
  const OperandView a = *ViewOfA(desc, shape), b = *ViewOfB(desc, shape);
  for (int64_t m = 0; m < 48; ++m) {
    for (int64_t n = 0; n < 40; ++n) d.as<float>()[m * 40 + n] = ScalarDot(a, b, rule, m, n);
  }
  const GemmExplanation explanation = Explained(desc, d);
  for (const std::string& name : EntireNames(explanation)) EXPECT_EQ(name, "");
  // Rules that are the same on this k, such as two slices of 256, are entire too.
  const auto found = std::find_if(
      explanation.candidates.begin(), explanation.candidates.end(), [](const auto& candidate) {
        return candidate.rule == "L=64 F=17 out=23, promoted every 256 of k";
      });
  ASSERT_NE(found, explanation.candidates.end());
  EXPECT_TRUE(found->is_entire());
}

TEST(ExplainGemm, OneWrongOutputIsFound) {
  GemmDesc desc = DescOfType(DType::kBF16);
  desc.arithmetic = *Arithmetic::Parse("sm90");
  desc.out_dtype = DType::kBF16;
  Tensor d = GemmCpu(desc, {})->d;
  d.as<uint16_t>()[7 * 40 + 31] ^= 0x4000;
  const GemmExplanation explanation = Explained(desc, d);
  for (const GemmCandidate& candidate : explanation.candidates) {
    EXPECT_FALSE(candidate.is_entire()) << candidate.rule;
  }
  const auto sm90 = std::find_if(explanation.candidates.begin(), explanation.candidates.end(),
                                 [](const GemmCandidate& candidate) {
                                   return absl::StartsWith(candidate.arithmetic, "sm90") &&
                                          !absl::StrContains(candidate.arithmetic, "splitk");
                                 });
  ASSERT_NE(sm90, explanation.candidates.end());
  EXPECT_EQ(sm90->match_count, d.element_count() - 1);
  EXPECT_EQ(sm90->first_difference->row, 7);
  EXPECT_EQ(sm90->first_difference->column, 31);
}

// Zeros, NaN and small integers are the same under every arithmetic.
TEST(ExplainGemm, WhatTellsNothingApartEstablishesNoRule) {
  for (const float value : {0.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f}) {
    SCOPED_TRACE(value);
    GemmDesc desc;
    desc.a.data = *Tensor::Allocate(DType::kBF16, {32, 64});
    desc.b.data = *Tensor::Allocate(DType::kBF16, {32, 64});
    const auto code = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    std::fill_n(desc.a.data.as<uint16_t>(), 32 * 64, code);
    std::fill_n(desc.b.data.as<uint16_t>(), 32 * 64, uint16_t{0x3F80});
    Tensor d = *Tensor::Allocate(DType::kF32, {32, 32});
    std::fill_n(d.as<float>(), 32 * 32, value * 64);
    const GemmExplanation explanation = Explained(desc, d);
    EXPECT_FALSE(EntireNames(explanation).empty());
    EXPECT_FALSE(explanation.is_established);
  }
}

TEST(ExplainGemm, RefusesWhatIsNoResult) {
  GemmDesc desc = DescOfType(DType::kBF16);
  const auto message = [&](const Tensor& d) {
    return std::string(ExplainGemm({desc, d}, {}).status().message());
  };
  EXPECT_THAT(message(Tensor()), HasSubstr("d is absent"));
  EXPECT_THAT(message(*Tensor::Allocate(DType::kF32, {40, 48})),
              HasSubstr("d is f32[40x48]: the GEMM's output is 48x40"));
  EXPECT_THAT(message(*Tensor::Allocate(DType::kI32, {48, 40})), HasSubstr("d is i32[48x40]"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
