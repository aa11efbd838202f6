// Explaining codes of libraries' quantizers, which are none of the rules that any code one step off
// fits (tests/vectors/library_quantizers.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
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
#include "kernels/tensor/tensor_file.h"
#include "kernels/validate/explain_codes.h"
#include "kernels/validate/explain_scale_rules.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

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
      {"compressed_tensors_nvfp4_x_f32", "Transformer Engine, NVFP4; compressed-tensors, NVFP4"},
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
                  ? absl::StrCat("Of the libraries whose rules are tried, only this one's fits: ",
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
    EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"), HasSubstr("level 0.001"));
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

/// Codes by a formula of this file: rows of bf16 values in blocks of `length`, each under the scale
/// of its amax.
struct Formula {
  std::string name;
  DType element;
  int64_t length;
  DType scale;
  /// The stored scale's bits, and what a value becomes under it.
  std::function<uint32_t(float amax)> scale_of;
  std::function<float(float value, float amax)> scaled;
  bool ties_toward_zero = false;
  /// What becomes of the sign of a zero.
  enum { kKept, kPositive, kNegative } zeros = kKept;
};

std::vector<float> MagnitudesOf(DType element) {
  std::vector<float> values;
  if (element == DType::kF8E4M3) {
    for (int code = 0; code <= 0x7E; ++code) values.push_back(DecodeFloat<E4M3>(uint8_t(code)));
  } else if (element == DType::kF8E5M2) {
    for (int code = 0; code <= 0x7B; ++code) values.push_back(DecodeFloat<E5M2>(uint8_t(code)));
  } else {
    values = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  }
  return values;
}

/// To nearest; saturates.
uint8_t MagnitudeCode(const std::vector<float>& values, float magnitude, bool ties_toward_zero) {
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return static_cast<uint8_t>(values.size() - 1);
  const auto upper = static_cast<uint8_t>(above - values.begin());
  if (*above == magnitude) return upper;
  const double below = double(magnitude) - values[upper - 1], left = double(*above) - magnitude;
  const bool up = below > left || (below == left && !ties_toward_zero && upper % 2 == 0);
  return static_cast<uint8_t>(up ? upper : upper - 1);
}

ExplainCodesRequest MadeBy(const Formula& formula, const std::vector<float>& values,
                           int64_t columns) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  const bool is_packed = formula.element == DType::kF4E2M1x2;
  const std::vector<float> magnitudes = MagnitudesOf(formula.element);
  std::vector<std::byte> codes(values.size() / (is_packed ? 2 : 1)), scales;
  for (size_t block = 0; block < values.size(); block += formula.length) {
    float amax = 0;
    for (int64_t i = 0; i < formula.length; ++i) {
      amax = std::max(amax, std::fabs(values[block + i]));
    }
    const uint32_t bits = formula.scale_of(amax);
    const auto* bytes = reinterpret_cast<const std::byte*>(&bits);
    scales.insert(scales.end(), bytes, bytes + DTypeBytes(formula.scale));
    for (int64_t i = 0; i < formula.length; ++i) {
      const size_t at = block + i;
      const float scaled = formula.scaled(values[at], amax);
      uint8_t code = MagnitudeCode(magnitudes, std::fabs(scaled), formula.ties_toward_zero);
      const bool is_negative = scaled == 0 && formula.zeros != Formula::kKept
                                   ? formula.zeros == Formula::kNegative
                                   : std::signbit(scaled);
      if (is_negative) code |= is_packed ? 8 : 0x80;
      if (is_packed) {
        codes[at / 2] |= std::byte(static_cast<uint8_t>(code << (at % 2 * 4)));
      } else {
        codes[at] = std::byte{code};
      }
    }
  }
  ExplainCodesRequest request;
  request.source = FromValues(DType::kF32, {rows, columns}, values);
  request.codes =
      *Tensor::FromBytes(formula.element, {rows, is_packed ? columns / 2 : columns}, codes);
  request.scale_inv = *Tensor::FromBytes(formula.scale, {rows, columns / formula.length}, scales);
  return request;
}

/// Normally distributed, rounded to bf16, so that powers of two leave ties.
std::vector<float> Normals(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(normal(random)));
  }
  return values;
}

