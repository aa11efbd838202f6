// Explaining codes of libraries' quantizers, which are none of the rules that any code one step off
// fits (tests/vectors/library_quantizers.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/numerics/cast.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/explain/explain_codes.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const TensorFile& File() {
  static const TensorFile& file = *new TensorFile(
      *ReadSafetensors(QUANTGATE_SOURCE_DIR "/tests/data/explain_libraries.safetensors"));
  return file;
}

const Json& Cases() {
  static const Json& cases = *new Json(Json::parse(File().metadata.at("cases")));
  return cases;
}

ExplainCodesRequest RequestOf(const Json& made_by) {
  const std::string name = made_by.at("name");
  ExplainCodesRequest request;
  request.source = *File().Find(made_by.at("source").get<std::string>());
  request.codes = *File().Find(name + ".codes");
  request.scale_inv = *File().Find(name + ".scale_inv");
  if (const auto amax = File().Find(name + ".amax"); amax.ok()) request.amax = *amax;
  return request;
}

std::string Listed(const CodesExplanation& explanation) {
  std::string text = absl::StrJoin(explanation.conclusion, "\n") + "\n";
  for (const CodesCandidate& c : explanation.candidates) {
    absl::StrAppend(&text, c.code_matches, "/", c.code_count, " ", c.scale_matches, "/",
                    c.scale_count, " ", c.element, " ", c.block, " | ", c.scale_rule, " | ",
                    c.element_rule, " | ", c.scale_origin, "\n");
  }
  return text;
}

/// Cases whose bytes another library's rule gives as well, with those libraries.
const std::map<std::string, std::string>& NotToldApart() {
  static const auto& cases = *new std::map<std::string, std::string>{
      {"torchao_nvfp4_divided", "NVIDIA ModelOpt, NVFP4; torchao, NVFP4 with a tensor scale"},
      {"modelopt_nvfp4", "NVIDIA ModelOpt, NVFP4; torchao, NVFP4 with a tensor scale"},
      {"compressed_tensors_nvfp4_x_f32",
       "Transformer Engine, NVFP4; compressed-tensors, NVFP4; vLLM, NVFP4"},
  };
  return cases;
}

bool HasName(const CodesCandidate& candidate, const std::string& rule) {
  for (const absl::string_view name : absl::StrSplit(candidate.scale_rule, "; also ")) {
    if (absl::StartsWith(name, rule)) return true;
  }
  return false;
}

