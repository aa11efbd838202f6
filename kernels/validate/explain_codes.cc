#include "kernels/validate/explain_codes.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/explain_nvfp4.h"
#include "kernels/validate/explain_scale_rules.h"

namespace quantgate {
namespace {

constexpr int64_t kSampleElements = 8192;

/// How a candidate turns scaled values into codes.
enum class Rounding { kNearestEven, kNearestAway, kTowardZero, kEitherNeighbour };
constexpr std::pair<Rounding, const char*> kRoundings[] = {
    {Rounding::kNearestEven, "nearest_even"},
    {Rounding::kNearestAway, "nearest_away"},
    {Rounding::kTowardZero, "toward_zero"},
    {Rounding::kEitherNeighbour, "stochastic (either neighbour)"},
};

/// One element format by functions.
struct ElementFormat {
  DType dtype;  ///< As stored: kF4E2M1x2 for packed FP4.
  const char* name;
  uint8_t (*encode)(float value, ElementRounding rounding, Overflow overflow);
  float (*decode)(uint8_t code);
  uint8_t nan;  ///< Canonical NaN; 0 where the format has none.
};

template <class F>
constexpr ElementFormat MakeFormat(DType dtype, const char* name) {
  return {dtype, name,
          [](float value, ElementRounding rounding, Overflow overflow) -> uint8_t {
            return EncodeFloat<F>(value, rounding, overflow);
          },
          [](uint8_t code) { return DecodeFloat<F>(code); },
          F::kSpecials == Specials::kNone ? uint8_t(0) : F::kCanonicalNan};
}

constexpr ElementFormat kElementFormats[] = {
    MakeFormat<E4M3>(DType::kF8E4M3, "f8_e4m3"),   MakeFormat<E5M2>(DType::kF8E5M2, "f8_e5m2"),
    MakeFormat<E2M3>(DType::kF6E2M3, "f6_e2m3"),   MakeFormat<E3M2>(DType::kF6E3M2, "f6_e3m2"),
    MakeFormat<E2M1>(DType::kF4E2M1x2, "f4_e2m1"),
};

/// The source, codes and scales as matrices in the orientation in which the codes are stored.
struct Stored {
  int64_t rows = 0, columns = 0;
  bool transposed = false;
  bool hadamard = false;      ///< Every 16 values of a row are transformed.
  std::vector<float> values;  ///< The source.
  float global_amax = 0;      ///< As given, or of the values.
  std::vector<uint8_t> codes;
  int64_t scale_rows = 0, scale_columns = 0;
};

/// Blocks that share a scale, and the tile whose amax it comes from (larger where one scale is
/// stored for each row of a tile).
struct Blocks {
  int64_t rows, columns;
  int64_t amax_rows, amax_columns;
};

/// A scale rule on one geometry: what it would store, and what elements are multiplied by.
struct ScaledBlocks {
  std::string rule, origin;  ///< As candidates have them.
  Blocks blocks;
  std::vector<ScaleRuleResult> results;  ///< Per stored scale.
  int64_t matches = 0;
};

std::string BlockText(const Stored& stored, const Blocks& blocks) {
  std::string text;
  if (blocks.rows >= stored.rows && blocks.columns >= stored.columns) {
    text = "tensor";
  } else if (blocks.rows == 1 && blocks.columns >= stored.columns) {
    text = "one per row";
  } else if (blocks.columns == 1 && blocks.rows >= stored.rows) {
    text = "one per column";
  } else {
    text = absl::StrCat(blocks.amax_rows, "x", blocks.amax_columns);
    if (blocks.amax_rows != blocks.rows) absl::StrAppend(&text, " replicated");
  }
  if (stored.transposed) absl::StrAppend(&text, " of the transpose");
  if (stored.hadamard) absl::StrAppend(&text, ", Hadamard-transformed (disable_rht=false)");
  return text;
}

bool IsScaleDType(DType given, DType rule) {
  return given == rule || (given == DType::kU8 && rule != DType::kF32);
}

bool IsElementDType(DType given, DType element) { return given == element || given == DType::kU8; }

uint32_t ScaleBits(const Tensor& scale_inv, int64_t index) {
  return scale_inv.dtype() == DType::kF32 ? scale_inv.as<uint32_t>()[index]
                                          : scale_inv.as<uint8_t>()[index];
}

std::vector<Blocks> BlocksThatFit(const Stored& stored) {
  std::vector<Blocks> fitting;
  const auto ceil_of = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto add = [&](int64_t rows, int64_t columns, int64_t amax_rows, int64_t amax_columns) {
    if (ceil_of(stored.rows, rows) != stored.scale_rows ||
        ceil_of(stored.columns, columns) != stored.scale_columns) {
      return;
    }
    for (const Blocks& known : fitting) {
      if (known.rows == rows && known.columns == columns && known.amax_rows == amax_rows) return;
    }
    fitting.push_back({rows, columns, amax_rows, amax_columns});
  };
  add(stored.rows, stored.columns, stored.rows, stored.columns);
  add(1, stored.columns, 1, stored.columns);
  add(stored.rows, 1, stored.rows, 1);
  for (const int64_t length : {16, 32, 64, 128, 256}) {
    add(1, length, 1, length);
    add(1, length, length, length);
    add(length, 1, length, 1);
    add(length, 1, length, length);
    add(length, length, length, length);
  }
  return fitting;
}

/// The codes a candidate expects, one at a time.
struct ElementRule {
  enum class Scaling { kMultiply, kReciprocal, kDivide };
  Scaling scaling;
  Rounding rounding;
  Overflow overflow;

