// What explaining codes must not claim: a library of another format's or blocks' codes, or of other
// zeros; a scale rule from amaxes that a bound of it decides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/numerics/cast.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_scale_rules.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Concluded(const CodesExplanation& explanation) {
  return absl::StrJoin(explanation.conclusion, "\n");
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
TEST(ExplainEvidence, ElementsAndBlocksMustBeTheLibrarys) {
  constexpr int64_t kColumns = 1024;
  const std::vector<float> values = Normals(64 * kColumns, 2);
  const float amax = AmaxOf(values);
  const std::vector<std::pair<Formula, std::string>> rows = {
      {WithTiesTowardZero(RoundUp(DType::kF4E2M1x2, 32, 6)), "NVIDIA ModelOpt, MXFP4"},
      {WithTiesTowardZero(RoundUp(DType::kF8E4M3, 32, 448)), ""},
      {WithTiesTowardZero(RoundUp(DType::kF4E2M1x2, 64, 6)), ""},
      // Of bf16 values in binary32 most rules of FP8 are one.
      {RoundUp(DType::kF8E4M3, 32, 448),
       "DeepGEMM, UE8M0 | NVIDIA ModelOpt, MXFP8 | Transformer Engine, cuBLAS, cuDNN | "
       "Transformers, fine-grained FP8, UE8M0 | torchao RCEIL"},
      {RoundUp(DType::kF8E5M2, 32, 57344), "Transformer Engine, cuBLAS, cuDNN | torchao RCEIL"},
      {RoundUp(DType::kF4E2M1x2, 32, 6), "torchao RCEIL"},
      {RoundUp(DType::kF8E4M3, 128, 448),
       "DeepGEMM, UE8M0 | Transformers, fine-grained FP8, UE8M0"},
      {RoundUp(DType::kF8E4M3, kColumns, 448), "Transformers, fine-grained FP8, UE8M0"},
      {AmaxOverMax(DType::kF8E4M3, 128, 448),
       "DeepSeek-V3's activation quantizer | NVIDIA ModelOpt, FP8 | compressed-tensors, FP8 | "
       "compressed-tensors, FP8 with dynamic scales | torchao, Float8Tensor"},
      {AmaxOverMax(DType::kF8E5M2, 16, 57344), "torchao, Float8Tensor"},
      {AmaxOverMax(DType::kF8E5M2, 128, 57344), "torchao, Float8Tensor"},
      {AmaxOverMax(DType::kF8E4M3, 64, 448),
       "NVIDIA ModelOpt, FP8 | compressed-tensors, FP8 | compressed-tensors, FP8 with dynamic "
       "scales | torchao, Float8Tensor"},
      // bf16 values do not tell the two-level rules apart, but for whose blocks they are.
      {TwoLevel(16, amax),
       "NVIDIA ModelOpt, NVFP4 | Transformer Engine, NVFP4 | "
       "compressed-tensors, NVFP4 | torchao, NVFP4 with a tensor scale | vLLM, NVFP4"},
      {TwoLevel(32, amax), ""},
      {PowerOfTwo(128), "DeepGEMM, UE8M0 | Transformer Engine, FP8 block scaling"},
      // The libraries whose MX scales are fp32 numbers.
      {PowerOfTwo(32), "DeepGEMM, UE8M0 | qwix, MX"},
  };
  for (const auto& [formula, libraries] : rows) {
    SCOPED_TRACE(absl::StrCat(formula.name, " of ", std::string(DTypeName(formula.element)), " 1x",
                              formula.length));
    const auto explanation = ExplainCodes(MadeBy(formula, values, kColumns), {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_TRUE(explanation->is_established) << Concluded(*explanation);
    EXPECT_EQ(LibrariesSaid(*explanation), libraries) << Concluded(*explanation);
    if (libraries.empty()) {
      EXPECT_THAT(Concluded(*explanation), Not(HasSubstr("fits")));
    }
  }
}

// What this build writes as Transformer Engine does: the copies of both directions are its.
TEST(ExplainEvidence, BothDirectionsAreTheLibrarys) {
  const std::string mxfp8 = "Transformer Engine, MXFP8", nvfp4 = "Transformer Engine, NVFP4";
  const std::string any_mxfp8 = "Transformer Engine, cuBLAS, cuDNN";
  const std::string block = "Transformer Engine, FP8 block scaling";
  struct Row {
    QuantizerSpec spec;
    std::string rowwise, columnwise;
  };
  const auto of = [](QuantizerFormat format, DType element, int block_dim) {
    QuantizerSpec spec;
    spec.format = format;
    spec.element = element;
    spec.block_dim = block_dim;
    spec.power_2_scale = format == QuantizerFormat::kFp8Block;
    return spec;
  };
  std::vector<Row> rows = {
      {of(QuantizerFormat::kMxfp8, DType::kF8E4M3, 1), any_mxfp8, mxfp8},
      {of(QuantizerFormat::kMxfp8, DType::kF8E5M2, 2), mxfp8, mxfp8},
      {of(QuantizerFormat::kMxfp8, DType::kF4E2M1x2, 1), "torchao RCEIL", ""},
      {of(QuantizerFormat::kFp8Block, DType::kF8E5M2, 1), block, block},
      {of(QuantizerFormat::kFp8Block, DType::kF8E4M3, 2), block, block},
      {of(QuantizerFormat::kNvfp4, DType::kF4E2M1x2, 1), nvfp4, nvfp4},
      {of(QuantizerFormat::kNvfp4, DType::kF4E2M1x2, 2), nvfp4, nvfp4},
      {of(QuantizerFormat::kNvfp4, DType::kF4E2M1x2, 1), nvfp4, nvfp4},
  };
  rows.back().spec.hadamard = true;
  const Tensor source = Generated(Distribution::kNormal, 1, DType::kBF16, {128, 256});
  for (const Row& row : rows) {
    Quantizer quantizer(row.spec);
    quantizer.rowwise.hadamard = false;
    const QuantizedTensor quantized = *QuantizeCpu(source, quantizer, {true, true}, {}, {});
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      SCOPED_TRACE(absl::StrCat(BlockLength(row.spec.format), " ", row.spec.block_dim, " ",
                                std::string(UsageName(usage))));
      const QuantizedCopy& copy = *quantized.copy(usage);
      ExplainCodesRequest request;
      request.source = source;
      request.codes = copy.data;
      request.scale_inv = copy.scale_inv;
      request.amax = copy.amax;
      const auto explanation = ExplainCodes(request, {});
      ASSERT_TRUE(explanation.ok()) << explanation.status();
      ASSERT_EQ(explanation->candidates.front().scale_matches,
                explanation->candidates.front().scale_count);
      std::set<std::string> names;
      for (const CodesCandidate& candidate : explanation->candidates) {
        if (candidate.is_entire()) {
          names.insert(candidate.libraries.begin(), candidate.libraries.end());
        }
      }
      const std::string& library = usage == Usage::kRowwise ? row.rowwise : row.columnwise;
      EXPECT_EQ(names.count(library), library.empty() ? 0u : 1u);
      EXPECT_EQ(names.empty(), library.empty()) << absl::StrJoin(names, " | ");
    }
  }
}

// Nor is a library's what has other signs of zeros.
TEST(ExplainEvidence, SignsOfZerosMustBeTheLibrarys) {
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
      {RoundUp(DType::kF8E4M3, 32, 448),
       "DeepGEMM, UE8M0 | NVIDIA ModelOpt, MXFP8 | Transformer Engine, cuBLAS, cuDNN | "
       "Transformers, fine-grained FP8, UE8M0 | torchao RCEIL",
       "", ""},
      {TwoLevel(16, AmaxOf(values)),
       "Transformer Engine, NVFP4 | torchao, NVFP4 with a tensor scale",
       "NVIDIA ModelOpt, NVFP4 | compressed-tensors, NVFP4 | vLLM, NVFP4", ""},
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
      EXPECT_TRUE(explanation->is_established) << Concluded(*explanation);
      EXPECT_EQ(LibrariesSaid(*explanation), library) << Concluded(*explanation);
    }
  }
}