float AmaxOf(const std::vector<float>& values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

/// Of the least power of two that is not below amax / max.
Formula RoundUp(DType element, int64_t length, float max) {
  const auto exponent = [max](float amax) {
    int e = 0;
    return std::frexp(amax / max, &e) == 0.5f ? e - 1 : e;
  };
  return {"round_up",
          element,
          length,
          DType::kF8E8M0,
          [=](float amax) { return static_cast<uint32_t>(exponent(amax) + 127); },
          [=](float value, float amax) { return std::ldexp(value, -exponent(amax)); }};
}

/// Transformer Engine's, by docs/quantizers.md section 6.2.
Formula TwoLevel(int64_t length, float tensor_amax) {
  const float encode = 2688.0f / tensor_amax, decode = 1.0f / encode;
  const float sixth = encode * (1.0f / 6.0f);
  const auto code = [=](float amax) {
    return MagnitudeCode(MagnitudesOf(DType::kF8E4M3), amax * sixth, false);
  };
  return {"two_level",
          DType::kF4E2M1x2,
          length,
          DType::kF8E4M3,
          [=](float amax) { return uint32_t{code(amax)}; },
          [=](float value, float amax) {
            return value * (1.0f / (DecodeFloat<E4M3>(code(amax)) * decode));
          }};
}

Formula AmaxOverMax(DType element, int64_t length, float max) {
  return {"amax / max",
          element,
          length,
          DType::kF32,
          [=](float amax) { return std::bit_cast<uint32_t>(amax / max); },
          [=](float value, float amax) { return value / (amax / max); }};
}

/// max / amax down to a power of two.
Formula PowerOfTwo(int64_t length) {
  const auto scale = [](float amax) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(448.0f / amax) & 0xFF800000);
  };
  return {"power of two",
          DType::kF8E4M3,
          length,
          DType::kF32,
          [=](float amax) { return std::bit_cast<uint32_t>(1.0f / scale(amax)); },
          [=](float value, float amax) { return value * scale(amax); }};
}

Formula WithTiesTowardZero(Formula formula) {
  formula.ties_toward_zero = true;
  return formula;
}

/// All libraries that the established candidates are said to be of.
std::string LibrariesSaid(const CodesExplanation& explanation) {
  std::set<std::string> names;
  for (const CodesCandidate& candidate : explanation.candidates) {
    if (candidate.is_established)
      names.insert(candidate.libraries.begin(), candidate.libraries.end());
  }
  return absl::StrJoin(names, " | ");
}