  float Scaled(float x, const ScaleRuleResult& result) const {
    switch (scaling) {
      case Scaling::kMultiply:
        return x * result.multiplier;
      case Scaling::kReciprocal:
        return x * (1.0f / result.divisor);
      case Scaling::kDivide:
        break;
    }
    return x / result.divisor;
  }
};

std::string ElementRuleText(const ElementRule& rule) {
  const char* scaled = rule.scaling == ElementRule::Scaling::kMultiply     ? "x * scale"
                       : rule.scaling == ElementRule::Scaling::kReciprocal ? "x * (1 / scale_inv)"
                                                                           : "x / scale_inv";
  for (const auto& [rounding, name] : kRoundings) {
    if (rounding == rule.rounding) {
      return absl::StrCat(scaled, ", ", name, ", ",
                          rule.overflow == Overflow::kSaturate ? "saturate" : "overflow to NaN");
    }
  }
  return scaled;
}

/// The code next below `value` in magnitude, or the code of `value` itself.
uint8_t TruncatedCode(const ElementFormat& format, float value, Overflow overflow) {
  const uint8_t nearest = format.encode(value, ElementRounding::kNearestEven, overflow);
  const float decoded = format.decode(nearest);
  const bool is_above = std::fabs(decoded) > std::fabs(value);
  return is_above ? static_cast<uint8_t>(nearest - 1) : nearest;
}

/// Whether `given` is what the rule makes of the scaled value; `expected` is what it would be.
bool Matches(const ElementFormat& format, const ElementRule& rule, float scaled, uint8_t given,
             uint8_t* expected) {
  const auto same = [&](uint8_t code) {
    if (code == given) return true;
    if (format.nan == 0) return false;
    return std::isnan(format.decode(code)) && std::isnan(format.decode(given));
  };
  switch (rule.rounding) {
    case Rounding::kNearestEven:
      *expected = format.encode(scaled, ElementRounding::kNearestEven, rule.overflow);
      return same(*expected);
    case Rounding::kNearestAway:
      *expected = format.encode(scaled, ElementRounding::kNearestAway, rule.overflow);
      return same(*expected);
    case Rounding::kTowardZero:
      *expected = TruncatedCode(format, scaled, rule.overflow);
      return same(*expected);
    case Rounding::kEitherNeighbour:
      break;
  }
  *expected = TruncatedCode(format, scaled, rule.overflow);
  if (same(*expected)) return true;
  // A value between two codes may also become the upper one. Beyond the largest there is none: the
  // next byte is a zero, a NaN, or an infinity, which only an overflow gives.
  if (given != static_cast<uint8_t>(*expected + 1)) return false;
  const float lower = std::fabs(format.decode(*expected)), upper = std::fabs(format.decode(given));
  if (rule.overflow == Overflow::kSaturate && std::isinf(upper)) return false;
  return lower < std::fabs(scaled) && lower < upper;
}

class CodesExplainer {
 public:
  CodesExplainer(const ExplainCodesRequest& request, const ExecutionContext& context)
      : request_(request), context_(context) {}