// Amaxes below a floor all have the floor's scale: many of them are as one.
TEST(ExplainEvidence, AmaxesThatABoundDecidesAreNoEvidence) {
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
      EXPECT_TRUE(explanation->candidates.front().is_entire()) << Concluded(*explanation);
      EXPECT_EQ(explanation->is_established, has_many) << Concluded(*explanation);
      EXPECT_THAT(Concluded(*explanation), HasSubstr("whose scale lies at a bound of the rule)"));
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

// Twice the amax has twice the scale, or half where it is kept as a factor, but for what a bound
// decides: every rule says where that is.
TEST(ExplainEvidence, RulesSayWhereABoundDecides) {
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
          // Of a power of two (1.75 * 2^k / 448) the rounded quotient of logarithms may lie on
          // either side of the whole number, and its ceil is one or the other.
          if (rule.name.starts_with("qwix, power of two") && mantissa == 1.75f) continue;
          const ScaleRuleInput once = {amax, 2688, element, DType::kF32};
          const ScaleRuleInput twice = {2 * amax, 2688, element, DType::kF32};
          const ScaleRuleResult a = rule.apply(once), b = rule.apply(twice);
          bound_count += a.is_at_bound;
          if (a.is_at_bound || b.is_at_bound) continue;
          const double scale = NormalScale(rule.scale, a.scale_inv_bits);
          if (scale == 0 || NormalScale(rule.scale, b.scale_inv_bits) == 0) continue;
          ++held;
          // A quotient on the way may be subnormal, of at least 14 bits.
          const double factor = rule.keeps_scale ? 0.5 : 2;
          ASSERT_LE(std::fabs(NormalScale(rule.scale, b.scale_inv_bits) - factor * scale),
                    scale * 0x1p-13)
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

}  // namespace QG_TEST_FILE
}  // namespace quantgate
