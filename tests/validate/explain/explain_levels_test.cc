// Explaining codes of levels: every form of every rule in the spellings of libraries, both
// directions, what is not to be claimed of changed tensors, and what is refused. The quantizers are
// held to libraries by level_rules_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/validate/explain/explain_codes.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr int64_t kRows = 64, kColumns = 128;

const Tensor& Source() {
  static const auto& source =
      *new Tensor(Generated(Distribution::kNormal, 5, DType::kBF16, {kRows, kColumns}));
  return source;
}

/// Every rule of every format of levels, by 32 elements of a line.
std::vector<QuantizerSpec> AllSpecs() {
  std::vector<QuantizerSpec> specs;
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (!traits.has_levels()) continue;
    for (const DType element : traits.elements) {
      for (const ScaleRule rule : traits.rules) {
        for (const ZeroPoint zero_point :
             {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
          for (const StepDType operation : {StepDType::kF32, StepDType::kSource}) {
            QuantizerSpec spec = {.format = traits.format, .element = element};
            spec.group = 32;
            spec.scale_rule = rule;
            spec.zero_point = zero_point;
            spec.operation_dtype = operation;
            if (CheckQuantizer(spec).ok()) specs.push_back(spec);
          }
        }
      }
    }
  }
  return specs;
}

ExplainCodesRequest RequestOf(const QuantizerSpec& spec, Usage usage) {
  const bool is_rowwise = usage == Usage::kRowwise;
  const auto quantized = QuantizeCpu(Source(), spec, {is_rowwise, !is_rowwise}, {}, {});
  EXPECT_TRUE(quantized.ok()) << quantized.status();
  const QuantizedCopy& copy = *quantized->copy(usage);
  ExplainCodesRequest request;
  request.source = Source();
  request.codes = copy.data;
  request.scale_inv = copy.scale_inv;
  request.zero_point = copy.zero_point;
  return request;
}

/// Whether a candidate that gives everything is the rule.
bool IsNamed(const CodesExplanation& explanation, const QuantizerSpec& spec,
             const std::string& block) {
  const std::string rule =
      absl::StrCat(std::string(ScaleRuleName(spec.scale_rule)),
                   ", zero_point=", std::string(ZeroPointName(spec.zero_point)));
  const std::string operation =
      absl::StrCat("operation_dtype=", std::string(StepDTypeName(spec.operation_dtype)));
  return std::any_of(explanation.candidates.begin(), explanation.candidates.end(),
                     [&](const CodesCandidate& one) {
                       return one.is_entire() && absl::StartsWith(one.scale_rule, rule) &&
                              one.element_rule == operation && one.block == block &&
                              one.element.starts_with(DTypeName(spec.element));
                     });
}

std::string BlockOf(const QuantizerSpec& spec) {
  return spec.traits().has_runs ? "run of 32 elements" : "32 elements";
}

/// Codes of four bits, one after the other.
std::vector<uint8_t> NibblesOf(const Tensor& codes) {
  std::vector<uint8_t> nibbles;
  for (int64_t i = 0; i < codes.element_count(); ++i) {
    nibbles.push_back(codes.as<uint8_t>()[i] & 15);
    nibbles.push_back(codes.as<uint8_t>()[i] >> 4);
  }
  return nibbles;
}

Tensor Bytes(DType dtype, Shape shape, const std::vector<uint8_t>& bytes) {
  return *Tensor::FromBytes(dtype, std::move(shape), std::as_bytes(std::span(bytes)));
}