  absl::StatusOr<CodesExplanation> Explain();

 private:
  absl::Status Check() const;
  /// The codes of one format as one byte each in an orientation, when the shapes fit.
  std::optional<Stored> Orient(const ElementFormat& format, bool transposed) const;
  float GlobalAmax(const std::vector<float>& values) const;
  ScaledBlocks Scale(const Stored& stored, const Blocks& blocks, const NamedScaleRule& rule,
                     DType element) const;
  /// As 4over6 picks them; the blocks are rows or replicated tiles of 16.
  absl::StatusOr<ScaledBlocks> ScaleByFourOverSix(const Stored& stored, const Blocks& blocks,
                                                  const FourOverSixKnobs& knobs) const;
  absl::Status AddTrials(const ElementFormat& format, const std::shared_ptr<const Stored>& stored);
  absl::Status AddFourOverSix(const ElementFormat& format,
                              const std::shared_ptr<const Stored>& stored);
  /// The same codes as of the transformed values, under NVFP4's scale rules.
  absl::Status AddHadamard(const ElementFormat& format, const Stored& stored);
  void AddRoundings(const ElementFormat& format, const std::shared_ptr<const Stored>& stored,
                    ScaledBlocks scaled);

  struct Trial {
    std::shared_ptr<const Stored> stored;
    const ElementFormat* format;
    std::shared_ptr<const ScaledBlocks> scaled;
    ElementRule rule;
    int64_t sample_matches = 0;
  };
  /// Counts every step-th element; step 1 also finds the first difference.
  CodesCandidate Count(const Trial& trial, int64_t step) const;

