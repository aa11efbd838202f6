// Explaining codes: those of other implementations' rules (tests/vectors/other_rules.py), and what
// must be refused.
#include "kernels/validate/explain/explain_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/explain/explain_candidates.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const char* const kFile = QUANTGATE_SOURCE_DIR "/tests/data/explain_codes.safetensors";

/// What the file calls a scale rule, as a candidate names it.
std::string CandidateRule(const std::string& rule) {
  if (rule == "amax at least 1e-4, amax / 448") {
    return "amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)";
  }
  if (rule == "amax * f32(1 / 448), elements divided")
    return "scale_inv = f32(amax * f32(1 / max))";
  return rule;
}

/// A tensor may also be one block, and is then called both.
bool IsBlock(const CodesCandidate& candidate, const std::string& block) {
  const std::vector<std::string> names = absl::StrSplit(candidate.block, " or ");
  return std::find(names.begin(), names.end(), block) != names.end();
}

bool Names(const CodesCandidate& candidate, const nlohmann::json& made_by) {
  const auto text = [&](const char* key) { return made_by.at(key).get<std::string>(); };
  const std::string overflow = text("overflow") == "saturate" ? "saturate" : "overflow to NaN";
  bool has_rule = false;
  for (const absl::string_view rule : absl::StrSplit(candidate.scale_rule, "; also ")) {
    has_rule |= absl::StartsWith(rule, CandidateRule(text("scale_rule")));
  }
  return candidate.element == text("element") && IsBlock(candidate, text("block")) && has_rule &&
         absl::StrContains(candidate.element_rule, text("rounding")) &&
         absl::StrContains(candidate.element_rule, overflow);
}

/// Of the cases of the file; the others are no library's. ocp_floor_e2m1 keeps the signs of zeros,
/// which microxcaling does not.
const std::map<std::string, std::string>& Libraries() {
  static const auto& libraries = *new std::map<std::string, std::string>{
      {"ocp_floor_e4m3", "microxcaling"},       {"torchao_mx_rceil_e4m3", "torchao RCEIL"},
      {"torchao_mx_ceil_e4m3", "torchao CEIL"}, {"torchao_mx_even_e4m3", "torchao EVEN"},
      {"torchao_mx_even_e5m2", "torchao EVEN"}, {"torchao_nvfp4_single_level", "torchao, NVFP4"},
      {"deepgemm_1x128", "DeepGEMM"},           {"deepgemm_1x128_small", "DeepGEMM"},
      {"deepgemm_128x128", "DeepGEMM"},
  };
  return libraries;
}

TEST(ExplainCodes, NamesTheRulesOfOtherImplementations) {
  const TensorFile file = *ReadSafetensors(kFile);
  const auto cases = nlohmann::json::parse(file.metadata.at("cases"));
  ASSERT_EQ(cases.size(), 12u);
  for (const auto& made_by : cases) {
    const std::string name = made_by.at("name");
    ExplainCodesRequest request;
    request.source = *file.Find(made_by.at("source").get<std::string>());
    request.codes = *file.Find(name + ".codes");
    request.scale_inv = *file.Find(name + ".scale_inv");
    const auto explanation = ExplainCodes(request, {});
    ASSERT_TRUE(explanation.ok()) << name << ": " << explanation.status();
    bool is_named = false;
    std::set<std::string> libraries;
    for (const CodesCandidate& candidate : explanation->candidates) {
      if (!candidate.is_entire()) continue;
      EXPECT_EQ(candidate.first_difference, std::nullopt);
      libraries.insert(candidate.libraries.begin(), candidate.libraries.end());
      is_named |= Names(candidate, made_by);
    }
    const auto library = Libraries().find(name);
    if (library == Libraries().end()) {
      EXPECT_TRUE(libraries.empty()) << name << ": " << *libraries.begin();
    } else {
      EXPECT_TRUE(libraries.contains(library->second)) << name;
    }
    const CodesCandidate& best = explanation->candidates.front();
    EXPECT_TRUE(is_named) << name << ": best is " << best.element << " " << best.block << " "
                          << best.scale_rule << " " << best.element_rule << " codes "
                          << best.code_matches << "/" << best.code_count << " scales "
                          << best.scale_matches << "/" << best.scale_count;
    // No candidate of another element format or block shape gives everything.
    for (const CodesCandidate& candidate : explanation->candidates) {
      if (!candidate.is_entire()) continue;
      EXPECT_EQ(candidate.element, made_by.at("element").get<std::string>()) << name;
      EXPECT_TRUE(IsBlock(candidate, made_by.at("block"))) << name << ": " << candidate.block;
      // The libraries that are known saturate.
      if (candidate.evidence.overflow_count > 0 &&
          absl::StrContains(candidate.element_rule, "overflow to NaN")) {
        EXPECT_EQ(candidate.scale_origin, "") << name;
      }
    }
  }
}

