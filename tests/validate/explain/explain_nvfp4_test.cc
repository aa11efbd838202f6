// Explaining codes of 4over6 and of Hadamard-transformed tensors, made by numpy
// (tests/vectors/explain_nvfp4.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

const TensorFile& File() {
  static const TensorFile& file = *new TensorFile(
      *ReadSafetensors(QUANTGATE_SOURCE_DIR "/tests/data/explain_nvfp4.safetensors"));
  return file;
}

const Json& Cases() {
  static const Json& cases = *new Json(Json::parse(File().metadata.at("cases")));
  return cases;
}

const Json& CaseNamed(const std::string& name) {
  const auto found = std::find_if(Cases().begin(), Cases().end(),
                                  [&](const Json& made_by) { return made_by["name"] == name; });
  return *found;
}

/// The codes are a copy, to be changed.
ExplainCodesRequest RequestOf(const Json& made_by) {
  const std::string name = made_by.at("name");
  ExplainCodesRequest request;
  request.source = *File().Find(made_by.at("source").get<std::string>());
  const Tensor codes = *File().Find(name + ".codes");
  request.codes = *Tensor::FromBytes(codes.dtype(), codes.shape(), codes.bytes());
  request.scale_inv = *File().Find(name + ".scale_inv");
  const auto amax = File().Find(name + ".amax");
  if (amax.ok()) request.amax = *amax;
  return request;
}

bool IsStochastic(const Json& made_by) { return made_by.at("rounding") == "stochastic"; }

std::string ScaleRuleOf(const std::string& error, int bound) {
  if (error == "none") return "two_level: e4m3(amax * (S * f32(1/6))), S = 448 * 6 / tensor amax";
  return absl::StrCat("two_level, nvfp4_4over6_err_mode=", error,
                      ", nvfp4_4over6_e4m3_max=", bound);
}

/// The candidate of what made the codes; none where it is not listed.
const CodesCandidate* Find(const CodesExplanation& explanation, const Json& made_by,
                           const std::string& error, int bound) {
  const bool has_tiles = made_by.at("block_dim") == 2, transposed = made_by.at("transposed");
  const bool hadamard = made_by.at("use_hadamard");
  const std::string block =
      absl::StrCat(has_tiles ? "16x16 replicated" : "1x16", transposed ? " of the transpose" : "",
                   hadamard ? ", Hadamard-transformed (disable_rht=false)" : "");
  const std::string rounding =
      IsStochastic(made_by) ? "stochastic (either neighbour)" : "nearest_even";
  for (const CodesCandidate& candidate : explanation.candidates) {
    // Rules that are one here are one candidate.
    const std::vector<std::string> rules = absl::StrSplit(candidate.scale_rule, "; also ");
    if (candidate.element == "f4_e2m1" && candidate.block == block &&
        std::find(rules.begin(), rules.end(), ScaleRuleOf(error, bound)) != rules.end() &&
        absl::StartsWith(candidate.element_rule, "x * scale") &&
        absl::EndsWith(candidate.element_rule, absl::StrCat(", ", rounding, ", saturate"))) {
      return &candidate;
    }
  }
  return nullptr;
}

const CodesCandidate* Find(const CodesExplanation& explanation, const Json& made_by) {
  return Find(explanation, made_by, made_by.at("four").get<std::string>(), made_by.at("bound"));
}

std::string Listed(const CodesExplanation& explanation) {
  std::string text;
  for (const CodesCandidate& c : explanation.candidates) {
    absl::StrAppend(&text, c.code_matches, "/", c.code_count, " ", c.scale_matches, "/",
                    c.scale_count, " ", c.block, " | ", c.scale_rule, " | ", c.element_rule, "\n");
  }
  return text;
}

uint8_t Code(const Tensor& codes, int64_t line, int64_t element) {
  const uint8_t pair = codes.as<uint8_t>()[line * codes.columns() + element / 2];
  return element % 2 == 0 ? pair & 0xF : pair >> 4;
}