  const ExplainCodesRequest& request_;
  const ExecutionContext& context_;
  std::vector<float> source_;  // [M][K]
  Tensor padded_source_;       // The same for 4over6: PaddedToBlocks.
  std::vector<Trial> trials_;
};

absl::Status InvalidTensor(const char* field, const Tensor& tensor, const std::string& rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", tensor.has_value() ? TensorText(tensor) : "absent", "; ", rule));
}

absl::Status CodesExplainer::Check() const {
  const Tensor& source = request_.source;
  if (!source.has_value() || !IsHighPrecision(source.dtype())) {
    return InvalidTensor("source", source, "must be given, of f32, bf16 or f16");
  }
  if (source.rank() < 1 || source.element_count() == 0) {
    return InvalidTensor("source", source,
                         "must have at least one element and a rank of at least 1");
  }
  if (!request_.codes.has_value() || request_.codes.rank() < 1 ||
      DTypeBytes(request_.codes.dtype()) != 1) {
    return InvalidTensor("codes", request_.codes, "must be given, of FP8, FP6, packed FP4 or u8");
  }
  if (!request_.scale_inv.has_value() || request_.scale_inv.rank() > 2) {
    return InvalidTensor("scale_inv", request_.scale_inv,
                         "must be given, with a rank of at most 2");
  }
  const DType scale = request_.scale_inv.dtype();
  if (scale != DType::kF32 && DTypeBytes(scale) != 1) {
    return InvalidTensor("scale_inv", request_.scale_inv, "must be f32, f8_e8m0, f8_e4m3 or u8");
  }
  if (request_.amax.has_value() &&
      (request_.amax.dtype() != DType::kF32 || request_.amax.element_count() != 1)) {
    return InvalidTensor("amax", request_.amax, "must be f32[1]");
  }
  return absl::OkStatus();
}

std::optional<Stored> CodesExplainer::Orient(const ElementFormat& format, bool transposed) const {
  Stored stored;
  stored.transposed = transposed;
  const int64_t m = request_.source.rows(), k = request_.source.columns();
  stored.rows = transposed ? k : m;
  stored.columns = transposed ? m : k;
  const bool is_packed = format.dtype == DType::kF4E2M1x2;
  const int64_t bytes_per_row = is_packed ? (stored.columns + 1) / 2 : stored.columns;
  if (request_.codes.rows() != stored.rows || request_.codes.columns() != bytes_per_row) {
    return std::nullopt;
  }
  const Tensor& scale = request_.scale_inv;
  stored.scale_rows = scale.rank() == 2 ? scale.shape()[0] : scale.element_count();
  stored.scale_columns = scale.rank() == 2 ? scale.shape()[1] : 1;

  stored.values.resize(source_.size());
  stored.codes.resize(source_.size());
  const uint8_t* bytes = request_.codes.as<uint8_t>();
  for (int64_t row = 0; row < stored.rows; ++row) {
    for (int64_t column = 0; column < stored.columns; ++column) {
      const int64_t at = row * stored.columns + column;
      stored.values[at] = transposed ? source_[column * k + row] : source_[at];
      if (is_packed) {
        const uint8_t pair = bytes[row * bytes_per_row + column / 2];
        stored.codes[at] = column % 2 == 0 ? pair & 0xF : pair >> 4;
      } else {
        stored.codes[at] = bytes[at];
      }
    }
  }
  stored.global_amax = GlobalAmax(stored.values);
  return stored;
}

float CodesExplainer::GlobalAmax(const std::vector<float>& values) const {
  if (request_.amax.has_value()) return *request_.amax.as<float>();
  float amax = 0;
  for (const float value : values) {
    if (std::fabs(value) > amax) amax = std::fabs(value);  // False for NaN.
  }
  return amax;
}

ScaledBlocks CodesExplainer::Scale(const Stored& stored, const Blocks& blocks,
                                   const NamedScaleRule& rule, DType element) const {
  ScaledBlocks scaled{std::string(rule.name), std::string(rule.origin), blocks, {}, 0};
  // The amax of each tile, then one scale for each block of it.
  const int64_t tile_columns = (stored.columns + blocks.amax_columns - 1) / blocks.amax_columns;
  const int64_t tile_rows = (stored.rows + blocks.amax_rows - 1) / blocks.amax_rows;
  std::vector<float> amax(tile_rows * tile_columns, 0.0f);
  for (int64_t row = 0; row < stored.rows; ++row) {
    float* tiles = amax.data() + row / blocks.amax_rows * tile_columns;
    for (int64_t column = 0; column < stored.columns; ++column) {
      float& tile = tiles[column / blocks.amax_columns];
      const float magnitude = std::fabs(stored.values[row * stored.columns + column]);
      if (magnitude > tile) tile = magnitude;  // False for NaN.
    }
  }
  scaled.results.resize(stored.scale_rows * stored.scale_columns);
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    for (int64_t column = 0; column < stored.scale_columns; ++column) {
      const int64_t tile = row * blocks.rows / blocks.amax_rows * tile_columns +
                           column * blocks.columns / blocks.amax_columns;
      const int64_t at = row * stored.scale_columns + column;
      scaled.results[at] =
          rule.apply({amax[tile], stored.global_amax, element, request_.source.dtype()});
      scaled.matches += scaled.results[at].scale_inv_bits == ScaleBits(request_.scale_inv, at);
    }
  }
  return scaled;
}

absl::StatusOr<ScaledBlocks> CodesExplainer::ScaleByFourOverSix(
    const Stored& stored, const Blocks& blocks, const FourOverSixKnobs& knobs) const {
  ScaledBlocks scaled{absl::StrCat("two_level, ", knobs.Text()),
                      "Transformer Engine, NVFP4 with 4over6",
                      blocks,
                      {},
                      0};
  QG_ASSIGN_OR_RETURN(
      const Tensor codes,
      FourOverSixScaleCodes(padded_source_, knobs, blocks.amax_rows == 1 ? 1 : 2,
                            stored.transposed ? Usage::kColumnwise : Usage::kRowwise,
                            stored.global_amax, context_));
  const Nvfp4TensorScale tensor =
      MakeNvfp4TensorScale(stored.global_amax, knobs.e4m3_max, ScaleRule::kTwoLevel);
  scaled.results.resize(stored.scale_rows * stored.scale_columns);
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    for (int64_t column = 0; column < stored.scale_columns; ++column) {
      const int64_t at = row * stored.scale_columns + column;
      const uint8_t code = codes.as<uint8_t>()[row * codes.columns() + column];
      const float factor = BoundedReciprocal(DecodeFloat<E4M3>(code) * tensor.decode);
      scaled.results[at] = {code, factor, 1.0f / factor};
      scaled.matches += code == ScaleBits(request_.scale_inv, at);
    }
  }
  return scaled;
}