TEST(ExplainLibraries, NamesTheRuleAndTheLibrary) {
  ASSERT_EQ(Cases().size(), 14u);
  for (const Json& made_by : Cases()) {
    if (made_by.at("of") == "") continue;
    SCOPED_TRACE(made_by.dump());
    const auto explanation = ExplainCodes(RequestOf(made_by), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_TRUE(explanation->is_established) << Listed(*explanation);
    const auto rivals = NotToldApart().find(made_by.at("name"));
    const bool is_told = rivals == NotToldApart().end();
    const std::string library = is_told ? made_by.at("of").get<std::string>() : "";
    bool is_named = false;
    for (const CodesCandidate& candidate : explanation->candidates) {
      if (!candidate.is_entire()) continue;
      EXPECT_TRUE(candidate.is_deterministic) << candidate.element_rule;
      EXPECT_EQ(candidate.block, made_by.at("block"));
      EXPECT_THAT(candidate.element_rule, Not(HasSubstr("nearest_away")));
      const std::string zeros = made_by.at("zeros");
      if (zeros == "") {
        EXPECT_THAT(candidate.element_rule, Not(HasSubstr("zeros")));
      } else {
        EXPECT_TRUE(absl::EndsWith(candidate.element_rule, zeros)) << candidate.element_rule;
        EXPECT_GT(candidate.evidence.zero_telling_count, 1000);
      }
      // Names of the rules that are one here come before the rounding.
      const std::vector<std::string> elements =
          absl::StrSplit(made_by.at("elements").get<std::string>(), absl::MaxSplits(", ", 1));
      is_named |= HasName(candidate, made_by.at("scale_rule")) &&
                  absl::StrContains(candidate.element_rule, elements[0]) &&
                  absl::StrContains(candidate.element_rule, elements[1]) &&
                  candidate.scale_origin == library;
      // No other library is named beside it.
      EXPECT_TRUE(candidate.scale_origin.empty() || candidate.scale_origin == library)
          << candidate.scale_origin;
    }
    EXPECT_TRUE(is_named) << Listed(*explanation);
    EXPECT_EQ(explanation->conclusion.back(),
              is_told
                  ? absl::StrCat("Of the libraries whose rules are tried, none fits but that of ",
                                 library, ".")
                  : absl::StrCat("Whose rule it is cannot be told: it fits ", rivals->second, "."));
  }
}

// 448 * (1 / amax) is no library's; a single scale that other rules give too names none.
TEST(ExplainLibraries, ASingleScaleNamesNoLibrary) {
  for (const Json& made_by : Cases()) {
    if (made_by.at("of") != "") continue;
    SCOPED_TRACE(made_by.dump());
    const auto explanation = ExplainCodes(RequestOf(made_by), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_FALSE(explanation->is_established);
    EXPECT_TRUE(explanation->candidates.front().is_entire()) << Listed(*explanation);
    for (const CodesCandidate& candidate : explanation->candidates) {
      EXPECT_EQ(candidate.scale_origin, "");
      EXPECT_EQ(candidate.evidence.scale_distinct, 1);
    }
    EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"),
                HasSubstr("a single scale is no evidence for a scale rule"));
  }
}

/// NVFP4 codes under block scales alone (single_level), rounded by `round`, which is told the
/// fraction between two codes and the lower code.
ExplainCodesRequest RoundedBy(int64_t rows, uint64_t seed,
                              const std::function<bool(double fraction, int lower)>& round) {
  constexpr int64_t kColumns = 64;
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<float> values(rows * kColumns);
  std::vector<std::byte> codes(values.size() / 2), scales(values.size() / 16);
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t block = 0; block < scales.size(); ++block) {
    // Amaxes that single_level turns into scales of their own.
    const uint8_t scale = static_cast<uint8_t>(0x20 + random() % 64);
    const float unit = DecodeFloat<E4M3>(scale);
    scales[block] = std::byte{scale};
    for (int i = 0; i < 16; ++i) {
      const size_t at = block * 16 + i;
      int magnitude = 7;
      float scaled = 6;
      if (i != 0) {
        scaled = static_cast<float>(uniform() * 6);
        int lower = 0;
        while (lower < 6 && kMagnitudes[lower + 1] <= scaled) ++lower;
        const double fraction = (static_cast<double>(scaled) - kMagnitudes[lower]) /
                                (kMagnitudes[lower + 1] - kMagnitudes[lower]);
        magnitude = fraction == 0 ? lower : lower + round(fraction, lower);
      }
      values[at] = scaled * unit;
      codes[at / 2] |= std::byte(static_cast<uint8_t>(magnitude << (at % 2 * 4)));
    }
  }
  ExplainCodesRequest request;
  request.source = FromValues(DType::kF32, {rows, kColumns}, values);
  request.codes = *Tensor::FromBytes(DType::kF4E2M1x2, {rows, kColumns / 2}, codes);
  request.scale_inv = *Tensor::FromBytes(DType::kF8E4M3, {rows, kColumns / 16}, scales);
  return request;
}

/// E4M3 codes of rows of 32 under round_up of the finite values; `special` stands in the first row.
ExplainCodesRequest RoundUpWith(float special) {
  constexpr int64_t kRows = 256, kColumns = 32;
  std::mt19937_64 random(9);
  std::vector<float> values(kRows * kColumns);
  std::vector<std::byte> codes(values.size()), scales(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    float amax = 0;
    for (int64_t i = 0; i < kColumns; ++i) {
      const double uniform = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
      float& value = values[row * kColumns + i];
      value = static_cast<float>(std::ldexp(uniform, static_cast<int>(row % 9)));
      if (row == 0 && i == 3) value = special;
      if (std::isfinite(value)) amax = std::max(amax, std::fabs(value));
    }
    // The least power of two that is not below amax / 448.
    int exponent = 0;
    if (std::frexp(amax / 448.0, &exponent) == 0.5) --exponent;
    scales[row] = static_cast<std::byte>(exponent + 127);
    for (int64_t i = 0; i < kColumns; ++i) {
      const int64_t at = row * kColumns + i;
      codes[at] = static_cast<std::byte>(EncodeFloat<E4M3>(
          std::ldexp(values[at], -exponent), ElementRounding::kNearestEven, Overflow::kSaturate));
    }
  }
  ExplainCodesRequest request;
  request.source = FromValues(DType::kF32, {kRows, kColumns}, values);
  request.codes = *Tensor::FromBytes(DType::kF8E4M3, {kRows, kColumns}, codes);
  request.scale_inv = *Tensor::FromBytes(DType::kF8E8M0, {kRows, 1}, scales);
  return request;
}