// The rule alone does not make a library's codes: its elements and its blocks must be theirs too.
TEST(ExplainLibraries, ElementsAndBlocksMustBeTheLibrarys) {
  constexpr int64_t kColumns = 1024;
  const std::vector<float> values = Normals(64 * kColumns, 2);
  const float amax = AmaxOf(values);
  const std::vector<std::pair<Formula, std::string>> rows = {
      {WithTiesTowardZero(RoundUp(DType::kF4E2M1x2, 32, 6)), "NVIDIA ModelOpt, MXFP4"},
      {WithTiesTowardZero(RoundUp(DType::kF8E4M3, 32, 448)), ""},
      {WithTiesTowardZero(RoundUp(DType::kF4E2M1x2, 64, 6)), ""},
      {RoundUp(DType::kF8E4M3, 32, 448), "Transformer Engine, cuBLAS, cuDNN; torchao RCEIL"},
      {RoundUp(DType::kF8E5M2, 32, 57344), "Transformer Engine, cuBLAS, cuDNN; torchao RCEIL"},
      {RoundUp(DType::kF4E2M1x2, 32, 6), "torchao RCEIL"},
      {RoundUp(DType::kF8E4M3, 128, 448), ""},
      {RoundUp(DType::kF8E4M3, kColumns, 448), ""},
      {AmaxOverMax(DType::kF8E4M3, 128, 448), "DeepSeek-V3's activation quantizer"},
      {AmaxOverMax(DType::kF8E5M2, 16, 57344), ""},
      {AmaxOverMax(DType::kF8E5M2, 128, 57344), ""},
      {AmaxOverMax(DType::kF8E4M3, 64, 448), ""},
      // bf16 values do not tell the two-level rules apart, but for whose blocks they are.
      {TwoLevel(16, amax),
       "NVIDIA ModelOpt, NVFP4 | Transformer Engine, NVFP4 | "
       "compressed-tensors, NVFP4 | torchao, NVFP4 with a tensor scale"},
      {TwoLevel(32, amax), ""},
      {PowerOfTwo(128), "DeepGEMM, UE8M0 | Transformer Engine, FP8 block scaling"},
      {PowerOfTwo(32), ""},
  };
  for (const auto& [formula, libraries] : rows) {
    SCOPED_TRACE(absl::StrCat(formula.name, " of ", std::string(DTypeName(formula.element)), " 1x",
                              formula.length));
    const auto explanation = ExplainCodes(MadeBy(formula, values, kColumns), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_TRUE(explanation->is_established) << Listed(*explanation);
    EXPECT_EQ(LibrariesSaid(*explanation), libraries) << Listed(*explanation);
    if (libraries.empty()) {
      EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"), Not(HasSubstr("fits")));
    }
  }
}

// Nor is a library's what has other signs of zeros.
TEST(ExplainLibraries, SignsOfZerosMustBeTheLibrarys) {
  constexpr int64_t kColumns = 1024;
  std::vector<float> values = Normals(64 * kColumns, 2);
  for (size_t i = 0; i < values.size(); i += 7) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  struct Row {
    Formula formula;
    std::string kept, positive, negative;
  };
  const std::vector<Row> rows = {
      {WithTiesTowardZero(RoundUp(DType::kF4E2M1x2, 32, 6)), "", "", "NVIDIA ModelOpt, MXFP4"},
      {RoundUp(DType::kF4E2M1x2, 32, 6), "torchao RCEIL", "", ""},
      {RoundUp(DType::kF8E4M3, 32, 448), "Transformer Engine, cuBLAS, cuDNN; torchao RCEIL", "",
       ""},
      {TwoLevel(16, AmaxOf(values)),
       "Transformer Engine, NVFP4 | torchao, NVFP4 with a tensor scale",
       "NVIDIA ModelOpt, NVFP4 | compressed-tensors, NVFP4", ""},
  };
  for (const Row& row : rows) {
    for (const auto& [zeros, library] : {std::pair(Formula::kKept, row.kept),
                                         {Formula::kPositive, row.positive},
                                         {Formula::kNegative, row.negative}}) {
      Formula formula = row.formula;
      formula.zeros = zeros;
      SCOPED_TRACE(absl::StrCat(formula.name, ", zeros ", int{zeros}));
      const auto explanation = ExplainCodes(MadeBy(formula, values, kColumns), {});
      ASSERT_TRUE(explanation.ok()) << explanation.status();
      EXPECT_TRUE(explanation->is_established) << Listed(*explanation);
      EXPECT_EQ(LibrariesSaid(*explanation), library) << Listed(*explanation);
    }
  }
}

// Amaxes below a floor all have the floor's scale: many of them are as one.
TEST(ExplainLibraries, AmaxesThatABoundDecidesAreNoEvidence) {
  constexpr int64_t kColumns = 128;
  constexpr float kFloor = 1e-4f;
  const auto at_least = [](float amax) { return amax < kFloor ? kFloor : amax; };
  const Formula floored = {
      "amax at least 1e-4",
      DType::kF8E4M3,
      kColumns,
      DType::kF32,
      [&](float amax) { return std::bit_cast<uint32_t>(at_least(amax) / 448.0f); },
      [&](float value, float amax) { return value * (448.0f / at_least(amax)); }};
  // E8M0's code 0, of an exponent that would be -150.
  const Formula e8m0 = {
      "floor",
      DType::kF8E4M3,
      32,
      DType::kF8E8M0,
      [](float amax) { return static_cast<uint32_t>(std::max(std::ilogb(amax) - 8, -127) + 127); },
      [](float value, float amax) {
        return std::ldexp(value, -std::max(std::ilogb(amax) - 8, -127));
      }};
  // E4M3's smallest normal.
  const auto unit = [](float amax) {
    return MagnitudeCode(MagnitudesOf(DType::kF8E4M3), std::max(amax / 6.0f, 0x1p-6f), false);
  };
  const Formula e4m3 = {
      "single_level",
      DType::kF4E2M1x2,
      16,
      DType::kF8E4M3,
      [&](float amax) { return uint32_t{unit(amax)}; },
      [&](float value, float amax) { return value / DecodeFloat<E4M3>(unit(amax)); }};
  struct Row {
    const Formula& formula;
    float small;  // Of the values whose scale is at the bound.
  };
  for (const auto& [formula, small] :
       {Row{floored, 2e-5f}, Row{e8m0, 0x1p-123f}, Row{e4m3, 0x1p-7f}}) {
    SCOPED_TRACE(formula.name);
    for (const bool has_many : {false, true}) {
      std::vector<float> values = Normals(64 * kColumns, 5);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = std::clamp(values[i], -4.0f, 4.0f);
        const bool is_small = static_cast<int64_t>(i) >= (has_many ? 40 : 2) * kColumns;
        if (is_small) values[i] *= small;
      }
      const auto explanation = ExplainCodes(MadeBy(formula, values, kColumns), {});
      ASSERT_TRUE(explanation.ok()) << explanation.status();
      EXPECT_TRUE(explanation->candidates.front().is_entire()) << Listed(*explanation);
      EXPECT_EQ(explanation->is_established, has_many) << Listed(*explanation);
      EXPECT_THAT(absl::StrJoin(explanation->conclusion, "\n"),
                  HasSubstr("whose scale lies at a bound of the rule)"));
      if (!has_many) {
        EXPECT_THAT(explanation->conclusion.back(),
                    HasSubstr("distinct amaxes whose scale lies at no bound stand behind"));
      }
    }
  }
}