CodesCandidate CodesExplainer::Count(const Trial& trial, int64_t step) const {
  const Stored& stored = *trial.stored;
  const ScaledBlocks& scaled = *trial.scaled;
  CodesCandidate candidate;
  candidate.element = trial.format->name;
  candidate.block = BlockText(stored, scaled.blocks);
  candidate.scale_rule = scaled.rule;
  candidate.scale_origin = scaled.origin;
  candidate.element_rule = ElementRuleText(trial.rule);
  candidate.is_deterministic = trial.rule.rounding != Rounding::kEitherNeighbour;
  candidate.scale_matches = scaled.matches;
  candidate.scale_count = static_cast<int64_t>(scaled.results.size());
  for (int64_t at = 0; at < stored.rows * stored.columns; at += step) {
    const int64_t row = at / stored.columns, column = at % stored.columns;
    const ScaleRuleResult& result = scaled.results[row / scaled.blocks.rows * stored.scale_columns +
                                                   column / scaled.blocks.columns];
    uint8_t expected = 0;
    const float value = trial.rule.Scaled(stored.values[at], result);
    ++candidate.code_count;
    if (Matches(*trial.format, trial.rule, value, stored.codes[at], &expected)) {
      ++candidate.code_matches;
    } else if (!candidate.first_difference.has_value()) {
      candidate.first_difference =
          ElementAt{stored.transposed ? column : row, stored.transposed ? row : column,
                    stored.codes[at], expected};
    }
  }
  return candidate;
}

void CodesExplainer::AddRoundings(const ElementFormat& format,
                                  const std::shared_ptr<const Stored>& stored,
                                  ScaledBlocks scaled) {
  using Scaling = ElementRule::Scaling;
  const auto shared = std::make_shared<const ScaledBlocks>(std::move(scaled));
  for (const Scaling scaling : {Scaling::kMultiply, Scaling::kReciprocal, Scaling::kDivide}) {
    for (const auto& [rounding, name] : kRoundings) {
      trials_.push_back({stored, &format, shared, {scaling, rounding, Overflow::kSaturate}});
      if (format.nan == 0) continue;
      trials_.push_back({stored, &format, shared, {scaling, rounding, Overflow::kNan}});
    }
  }
}

absl::Status CodesExplainer::AddTrials(const ElementFormat& format,
                                       const std::shared_ptr<const Stored>& stored) {
  for (const Blocks& blocks : BlocksThatFit(*stored)) {
    for (const NamedScaleRule& rule : AllScaleRules()) {
      const bool fits =
          IsScaleDType(request_.scale_inv.dtype(), rule.scale) && rule.fits(format.dtype);
      if (!fits) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      AddRoundings(format, stored, Scale(*stored, blocks, rule, format.dtype));
    }
  }
  return absl::OkStatus();
}

/// Rows of 16 and tiles whose scale every row of theirs stores: what NVFP4's quantizers write.
bool AreNvfp4Blocks(const Blocks& blocks) {
  return blocks.rows == 1 && blocks.columns == 16 &&
         (blocks.amax_rows == 1 || blocks.amax_rows == 16);
}

absl::Status CodesExplainer::AddFourOverSix(const ElementFormat& format,
                                            const std::shared_ptr<const Stored>& stored) {
  for (const Blocks& blocks : BlocksThatFit(*stored)) {
    if (!AreNvfp4Blocks(blocks)) continue;
    for (const FourOverSixKnobs& knobs : kAllFourOverSixKnobs) {
      QG_ASSIGN_OR_RETURN(ScaledBlocks scaled, ScaleByFourOverSix(*stored, blocks, knobs));
      // The choice compares codes of this one rule, so that no other goes with it.
      trials_.push_back(
          {stored,
           &format,
           std::make_shared<const ScaledBlocks>(std::move(scaled)),
           {ElementRule::Scaling::kMultiply, Rounding::kNearestEven, Overflow::kSaturate}});
    }
  }
  return absl::OkStatus();
}