// torchao gives the scale 0xFF to a block with a NaN (docs/quantizers.md section 5).
TEST(ExplainLibraries, ABlockWithNanTellsTorchaoFromRoundUp) {
  for (const bool has_nan : {false, true}) {
    const auto explanation = ExplainCodes(RoundUpWith(has_nan ? NAN : 0.5f), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    ASSERT_TRUE(explanation->is_established) << Listed(*explanation);
    const std::set<std::string>& libraries = explanation->candidates.front().libraries;
    EXPECT_TRUE(libraries.contains("Transformer Engine, cuBLAS, cuDNN")) << Listed(*explanation);
    EXPECT_EQ(libraries.contains("torchao RCEIL"), !has_nan) << Listed(*explanation);
  }
}

TEST(ExplainLibraries, StochasticRoundingIsOfferedWhereItsChancesHold) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed + 1000);
    const auto explanation =
        ExplainCodes(RoundedBy(64, seed,
                               [&](double fraction, int) {
                                 return static_cast<double>(random() >> 11) * 0x1p-53 < fraction;
                               }),
                     {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    const CodesCandidate& best = explanation->candidates.front();
    ASSERT_TRUE(explanation->is_established) << Listed(*explanation);
    EXPECT_FALSE(best.is_deterministic);
    EXPECT_TRUE(best.is_established);
    ASSERT_TRUE(best.evidence.spread.has_value());
    EXPECT_GT(best.evidence.spread->count, 3000);
    EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"),
                AllOf(HasSubstr("level 0.001"),
                      HasSubstr("Whether neighbours are rounded independently was not judged")));
  }
}

TEST(ExplainLibraries, ImpostorsOfStochasticRoundingAreNot) {
  const std::vector<std::function<bool(double, int)>> impostors = {
      // One code in a hundred on the other side.
      [count = 0](double fraction, int) mutable {
        return (fraction > 0.5) != (++count % 100 == 0);
      },
      // Ties a little above the middle.
      [](double fraction, int) { return fraction > 0.53; },
      // Alternating, whatever the value.
      [count = 0](double, int) mutable { return ++count % 2 == 0; },
  };
  for (const auto& impostor : impostors) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto explanation = ExplainCodes(RoundedBy(64, seed, impostor), {});
      ASSERT_TRUE(explanation.ok()) << explanation.status();
      EXPECT_FALSE(explanation->is_established) << Listed(*explanation);
      for (const CodesCandidate& candidate : explanation->candidates) {
        EXPECT_TRUE(candidate.is_deterministic);
        EXPECT_FALSE(candidate.is_entire());
      }
      EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"),
                  AllOf(HasSubstr("Nothing tried gives all codes and scales"),
                        HasSubstr("scales: all 256 match"), HasSubstr("of a tie"),
                        HasSubstr("not spread as stochastic rounding spreads them")));
    }
  }
}