TEST(ExplainLevels, NamesEveryRuleInEverySpelling) {
  int explained = 0;
  for (const QuantizerSpec& spec : AllSpecs()) {
    SCOPED_TRACE(QuantizerText(spec));
    const ExplainCodesRequest made = RequestOf(spec, Usage::kRowwise);
    std::vector<std::pair<std::string, Tensor>> spellings = {{"as this build has it", made.codes}};
    if (CodesPerElement(spec.element) == 2) {
      const std::vector<uint8_t> nibbles = NibblesOf(made.codes);
      const bool is_signed = spec.element == DType::kI4x2;
      std::vector<uint8_t> one_a_byte, high_first, halves, plus_8, words;
      for (size_t i = 0; i < nibbles.size(); ++i) {
        one_a_byte.push_back(is_signed ? static_cast<uint8_t>((nibbles[i] ^ 8) - 8) : nibbles[i]);
        plus_8.push_back(nibbles[i] ^ 8);
      }
      for (size_t i = 0; i < nibbles.size(); i += 2) {
        high_first.push_back(static_cast<uint8_t>(nibbles[i] << 4 | nibbles[i + 1]));
        halves.push_back(
            static_cast<uint8_t>(nibbles[i / 2] | nibbles[(nibbles.size() + i) / 2] << 4));
        words.push_back(static_cast<uint8_t>(plus_8[i] | plus_8[i + 1] << 4));
      }
      spellings.push_back({"one to a byte", Bytes(is_signed ? DType::kI8 : DType::kU8,
                                                  {kRows, kColumns}, one_a_byte)});
      spellings.push_back({"high first", Bytes(DType::kU8, {kRows * kColumns / 2, 1}, high_first)});
      spellings.push_back({"halves", Bytes(DType::kU8, {kRows * kColumns / 2}, halves)});
      if (is_signed) {
        spellings.push_back({"plus 8", Bytes(DType::kU8, {kRows, kColumns}, plus_8)});
        spellings.push_back({"words", Bytes(DType::kI32, {kRows, kColumns / 8}, words)});
      }
    }
    for (const auto& [name, codes] : spellings) {
      ExplainCodesRequest request = made;
      request.codes = codes;
      const auto explanation = ExplainCodes(request, {});
      ASSERT_TRUE(explanation.ok()) << name << ": " << explanation.status();
      EXPECT_TRUE(IsNamed(*explanation, spec, BlockOf(spec)))
          << name << ": " << absl::StrJoin(explanation->conclusion, "\n");
      EXPECT_TRUE(explanation->is_established) << name;
      EXPECT_EQ(explanation->cause, "");
      ++explained;
    }
  }
  EXPECT_GE(explained, 100);
}