TEST(ExplainNvfp4, NamesWhatMadeTheCodes) {
  ASSERT_EQ(Cases().size(), 28u);
  for (const Json& made_by : Cases()) {
    SCOPED_TRACE(made_by.dump());
    const auto explanation = ExplainCodes(RequestOf(made_by), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    const CodesCandidate* named = Find(*explanation, made_by);
    ASSERT_NE(named, nullptr) << Listed(*explanation);
    EXPECT_TRUE(named->is_entire()) << Listed(*explanation);
    EXPECT_EQ(named->first_difference, std::nullopt);
    EXPECT_EQ(named->is_deterministic, !IsStochastic(made_by));
    // Nothing else gives all of it, but for other ways to divide and round by the same scales. No
    // block here is small enough to tell two_level from two_level_clamped.
    const std::string scale_rule = made_by.at("four") == "none" ? "two_level" : named->scale_rule;
    for (const CodesCandidate& candidate : explanation->candidates) {
      if (!candidate.is_entire()) continue;
      EXPECT_EQ(candidate.block, named->block);
      EXPECT_TRUE(absl::StartsWith(candidate.scale_rule, scale_rule)) << candidate.scale_rule;
      EXPECT_EQ(candidate.is_deterministic, named->is_deterministic);
    }
  }
}

// The sign of one nonzero code, which no rounding changes, here and there in each of the cases.
TEST(ExplainNvfp4, OneWrongCodeIsOneMatchLess) {
  int64_t seed = 1;
  for (const Json& made_by : Cases()) {
    SCOPED_TRACE(made_by.dump());
    ExplainCodesRequest request = RequestOf(made_by);
    const int64_t length = 2 * request.codes.columns();
    int64_t at = (seed++ * 7919) % (request.codes.rows() * length);
    while ((Code(request.codes, at / length, at % length) & 7) == 0) ++at;
    request.codes.as<uint8_t>()[at / 2] ^= at % 2 == 0 ? 0x08 : 0x80;
    const auto explanation = ExplainCodes(request, {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    const CodesCandidate* named = Find(*explanation, made_by);
    ASSERT_NE(named, nullptr) << Listed(*explanation);
    EXPECT_EQ(named->code_matches, named->code_count - 1);
    EXPECT_EQ(named->scale_matches, named->scale_count);
    ASSERT_TRUE(named->first_difference.has_value());
    const bool transposed = made_by.at("transposed");
    const ElementAt& difference = *named->first_difference;
    EXPECT_EQ(transposed ? difference.column : difference.row, at / length);
    EXPECT_EQ(transposed ? difference.row : difference.column, at % length);
    EXPECT_EQ(difference.given, Code(request.codes, at / length, at % length));
    // Stochastic rounding would also have taken the other neighbour.
    if (!IsStochastic(made_by)) {
      EXPECT_EQ(difference.given ^ 8, difference.expected);
    }
    for (const CodesCandidate& candidate : explanation->candidates) {
      EXPECT_FALSE(candidate.is_entire());
    }
  }
}

// The counts and the first difference of the other error are those of the two sets of codes.
TEST(ExplainNvfp4, TheErrorsOf4Over6AreToldApart) {
  for (const char* layout : {"256_1_rowwise", "256_1_columnwise", "256_2_rowwise", "448_1_rowwise",
                             "448_2_columnwise", "x_37_rows", "x_f16", "x_f32", "part"}) {
    SCOPED_TRACE(layout);
    const Json& made_by = CaseNamed(absl::StrCat("mae_", layout));
    const ExplainCodesRequest mae = RequestOf(made_by);
    const ExplainCodesRequest mse = RequestOf(CaseNamed(absl::StrCat("mse_", layout)));
    const auto explanation = ExplainCodes(mae, {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    const CodesCandidate* other = Find(*explanation, made_by, "mse", made_by.at("bound"));
    ASSERT_NE(other, nullptr) << Listed(*explanation);
    int64_t equal = 0, first = -1;
    const int64_t length = 2 * mae.codes.columns();
    for (int64_t at = 0; at < mae.codes.rows() * length; ++at) {
      const bool is_equal =
          Code(mae.codes, at / length, at % length) == Code(mse.codes, at / length, at % length);
      equal += is_equal;
      if (!is_equal && first < 0) first = at;
    }
    ASSERT_GE(first, 0);
    EXPECT_EQ(other->code_matches, equal);
    ASSERT_TRUE(other->first_difference.has_value());
    const bool transposed = made_by.at("transposed");
    const ElementAt& difference = *other->first_difference;
    EXPECT_EQ(transposed ? difference.column : difference.row, first / length);
    EXPECT_EQ(transposed ? difference.row : difference.column, first % length);
    EXPECT_EQ(difference.given, Code(mae.codes, first / length, first % length));
    EXPECT_EQ(difference.expected, Code(mse.codes, first / length, first % length));
    int64_t equal_scales = 0;
    for (int64_t i = 0; i < mae.scale_inv.element_count(); ++i) {
      equal_scales += mae.scale_inv.as<uint8_t>()[i] == mse.scale_inv.as<uint8_t>()[i];
    }
    EXPECT_EQ(other->scale_matches, equal_scales);
    EXPECT_LT(equal_scales, other->scale_count);
  }
}

// A part of a tensor has not the amax that its scales came from.
TEST(ExplainNvfp4, TheAmaxOfTheWholeTensorMatters) {
  for (const char* name : {"mae_part", "hadamard_part"}) {
    SCOPED_TRACE(name);
    ExplainCodesRequest request = RequestOf(CaseNamed(name));
    ASSERT_TRUE(request.amax.has_value());
    request.amax = Tensor();
    const auto explanation = ExplainCodes(request, {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_FALSE(explanation->candidates.front().is_entire()) << Listed(*explanation);
  }
}

// Only bf16 is transformed (docs/quantizers.md section 6.4), in whole groups of 16.
TEST(ExplainNvfp4, HadamardIsTriedOnlyWhereTheQuantizerHasIt) {
  const auto tried = [](const ExplainCodesRequest& request) {
    const auto explanation = ExplainCodes(request, {});
    EXPECT_TRUE(explanation.ok()) << explanation.status();
    return std::count_if(explanation->candidates.begin(), explanation->candidates.end(),
                         [](const CodesCandidate& candidate) {
                           return absl::StrContains(candidate.block, "Hadamard");
                         });
  };
  ExplainCodesRequest request = RequestOf(CaseNamed("hadamard"));
  EXPECT_GT(tried(request), 0);
  request.source = *File().Find("x_f16.source");
  EXPECT_EQ(tried(request), 0);
  request.source = *File().Find("x_f32.source");
  EXPECT_EQ(tried(request), 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