/// The stored scale; 0 where its type has fewer bits for it, so that it need not be exact.
double NormalScale(DType scale, uint32_t bits) {
  if (scale == DType::kF8E8M0) return std::ldexp(1.0, static_cast<int>(bits) - 127);
  if (scale == DType::kF8E4M3) return bits < 8 ? 0 : DecodeFloat<E4M3>(static_cast<uint8_t>(bits));
  const float value = std::bit_cast<float>(bits);
  return std::isnormal(value) && std::isnormal(1 / value) ? value : 0;
}

// Twice the amax has twice the scale, but for what a bound decides: every rule says where that is.
TEST(ExplainLibraries, RulesSayWhereABoundDecides) {
  int64_t bound_count = 0;
  for (const NamedScaleRule& rule : AllScaleRules()) {
    SCOPED_TRACE(std::string(rule.name));
    int64_t held = 0;
    for (const DType element :
         {DType::kF8E4M3, DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2, DType::kF4E2M1x2}) {
      if (!rule.fits(element)) continue;
      for (int exponent = -149; exponent < 127; ++exponent) {
        for (const float mantissa : {1.0f, 1.09375f, 1.375f, 1.515625f, 1.75f, 1.9921875f}) {
          const float amax = std::ldexp(mantissa, exponent);
          if (!std::isnormal(amax)) continue;
          const ScaleRuleInput once = {amax, 2688, element, DType::kF32};
          const ScaleRuleInput twice = {2 * amax, 2688, element, DType::kF32};
          const ScaleRuleResult a = rule.apply(once), b = rule.apply(twice);
          bound_count += a.is_at_bound;
          if (a.is_at_bound || b.is_at_bound) continue;
          const double scale = NormalScale(rule.scale, a.scale_inv_bits);
          if (scale == 0 || NormalScale(rule.scale, b.scale_inv_bits) == 0) continue;
          ++held;
          // A quotient on the way may be subnormal, of at least 14 bits.
          ASSERT_NEAR(NormalScale(rule.scale, b.scale_inv_bits), 2 * scale, scale * 0x1p-13)
              << std::string(DTypeName(element)) << " " << amax;
        }
      }
      for (const float special : {0.0f, INFINITY}) {
        EXPECT_TRUE(rule.apply({special, 2688, element, DType::kF32}).is_at_bound) << special;
      }
    }
    EXPECT_GT(held, 50);
  }
  EXPECT_GT(bound_count, 1000);
}

}  // namespace
}  // namespace quantgate