// One code off: nothing is entire any more, and the best candidate says where.
TEST(ExplainCodes, OneWrongCodeIsFound) {
  const TensorFile file = *ReadSafetensors(kFile);
  ExplainCodesRequest request;
  request.source = *file.Find("x.source");
  const Tensor codes = *file.Find("torchao_mx_rceil_e4m3.codes");
  request.codes = *Tensor::FromBytes(codes.dtype(), codes.shape(), codes.bytes());
  request.scale_inv = *file.Find("torchao_mx_rceil_e4m3.scale_inv");
  // Far from its neighbours, so that no rounding explains it.
  request.codes.as<uint8_t>()[3 * 256 + 17] ^= 0x44;
  const auto explanation = ExplainCodes(request, {});
  ASSERT_TRUE(explanation.ok());
  const CodesCandidate& best = explanation->candidates.front();
  EXPECT_EQ(best.code_matches, best.code_count - 1);
  EXPECT_EQ(best.scale_matches, best.scale_count);
  ASSERT_TRUE(best.first_difference.has_value());
  EXPECT_EQ(best.first_difference->row, 3);
  EXPECT_EQ(best.first_difference->column, 17);
  EXPECT_EQ(best.first_difference->given ^ 0x44, best.first_difference->expected);
}

/// 2 x 16 values of 2.5, which lies halfway in E2M1 under a scale of 1, as 3 and 2 alternately.
ExplainCodesRequest AlternatingHalves(std::vector<float> values) {
  ExplainCodesRequest request;
  request.source = FromValues(DType::kF32, {2, 16}, values);
  std::vector<std::byte> codes(16, std::byte{0x45});
  codes[0] = codes[8] = std::byte{0x47};
  request.codes = *Tensor::FromBytes(DType::kF4E2M1x2, {2, 8}, codes);
  const std::byte one[2] = {std::byte{0x38}, std::byte{0x38}};
  request.scale_inv = *Tensor::FromBytes(DType::kF8E4M3, {2, 1}, one);
  return request;
}

// Any codes one step off fit stochastic rounding: 30 of them are no evidence.
TEST(ExplainCodes, AFewNeighboursAreNotStochasticRounding) {
  std::vector<float> values(32, 2.5f);
  values[0] = values[16] = 6;
  const auto explanation = ExplainCodes(AlternatingHalves(values), {});
  ASSERT_TRUE(explanation.ok());
  EXPECT_FALSE(explanation->is_established);
  for (const CodesCandidate& candidate : explanation->candidates) {
    EXPECT_TRUE(candidate.is_deterministic);
    EXPECT_LT(candidate.code_matches, 32);
  }
  EXPECT_THAT(explanation->conclusion.back(),
              HasSubstr("30 values lie between two codes, of at least 512 at different fractions "
                        "that its test needs"));
}

// Values beyond the largest code have no upper neighbour: the byte after 6 is -0. Of the others,
// 2.25 goes up once in four times and 2.75 three times.
TEST(ExplainCodes, StochasticRoundingSaturates) {
  constexpr int kRows = 128;
  std::vector<float> values;
  std::vector<std::byte> codes(kRows * 8), scales(kRows, std::byte{0x38});
  int low = 0, high = 0;
  for (int at = 0; at < kRows * 16; ++at) {
    const bool is_first = at % 16 == 0, is_low = at % 2 == 1;
    values.push_back(is_first ? 6.25f : is_low ? 2.25f : 2.75f);  // 6.25 / 6: a scale of 1.
    const bool up = is_low ? ++low % 4 == 0 : !is_first && ++high % 4 != 0;
    const int code = is_first ? 7 : up ? 5 : 4;
    codes[at / 2] |= std::byte(static_cast<uint8_t>(code << (at % 2 * 4)));
  }
  codes[77 * 8] = (codes[77 * 8] & std::byte{0xF0}) | std::byte{0x08};
  ExplainCodesRequest request;
  request.source = FromValues(DType::kF32, {kRows, 16}, values);
  request.codes = *Tensor::FromBytes(DType::kF4E2M1x2, {kRows, 8}, codes);
  request.scale_inv = *Tensor::FromBytes(DType::kF8E4M3, {kRows, 1}, scales);
  const auto explanation = ExplainCodes(request, {});
  ASSERT_TRUE(explanation.ok());
  const CodesCandidate& best = explanation->candidates.front();
  EXPECT_FALSE(best.is_deterministic);
  EXPECT_EQ(best.code_matches, kRows * 16 - 1);
  ASSERT_TRUE(best.first_difference.has_value());
  EXPECT_EQ(best.first_difference->row, 77);
  EXPECT_EQ(best.first_difference->column, 0);
  EXPECT_EQ(best.first_difference->given, 0x8u);
  EXPECT_EQ(best.first_difference->expected, 0x7u);
  // All scales are 1, so that nothing would be established without the wrong code either.
  EXPECT_FALSE(explanation->is_established);
}