// Directed rules are told from nearest by every value.
TEST(ExplainLibraries, DirectedRoundingIsNamed) {
  for (const bool up : {false, true}) {
    const auto explanation = ExplainCodes(RoundedBy(64, 7, [&](double, int) { return up; }), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_TRUE(explanation->is_established) << Listed(*explanation);
    EXPECT_THAT(explanation->candidates.front().element_rule,
                HasSubstr(up ? "away_from_zero" : "toward_zero"));
    EXPECT_GT(explanation->candidates.front().evidence.telling_count, 1000);
  }
}

/// Sources whose scaled values are exact ties in `ties` places: NVFP4 under scales of 1.
ExplainCodesRequest WithTies(int ties, bool to_odd) {
  ExplainCodesRequest request =
      RoundedBy(64, 11, [](double fraction, int) { return fraction > 0.5; });
  float* values = request.source.as<float>();
  uint8_t* codes = request.codes.as<uint8_t>();
  for (int i = 0; i < ties; ++i) {
    const int64_t at = i * 32 + 1;
    const float unit = DecodeFloat<E4M3>(request.scale_inv.as<uint8_t>()[at / 16]);
    values[at] = 2.5f * unit;  // Between codes 4 and 5.
    codes[at / 2] = static_cast<uint8_t>((codes[at / 2] & 0x0F) | (to_odd ? 5 : 4) << 4);
  }
  return request;
}

TEST(ExplainLibraries, AnUnusualTieRuleNeedsTies) {
  const auto even = ExplainCodes(WithTies(100, false), {});
  ASSERT_TRUE(even.ok());
  EXPECT_TRUE(even->is_established) << Listed(*even);
  EXPECT_THAT(even->candidates.front().element_rule, HasSubstr("nearest_even"));
  EXPECT_EQ(even->candidates.front().evidence.tie_count, 100);

  const auto few = ExplainCodes(WithTies(9, true), {});
  ASSERT_TRUE(few.ok());
  EXPECT_FALSE(few->is_established) << Listed(*few);
  EXPECT_TRUE(few->candidates.front().is_entire());
  EXPECT_THAT(absl::StrJoin(few->conclusion, "\n"),
              HasSubstr("values tell the rounding from nearest_even, of at least 10"));

  const auto enough = ExplainCodes(WithTies(10, true), {});
  ASSERT_TRUE(enough.ok());
  EXPECT_TRUE(enough->is_established) << Listed(*enough);
  // Away, to odd and up all take 3 of 2.5: all are listed.
  std::string rules;
  for (const CodesCandidate& candidate : enough->candidates) {
    if (candidate.is_entire()) absl::StrAppend(&rules, candidate.element_rule, "\n");
  }
  EXPECT_THAT(rules, AllOf(HasSubstr("nearest_away"), HasSubstr("nearest_odd"),
                           HasSubstr("nearest_up"), Not(HasSubstr("nearest_even"))));
  EXPECT_THAT(enough->conclusion.front(), HasSubstr("does not tell them apart"));
}

// 3.5 is 4 under nearest_even, away and up alike.
TEST(ExplainLibraries, TiesThatTellNothingAreSaid) {
  ExplainCodesRequest request = WithTies(100, false);
  float* values = request.source.as<float>();
  uint8_t* codes = request.codes.as<uint8_t>();
  for (int i = 0; i < 100; ++i) {
    const int64_t at = i * 32 + 1;
    values[at] = 3.5f * DecodeFloat<E4M3>(request.scale_inv.as<uint8_t>()[at / 16]);
    codes[at / 2] = static_cast<uint8_t>((codes[at / 2] & 0x0F) | 6 << 4);
  }
  const auto explanation = ExplainCodes(request, {});
  ASSERT_TRUE(explanation.ok());
  // Of 3.5 times a scale, not every way to divide by that scale makes 3.5.
  EXPECT_GT(explanation->candidates.front().evidence.tie_count, 0);
  EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"),
              HasSubstr("No tie tells nearest_even from nearest_away, nearest_up."));
}

// Without ties their rule cannot be told, which the conclusion says.
TEST(ExplainLibraries, NoTiesTellNothing) {
  const auto explanation =
      ExplainCodes(RoundedBy(64, 3, [](double fraction, int) { return fraction > 0.5; }), {});
  ASSERT_TRUE(explanation.ok());
  EXPECT_TRUE(explanation->is_established) << Listed(*explanation);
  EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"),
              HasSubstr("Without ties their rule cannot be told"));
}

// 2 x 16 elements are a pattern of anything.
TEST(ExplainLibraries, AFewBlocksEstablishNothing) {
  const auto explanation =
      ExplainCodes(RoundedBy(2, 3, [](double fraction, int) { return fraction > 0.5; }), {});
  ASSERT_TRUE(explanation.ok());
  EXPECT_TRUE(explanation->candidates.front().is_entire());
  EXPECT_FALSE(explanation->is_established) << Listed(*explanation);
  EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"), HasSubstr("of at least 32"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