absl::Status CodesExplainer::AddHadamard(const ElementFormat& format, const Stored& stored) {
  // Of bf16 alone, in whole groups (docs/quantizers.md section 6.4).
  if (request_.source.dtype() != DType::kBF16 || stored.columns % 16 != 0) return absl::OkStatus();
  Stored transformed = stored;
  transformed.hadamard = true;
  transformed.values = HadamardTransformed(stored.values, context_);
  transformed.global_amax = GlobalAmax(transformed.values);
  const auto shared = std::make_shared<const Stored>(std::move(transformed));
  for (const Blocks& blocks : BlocksThatFit(*shared)) {
    if (!AreNvfp4Blocks(blocks) || blocks.amax_rows != 1) continue;
    for (const NamedScaleRule& rule : AllScaleRules()) {
      if (rule.scale != DType::kF8E4M3 || !rule.fits(format.dtype)) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      AddRoundings(format, shared, Scale(*shared, blocks, rule, format.dtype));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CodesExplanation> CodesExplainer::Explain() {
  QG_RETURN_IF_ERROR(Check());
  const ScopedIeeeEnvironment ieee;
  QG_ASSIGN_OR_RETURN(const Tensor f32, CastTensor(request_.source, DType::kF32, context_));
  source_.assign(f32.as<float>(), f32.as<float>() + f32.element_count());
  QG_ASSIGN_OR_RETURN(padded_source_, PaddedToBlocks(f32));
  for (const ElementFormat& format : kElementFormats) {
    if (!IsElementDType(request_.codes.dtype(), format.dtype)) continue;
    for (const bool transposed : {false, true}) {
      if (transposed && request_.source.rows() == 1) continue;  // The same orientation.
      std::optional<Stored> oriented = Orient(format, transposed);
      if (!oriented.has_value()) continue;
      const auto stored = std::make_shared<const Stored>(*std::move(oriented));
      QG_RETURN_IF_ERROR(AddTrials(format, stored));
      const bool may_be_nvfp4 = format.dtype == DType::kF4E2M1x2 &&
                                IsScaleDType(request_.scale_inv.dtype(), DType::kF8E4M3);
      if (!may_be_nvfp4) continue;
      QG_RETURN_IF_ERROR(AddFourOverSix(format, stored));
      QG_RETURN_IF_ERROR(AddHadamard(format, *stored));
    }
  }
  if (trials_.empty()) {
    return InvalidTensor("scale_inv", request_.scale_inv,
                         absl::StrCat("fits no block shape of codes ", TensorText(request_.codes),
                                      " of a source ", TensorText(request_.source)));
  }

  // A sample sorts out most candidates; what is left is counted whole.
  const int64_t step = std::max<int64_t>(1, request_.source.element_count() / kSampleElements);
  ParallelFor(context_, static_cast<int64_t>(trials_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      trials_[i].sample_matches = Count(trials_[i], step).code_matches;
  });
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  std::stable_sort(trials_.begin(), trials_.end(), [](const Trial& left, const Trial& right) {
    if (left.sample_matches != right.sample_matches) {
      return left.sample_matches > right.sample_matches;
    }
    return left.scaled->matches > right.scaled->matches;
  });
  CodesExplanation explanation;
  explanation.tried = static_cast<int64_t>(trials_.size());
  trials_.resize(std::min<size_t>(trials_.size(), 2 * kCandidatesKept));
  explanation.candidates.resize(trials_.size());
  ParallelFor(context_, static_cast<int64_t>(trials_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) explanation.candidates[i] = Count(trials_[i], 1);
  });
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  // Stochastic rounding allows two codes where another rule allows one: it comes last among equals.
  std::stable_sort(explanation.candidates.begin(), explanation.candidates.end(),
                   [](const CodesCandidate& left, const CodesCandidate& right) {
                     const auto key = [](const CodesCandidate& c) {
                       const double matched = double(c.code_matches) / double(c.code_count) +
                                              double(c.scale_matches) / double(c.scale_count);
                       return std::tuple(c.is_entire(), matched, c.is_deterministic);
                     };
                     return key(left) > key(right);
                   });
  // Where nearest rounding already gives every code, either neighbour says nothing more.
  const bool is_deterministic =
      explanation.candidates.front().is_entire() && explanation.candidates.front().is_deterministic;
  if (is_deterministic) {
    std::erase_if(explanation.candidates, [](const CodesCandidate& candidate) {
      return candidate.is_entire() && !candidate.is_deterministic;
    });
  }
  if (explanation.candidates.size() > kCandidatesKept) {
    explanation.candidates.resize(kCandidatesKept);
  }
  return explanation;
}

}  // namespace

absl::StatusOr<CodesExplanation> ExplainCodes(const ExplainCodesRequest& request,
                                              const ExecutionContext& context) {
  return CodesExplainer(request, context).Explain();
}

}  // namespace quantgate