// Rows of 64 are one block of 64, 128 or 256 alike, and what only overflow tells apart is one rule.
TEST(ExplainCodes, WhatIsOneRuleIsOneRow) {
  QuantizerSpec spec;
  spec.format = QuantizerFormat::kFp8Block;
  ExplainCodesRequest request;
  request.source = Generated(Distribution::kNormal, 1, DType::kF32, {40, 64});
  const QuantizedTensor quantized = *QuantizeCpu(request.source, spec, {true, false}, {}, {});
  request.codes = quantized.rowwise->data;
  request.scale_inv = quantized.rowwise->scale_inv;
  ASSERT_EQ(request.scale_inv.shape(), (Shape{40, 1}));
  const auto explanation = ExplainCodes(request, {});
  ASSERT_TRUE(explanation.ok());
  EXPECT_TRUE(explanation->is_established);
  std::set<std::string> rows;
  int entire = 0;
  for (const CodesCandidate& c : explanation->candidates) {
    const std::string row =
        absl::StrCat(c.block, " | ", c.scale_rule, " | ", c.element_rule, " | ", c.code_matches);
    EXPECT_TRUE(rows.insert(row).second) << row;
    entire += c.is_entire() ? 1 : 0;
  }
  const CodesCandidate& best = explanation->candidates.front();
  EXPECT_THAT(best.scale_rule, StartsWith("divide: scale = f32(max / amax), scale_inv = f32(1 / "
                                          "scale); also divide or maximum"));
  EXPECT_EQ(best.block, "one per row or 1x64");
  EXPECT_LE(entire, 3);  // x * scale, x * (1 / scale_inv) and x / scale_inv may differ.
}

// Two readings under one description are one row. Where both give everything, it is not known whose
// of their libraries' it is; what one gives that does not give everything is no matter.
TEST(ExplainCodes, OneDescriptionHasTheLibrariesOfAllThatGiveEverything) {
  CodesCandidate one;
  one.element = "f8_e4m3";
  one.block = "1x128";
  one.scale_rule = "divide";
  one.element_rule = "x * scale, nearest_even, saturate";
  one.scale_matches = one.scale_count = 4;
  one.code_matches = one.code_count = 512;
  one.libraries = {"A"};
  CodesCandidate other = one, partial = one;
  other.libraries = {"B"};
  partial.libraries = {"C"};
  partial.code_matches = 511;
  std::vector<CodesCandidate> candidates = {partial, one, other};
  SortBestFirst(candidates);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_TRUE(candidates.front().is_entire());
  EXPECT_EQ(candidates.front().libraries, (std::set<std::string>{"A", "B"}));
}

TEST(ExplainCodes, RefusesWhatDoesNotFit) {
  ExplainCodesRequest request;
  request.source = *Tensor::Allocate(DType::kF32, {4, 64});
  request.codes = *Tensor::Allocate(DType::kF8E4M3, {4, 60});
  request.scale_inv = *Tensor::FromScalar(1);
  const auto message = [&] { return std::string(ExplainCodes(request, {}).status().message()); };
  EXPECT_THAT(message(), HasSubstr("fits no block shape of codes f8_e4m3[4x60]"));
  request.codes = *Tensor::Allocate(DType::kF8E4M3, {4, 64});
  request.scale_inv = *Tensor::Allocate(DType::kF32, {3, 5});
  EXPECT_THAT(message(), HasSubstr("scale_inv is f32[3x5]"));
  request.scale_inv = Tensor();
  EXPECT_THAT(message(), HasSubstr("scale_inv is absent"));
  request.scale_inv = *Tensor::FromScalar(1);
  request.source = *Tensor::Allocate(DType::kI32, {4, 64});
  EXPECT_THAT(message(), HasSubstr("source is i32[4x64]"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