TEST(ExplainLevels, NamesColumnwiseCopies) {
  for (const QuantizerSpec& spec : AllSpecs()) {
    if (spec.traits().has_runs) continue;
    SCOPED_TRACE(QuantizerText(spec));
    const auto explanation = ExplainCodes(RequestOf(spec, Usage::kColumnwise), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_TRUE(IsNamed(*explanation, spec, "32 elements of a column"))
        << absl::StrJoin(explanation->conclusion, "\n");
  }
}

// Zero points as other dtypes, and eight to an i32 along a line, as pack_to_int32 has them.
TEST(ExplainLevels, ReadsZeroPointsAsLibrariesStoreThem) {
  QuantizerSpec spec = {.format = QuantizerFormat::kInt4, .element = DType::kI4x2};
  spec.group = 16;
  spec.scale_rule = ScaleRule::kTorchao;
  spec.zero_point = ZeroPoint::kInteger;
  const ExplainCodesRequest made = RequestOf(spec, Usage::kRowwise);
  const int64_t count = made.zero_point.element_count();
  ASSERT_EQ(count, kRows * 8);
  const auto* zeros = made.zero_point.as<int8_t>();
  Tensor as_i32 = *Tensor::Allocate(DType::kI32, {kRows, 8});
  Tensor as_f32 = *Tensor::Allocate(DType::kF32, {kRows, 8});
  Tensor packed = *Tensor::Allocate(DType::kI32, {kRows, 1});
  for (int64_t i = 0; i < count; ++i) {
    as_i32.as<int32_t>()[i] = zeros[i];
    as_f32.as<float>()[i] = zeros[i];
    uint32_t& word = packed.as<uint32_t>()[i / 8];
    word = (i % 8 == 0 ? 0 : word) | static_cast<uint32_t>(zeros[i] & 15) << (4 * (i % 8));
  }
  for (const Tensor& zero_point : {made.zero_point, as_i32, as_f32, packed}) {
    ExplainCodesRequest request = made;
    request.zero_point = zero_point;
    const auto explanation = ExplainCodes(request, {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_TRUE(IsNamed(*explanation, spec, "16 elements"))
        << absl::StrJoin(explanation->conclusion, "\n");
  }
}

TEST(ExplainLevels, SaysUnknownOfOneChangedValue) {
  for (const QuantizerSpec& spec : AllSpecs()) {
    SCOPED_TRACE(QuantizerText(spec));
    const ExplainCodesRequest made = RequestOf(spec, Usage::kRowwise);
    const bool has_zeros = made.zero_point.has_value();
    for (const char* what : {"code", "scale", "zero point"}) {
      if (std::string(what) == "zero point" && !has_zeros) continue;
      ExplainCodesRequest request = made;
      Tensor& changed = what == std::string("code")    ? request.codes
                        : what == std::string("scale") ? request.scale_inv
                                                       : request.zero_point;
      const int64_t bytes = static_cast<int64_t>(changed.byte_size()), at = bytes / 2;
      changed = *Tensor::FromBytes(changed.dtype(), changed.shape(), changed.bytes());
      changed.as<uint8_t>()[at + (changed.dtype() == DType::kF32 ? 2 : 0)] ^= 1;
      const auto explanation = ExplainCodes(request, {});
      ASSERT_TRUE(explanation.ok()) << explanation.status();
      EXPECT_FALSE(explanation->is_established) << what;
      EXPECT_EQ(explanation->cause, "unknown") << what;
      const CodesCandidate& best = explanation->candidates.front();
      EXPECT_TRUE(best.scale_origin.empty());
      const std::string text = absl::StrJoin(explanation->conclusion, "\n");
      EXPECT_THAT(text, HasSubstr("Nothing tried gives all codes and scales.")) << what;
      if (what == std::string("code")) {
        ASSERT_TRUE(best.first_difference.has_value());
        const int64_t element = at * CodesPerElement(spec.element);
        EXPECT_EQ(best.first_difference->row * kColumns + best.first_difference->column, element);
        EXPECT_EQ(best.first_difference->given ^ best.first_difference->expected, 1u);
        EXPECT_EQ(best.code_matches, best.code_count - 1);
        EXPECT_EQ(best.scale_matches, best.scale_count);
      } else if (what == std::string("scale")) {
        EXPECT_EQ(best.scale_matches, best.scale_count - 1);
        EXPECT_THAT(text, HasSubstr("the first that differs, of group 128,"));
      } else {
        EXPECT_EQ(best.zero_matches, best.zero_count - 1);
      }
    }
  }
}

// modelopt's and optimum-quanto's int8 are one formula: neither is stated alone.
TEST(ExplainLevels, NamesNoLibraryWhereTwoFit) {
  QuantizerSpec spec = {.format = QuantizerFormat::kInt8, .element = DType::kI8};
  spec.group = kLineGroup;
  spec.scale_rule = ScaleRule::kModelopt;
  const auto explanation = ExplainCodes(RequestOf(spec, Usage::kRowwise), {});
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  for (const ScaleRule rule : {ScaleRule::kModelopt, ScaleRule::kQuanto}) {
    spec.scale_rule = rule;
    EXPECT_TRUE(IsNamed(*explanation, spec, "row"));
  }
  for (const CodesCandidate& one : explanation->candidates) EXPECT_EQ(one.scale_origin, "");
}

TEST(ExplainLevels, RefusesWhatFitsNothing) {
  QuantizerSpec spec = {.format = QuantizerFormat::kInt8, .element = DType::kI8};
  spec.group = kLineGroup;
  spec.scale_rule = ScaleRule::kTorchao;
  spec.zero_point = ZeroPoint::kInteger;
  const ExplainCodesRequest good = RequestOf(spec, Usage::kRowwise);
  const auto refuse = [&](const auto& change, const char* message) {
    ExplainCodesRequest request = good;
    change(request);
    const auto explanation = ExplainCodes(request, {});
    EXPECT_EQ(explanation.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(explanation.status().message()), HasSubstr(message));
  };
  refuse([](auto& r) { r.amax = *Tensor::FromScalar(1.0f); }, "amax");
  refuse([](auto& r) { r.scale_layout = ScaleLayout::kSwizzled; }, "scale_layout");
  refuse([](auto& r) { r.zero_point = *Tensor::Allocate(DType::kI8, {3}); }, "zero_point");
  refuse([](auto& r) { r.zero_point = *Tensor::Allocate(DType::kF8E4M3, {kRows}); }, "zero_point");
  refuse([](auto& r) { r.scale_inv = *Tensor::Allocate(DType::kF32, {7}); }, "scale_inv");
  refuse([](auto& r) { r.scale_inv = *Tensor::Allocate(DType::kF8E8M0, {kRows}); }, "scale_inv");
  refuse([](auto& r) { r.codes = *Tensor::Allocate(DType::kI8, {kRows, 7}); }, "codes");
  refuse(
      [](auto& r) {
        r.codes = *Tensor::Allocate(DType::kF8E4M3, {kRows, kColumns});
      },
      "zero_point");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
