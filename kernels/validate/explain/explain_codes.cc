#include "kernels/validate/explain/explain_codes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/explain/explain_candidates.h"
#include "kernels/validate/explain/explain_cause.h"
#include "kernels/validate/explain/explain_evidence.h"
#include "kernels/validate/explain/explain_levels.h"
#include "kernels/validate/explain/explain_nvfp4.h"
#include "kernels/validate/explain/explain_scale_rules.h"
#include "kernels/validate/explain/explain_stored.h"

namespace quantgate {
namespace {

/// Of tensors up to so many elements this many ways to scale are counted on all elements; of larger
/// ones those that fit the sample, and as many of the nearest.
constexpr int64_t kSmallElements = 1 << 20;
constexpr size_t kGroupsKept = 48, kNearGroupsKept = 4, kNearBesideFitting = 1;
constexpr char kGivenScaleText[] = "given: the stored scale, as of delayed scaling";
constexpr char kRowScaledText[] = ", row_scaled_activation=true";

bool IsElementDType(DType given, const CodeFormat& format) {
  if (given == DType::kU8 || !format.is_fnuz) return given == DType::kU8 || given == format.dtype;
  return given == (format.dtype == DType::kF8E4M3 ? DType::kF8E4M3Fnuz : DType::kF8E5M2Fnuz);
}

/// The scalings that go with a source: an f32 one tells no rounding to its type. kDivideInBf16 is
/// tried in search of a cause alone.
bool GoesWith(ElementScaling scaling, DType source) {
  return scaling != ElementScaling::kDivideInBf16 &&
         (source != DType::kF32 || InF32(scaling) == scaling);
}

class CodesExplainer {
 public:
  CodesExplainer(const ExplainCodesRequest& request, const ExecutionContext& context)
      : request_(request), context_(context) {}

  absl::StatusOr<CodesExplanation> Explain();

 private:
  using Stored = std::shared_ptr<const StoredCodes>;
  using Maxima = std::shared_ptr<const BlockMaxima>;

  /// Applies a rule to all scales, or to those of the sample; keeps the factors of `only` alone if
  /// it is given. `row_scaled`: with an amax for each row in place of the tensor's.
  ScaledBlocks Scale(const Stored& stored, const Maxima& maxima, const NamedScaleRule& rule,
                     const CodeFormat& format, bool row_scaled, bool is_sample,
                     std::optional<ElementScaling> only = std::nullopt) const;
  /// The block scales that 4over6 picks; blocks are rows or replicated tiles of 16.
  absl::StatusOr<ScaledBlocks> ScaleByFourOverSix(const Stored& stored, const Maxima& maxima,
                                                  const FourOverSixKnobs& knobs, bool row_scaled,
                                                  bool is_sample) const;
  absl::Status AddTrials(const CodeFormat& format, const Stored& stored);
  /// Adds what only NVFP4's quantizers have: 4over6, and a tensor scale for each row.
  absl::Status AddNvfp4(const CodeFormat& format, const Stored& stored);
  /// Adds the codes as those of transformed values, under NVFP4's scale rules.
  absl::Status AddHadamard(const CodeFormat& format, const StoredCodes& stored);
  /// Adds the ways to scale elements that go with a rule.
  void AddGroups(const CodeFormat& format, const Stored& stored, ScaledBlocks scaled);
  void AddGroup(ScaledGroup group) {
    ++described_;
    AddOrJoin(std::move(group), groups_);
  }
  absl::Status AddFormat(const CodeFormat& format, CodePacking packing);
  /// Adds every way to scale that the shapes allow. INVALID_ARGUMENT if there is none.
  absl::Status AddAll();
  /// Keeps the ways to scale that fit the sample, and of the others those that fit it best.
  void KeepBestGroups();
  /// Applies the kept rules to all scales.
  absl::Status ApplyToAll();
  /// The counts of every kept group over all elements. Of one whose codes overflow to NaN there are
  /// none where that of saturated codes has nothing that overflows: its candidates are the same.
  std::vector<RoundingCounts> CountGroups() const;
  /// Sets the cause and says it, unless the codes are as they should be.
  absl::Status AddCause(CodesExplanation& explanation) const;

  const ExplainCodesRequest& request_;
  const ExecutionContext& context_;
  std::vector<float> source_;  // [M][K]
  std::optional<StoredReader> reader_;
  int64_t described_ = 0;  // Ways to scale, before those that are alike are joined.
  std::vector<ScaledGroup> groups_;
};

absl::Status RefuseTensor(const char* field, const Tensor& tensor, const std::string& rule) {
  return Refuse(field, tensor.has_value() ? TensorText(tensor) : "absent", rule);
}

ScaledBlocks CodesExplainer::Scale(const Stored& stored, const Maxima& maxima,
                                   const NamedScaleRule& rule, const CodeFormat& format,
                                   bool row_scaled, bool is_sample,
                                   std::optional<ElementScaling> only) const {
  ScaledBlocks scaled;
  scaled.rule = std::string(rule.name);
  if (row_scaled) scaled.rule.insert(scaled.rule.find(':'), kRowScaledText);
  scaled.maxima = maxima;
  scaled.is_sample = is_sample;
  const bool is_part = is_sample && !maxima->sample_slots.empty();
  const auto count =
      static_cast<int64_t>(is_part ? maxima->sample_scales.size() : stored->scales.size());
  scaled.bits.resize(count);
  scaled.is_at_bound.resize(count);
  for (int i = 0; i < kScalingCount; ++i) {
    const auto scaling = static_cast<ElementScaling>(i);
    if (only.has_value() ? *only == scaling : GoesWith(scaling, stored->source)) {
      scaled.factors[i].resize(count);
    }
  }
  std::atomic<int64_t> matches = 0;
  std::array<std::atomic<bool>, kScalingCount> has_factor = {};
  constexpr int64_t kScalesAtOnce = 4096;
  ParallelFor(context_, count, kScalesAtOnce, [&](int64_t begin, int64_t end) {
    int64_t matching = 0;
    std::array<bool, kScalingCount> has = {};
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t at = scaled.ScaleOf(slot);
      const float global_amax =
          row_scaled ? stored->row_amaxes[at / stored->scale_columns * maxima->blocks.rows]
                     : stored->global_amax;
      const ScaleRuleResult result =
          rule.apply({maxima->amaxes[at], global_amax, format.dtype, stored->source,
                      maxima->has_nan[at] != 0, format.is_fnuz ? format.max_value() : 0});
      scaled.bits[slot] = result.scale_inv_bits;
      scaled.is_at_bound[slot] = result.is_at_bound;
      matching += result.scale_inv_bits == stored->scales[at];
      for (int i = 0; i < kScalingCount; ++i) {
        has[i] |= result.factors[i] != 0;
        if (!scaled.factors[i].empty()) scaled.factors[i][slot] = result.factors[i];
      }
    }
    matches += matching;
    for (int i = 0; i < kScalingCount; ++i) {
      if (has[i]) has_factor[i] = true;
    }
  });
  scaled.matches = matches;
  // Which do not go with the rule.
  for (int i = 0; i < kScalingCount; ++i) {
    if (!has_factor[i]) scaled.factors[i].clear();
  }
  if (is_part) {
    scaled.apply_to_all = [this, stored, maxima, &rule, &format, row_scaled](ElementScaling one) {
      return Scale(stored, maxima, rule, format, row_scaled, false, one);
    };
  }
  return scaled;
}

absl::StatusOr<ScaledBlocks> CodesExplainer::ScaleByFourOverSix(const Stored& stored,
                                                                const Maxima& maxima,
                                                                const FourOverSixKnobs& knobs,
                                                                bool row_scaled,
                                                                bool is_sample) const {
  ScaledBlocks scaled;
  scaled.rule = absl::StrCat("two_level, ", knobs.Text(), row_scaled ? kRowScaledText : "");
  scaled.library = "Transformer Engine, NVFP4 with 4over6";
  scaled.maxima = maxima;
  const bool is_part = is_sample && !maxima->sample_slots.empty();
  scaled.is_sample = is_part;
  // Bands of whole tiles.
  std::vector<int64_t> rows;
  if (is_part) {
    for (const int64_t at : stored->sample) {
      for (int64_t row = at / stored->columns / 16 * 16, end = std::min(row + 16, stored->rows);
           row < end && (rows.empty() || rows.back() < row); ++row) {
        rows.push_back(row);
      }
    }
  } else {
    rows.resize(stored->rows);
    std::iota(rows.begin(), rows.end(), 0);
  }
  QG_ASSIGN_OR_RETURN(const Tensor padded, PaddedLines(stored->elements->values, stored->columns,
                                                       rows, stored->transposed));
  QG_ASSIGN_OR_RETURN(
      const Tensor codes,
      FourOverSixScaleCodes(padded, knobs, maxima->blocks.amax_rows == 1 ? 1 : 2,
                            stored->transposed ? Usage::kColumnwise : Usage::kRowwise,
                            row_scaled ? std::nullopt : std::optional(stored->global_amax),
                            context_));
  const auto count =
      static_cast<int64_t>(is_part ? maxima->sample_scales.size() : stored->scales.size());
  std::vector<float>& factors = scaled.factors[static_cast<int>(ElementScaling::kMultiply)];
  for (int64_t slot = 0; slot < count; ++slot) {
    const int64_t at = scaled.ScaleOf(slot), row = at / stored->scale_columns;
    const int64_t line = std::lower_bound(rows.begin(), rows.end(), row) - rows.begin();
    const Nvfp4TensorScale tensor =
        MakeNvfp4TensorScale(row_scaled ? stored->row_amaxes[row] : stored->global_amax,
                             knobs.e4m3_max, ScaleRule::kTwoLevel);
    const uint8_t code = codes.as<uint8_t>()[line * codes.columns() + at % stored->scale_columns];
    scaled.bits.push_back(code);
    factors.push_back(BoundedReciprocal(DecodeFloat<E4M3>(code) * tensor.decode));
    scaled.is_at_bound.push_back(IsE4m3AtBound(code, 0));
    scaled.matches += code == stored->scales[at];
  }
  if (is_part) {
    scaled.apply_to_all = [this, stored, maxima, knobs, row_scaled](ElementScaling) {
      return ScaleByFourOverSix(stored, maxima, knobs, row_scaled, false);
    };
  }
  return scaled;
}

void CodesExplainer::AddGroups(const CodeFormat& format, const Stored& stored,
                               ScaledBlocks scaled) {
  const auto shared = std::make_shared<const ScaledBlocks>(std::move(scaled));
  for (int i = 0; i < kScalingCount; ++i) {
    const auto scaling = static_cast<ElementScaling>(i);
    if (shared->factors[i].empty()) continue;
    AddGroup({stored, &format, {{shared, scaling}}, Overflow::kSaturate});
    if (format.has_nan) AddGroup({stored, &format, {{shared, scaling}}, Overflow::kNan});
  }
}

absl::Status CodesExplainer::AddTrials(const CodeFormat& format, const Stored& stored) {
  const DType dtype = stored->scale_dtype;
  bool gives_scales = false;
  for (const CodeBlocks& blocks : BlocksThatFit(*stored)) {
    const Maxima maxima = MaximaOf(*stored, blocks, context_);
    for (const NamedScaleRule& rule : AllScaleRules()) {
      if (!IsScaleDType(dtype, rule.scale) || !rule.fits(format.dtype)) continue;
      if (rule.has_one_zero != (format.has_one_zero && !format.is_fnuz)) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      ScaledBlocks scaled = Scale(stored, maxima, rule, format, false, true);
      gives_scales |= scaled.matches == static_cast<int64_t>(scaled.bits.size());
      AddGroups(format, stored, std::move(scaled));
    }
  }
  // A single scale that no rule makes of this source may be one that was given.
  const bool is_single = stored->scales.size() == 1 && IsScaleDType(dtype, DType::kF32);
  if (!is_single || gives_scales || !IsFp8(format.dtype)) return absl::OkStatus();
  const float scale_inv = std::bit_cast<float>(stored->scales.front());
  if (!(scale_inv > 0) || !std::isnormal(scale_inv) || !std::isnormal(1.0f / scale_inv)) {
    return absl::OkStatus();
  }
  const ScaleRuleResult given = GivenScale(scale_inv);
  ScaledBlocks scaled;
  scaled.rule = kGivenScaleText;
  scaled.maxima =
      MaximaOf(*stored, {stored->rows, stored->columns, stored->rows, stored->columns}, context_);
  scaled.bits = {given.scale_inv_bits};
  scaled.is_at_bound = {given.is_at_bound};
  for (int i = 0; i < kScalingCount; ++i) {
    if (given.factors[i] != 0 && GoesWith(static_cast<ElementScaling>(i), stored->source)) {
      scaled.factors[i] = {given.factors[i]};
    }
  }
  scaled.matches = 1;
  AddGroups(format, stored, std::move(scaled));
  return absl::OkStatus();
}

/// The blocks of NVFP4's quantizers: rows of 16, and tiles whose scale is stored for each of their
/// rows.
bool AreNvfp4Blocks(const CodeBlocks& blocks) {
  return blocks.rows == 1 && blocks.columns == 16 &&
         (blocks.amax_rows == 1 || blocks.amax_rows == 16);
}

absl::Status CodesExplainer::AddNvfp4(const CodeFormat& format, const Stored& stored) {
  for (const CodeBlocks& blocks : BlocksThatFit(*stored)) {
    if (!AreNvfp4Blocks(blocks)) continue;
    const Maxima maxima = MaximaOf(*stored, blocks, context_);
    for (const bool row_scaled : {false, true}) {
      if (row_scaled && (blocks.amax_rows != 1 || stored->row_amaxes.empty())) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      // Row scales go only with the usual rule.
      if (row_scaled) {
        AddGroups(format, stored, Scale(stored, maxima, TwoLevelRule(), format, true, true));
      }
      if (row_scaled && stored->transposed) continue;  // Row-scaled 4over6 is never transposed.
      for (const FourOverSixKnobs& knobs : kAllFourOverSixKnobs) {
        QG_ASSIGN_OR_RETURN(ScaledBlocks scaled,
                            ScaleByFourOverSix(stored, maxima, knobs, row_scaled, true));
        // The choice compares codes of this rule, so no other rule goes with it.
        const auto shared = std::make_shared<const ScaledBlocks>(std::move(scaled));
        AddGroup({stored,
                  &format,
                  {{shared, ElementScaling::kMultiply, /*is_nearest_even=*/true}},
                  Overflow::kSaturate});
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CodesExplainer::AddHadamard(const CodeFormat& format, const StoredCodes& stored) {
  // Only bf16 is transformed, in whole groups (docs/quantizers.md section 6.4).
  if (request_.source.dtype() != DType::kBF16 || stored.columns % 16 != 0) return absl::OkStatus();
  // The transform of a large tensor takes as long as all else.
  if (request_.source.element_count() > kSmallElements &&
      !MayBeTransformed(format.sign, stored, context_)) {
    return absl::OkStatus();
  }
  StoredCodes transformed = stored;
  transformed.hadamard = true;
  auto elements = std::make_shared<CodedElements>();
  elements->rows = stored.rows;
  elements->columns = stored.columns;
  elements->values = HadamardTransformed(stored.elements->values, context_);
  elements->codes = stored.elements->codes;
  transformed.elements = std::move(elements);
  reader_->SetAmaxes(transformed);
  const auto shared = std::make_shared<const StoredCodes>(std::move(transformed));
  for (const CodeBlocks& blocks : BlocksThatFit(*shared)) {
    if (!AreNvfp4Blocks(blocks) || blocks.amax_rows != 1) continue;
    const Maxima maxima = MaximaOf(*shared, blocks, context_);
    for (const NamedScaleRule& rule : AllScaleRules()) {
      if (rule.scale != DType::kF8E4M3 || !rule.fits(format.dtype)) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      AddGroups(format, shared, Scale(shared, maxima, rule, format, false, true));
    }
  }
  return absl::OkStatus();
}

absl::Status CodesExplainer::AddFormat(const CodeFormat& format, CodePacking packing) {
  for (const bool transposed : {false, true}) {
    if (transposed && request_.source.rows() == 1) continue;  // The same orientation.
    QG_ASSIGN_OR_RETURN(std::vector<StoredCodes> read, reader_->Read(format, packing, transposed));
    for (StoredCodes& one : read) {
      const auto stored = std::make_shared<const StoredCodes>(std::move(one));
      QG_RETURN_IF_ERROR(AddTrials(format, stored));
      const bool may_be_nvfp4 = format.dtype == DType::kF4E2M1x2 &&
                                packing == CodePacking::kUsual && !format.has_one_zero &&
                                IsScaleDType(stored->scale_dtype, DType::kF8E4M3);
      if (!may_be_nvfp4) continue;
      QG_RETURN_IF_ERROR(AddNvfp4(format, stored));
      QG_RETURN_IF_ERROR(AddHadamard(format, *stored));
    }
  }
  return absl::OkStatus();
}

absl::Status CodesExplainer::AddAll() {
  reader_.emplace(request_, source_, context_);
  const DType given = request_.codes.dtype();
  for (const CodeFormat& format : AllCodeFormats()) {
    if (!IsElementDType(given, format)) continue;
    QG_RETURN_IF_ERROR(AddFormat(format, CodePacking::kUsual));
    const bool is_fp4 = format.dtype == DType::kF4E2M1x2;
    if (given != DType::kU8 || IsFp8(format.dtype)) continue;
    QG_RETURN_IF_ERROR(
        AddFormat(format, is_fp4 ? CodePacking::kOneToAByte : CodePacking::kSixBits));
  }
  if (IsElementDType(given, OneZeroE2M1()) &&
      IsScaleDType(request_.scale_inv.dtype(), DType::kF8E8M0)) {
    QG_RETURN_IF_ERROR(AddFormat(OneZeroE2M1(), CodePacking::kUsual));
    if (given == DType::kU8) {
      QG_RETURN_IF_ERROR(AddFormat(OneZeroE2M1(), CodePacking::kOneToAByte));
    }
  }
  for (const CodeFormat& format : FnuzCodeFormats()) {
    if (IsElementDType(given, format)) {
      QG_RETURN_IF_ERROR(AddFormat(format, CodePacking::kUsual));
    }
  }
  if (!groups_.empty()) return absl::OkStatus();
  return RefuseTensor(
      "scale_inv", request_.scale_inv,
      absl::StrCat("in the ", std::string(ScaleLayoutName(request_.scale_layout)),
                   " layout, fits no block shape of codes ", TensorText(request_.codes),
                   " of a source ", TensorText(request_.source)));
}

void CodesExplainer::KeepBestGroups() {
  ParallelFor(context_, static_cast<int64_t>(groups_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ScaledGroup& group = groups_[i];
      const RoundingCounts counts = CountSample(group, false);
      int64_t best = 0;
      for (const RuleCount& rule : counts.rules) best = std::max(best, rule.matches);
      const int64_t zeros = counts.of(counts.BestZeroSign()).matches;
      // Neighbours count too, since stochastic rounding gives most codes of no single rule.
      group.sample_score = best + counts.neighbours + zeros;
      group.fits_sample =
          group.scaled().matches == static_cast<int64_t>(group.scaled().bits.size()) &&
          std::max(best, counts.neighbours) + zeros == counts.count;
    }
  });
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const ScaledGroup& left, const ScaledGroup& right) {
                     return std::pair(left.sample_score, left.scaled().matches) >
                            std::pair(right.sample_score, right.scaled().matches);
                   });
  if (request_.source.element_count() <= kSmallElements) {
    groups_.resize(std::min(groups_.size(), kGroupsKept));
    return;
  }
  std::stable_partition(groups_.begin(), groups_.end(),
                        [](const ScaledGroup& group) { return group.fits_sample; });
  const auto fitting = static_cast<size_t>(std::count_if(
      groups_.begin(), groups_.end(), [](const ScaledGroup& group) { return group.fits_sample; }));
  const size_t near = fitting > 0 ? kNearBesideFitting : kNearGroupsKept;
  groups_.resize(std::min({groups_.size(), fitting + near, kGroupsKept}));
}

absl::Status CodesExplainer::ApplyToAll() {
  std::vector<ScaledGroup> sampled = std::move(groups_);
  groups_.clear();
  // The groups of both overflows share what they have.
  using Key = std::pair<std::shared_ptr<const ScaledBlocks>, ElementScaling>;
  std::map<Key, std::shared_ptr<const ScaledBlocks>> all;
  for (ScaledGroup& group : sampled) {
    for (ScaledBy& one : group.by) {
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      std::shared_ptr<const ScaledBlocks>& known = all[{one.scaled, one.scaling}];
      if (known == nullptr) {
        ScaledBlocks scaled = *one.scaled;
        if (one.scaled->apply_to_all != nullptr) {
          QG_ASSIGN_OR_RETURN(scaled, one.scaled->apply_to_all(one.scaling));
        }
        scaled.is_sample = false;
        scaled.apply_to_all = nullptr;
        CountDistinctAmaxes(scaled);
        known = std::make_shared<const ScaledBlocks>(std::move(scaled));
      }
      one.scaled = known;
      AddOrJoin({group.stored, group.format, {one}, group.overflow}, groups_);
    }
  }
  return absl::OkStatus();
}

std::vector<RoundingCounts> CodesExplainer::CountGroups() const {
  std::vector<RoundingCounts> counts(groups_.size());
  const auto count_if = [&](const std::function<bool(size_t)>& is_counted) {
    ParallelFor(context_, static_cast<int64_t>(groups_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (is_counted(static_cast<size_t>(i))) counts[i] = CountAll(groups_[i], false);
      }
    });
  };
  const auto is_saturated = [&](size_t i) { return groups_[i].overflow == Overflow::kSaturate; };
  count_if(is_saturated);
  count_if([&](size_t i) {
    if (is_saturated(i)) return false;
    for (size_t j = 0; j < groups_.size(); ++j) {
      const ScaledBy &one = groups_[i].by.front(), &other = groups_[j].by.front();
      if (is_saturated(j) && one.scaled == other.scaled && one.scaling == other.scaling) {
        return counts[j].overflowing > 0;
      }
    }
    return true;
  });
  return counts;
}

/// Whether the spread of all codes is worth counting: `counts` of all codes leave a stochastic
/// candidate entire, or the sample does not yet reject it beyond doubt (1.5e-23 by chance).
bool MayBeStochastic(const ScaledGroup& group, const RoundingCounts& counts) {
  if (group.overflow != Overflow::kSaturate) return false;
  if (counts.neighbours + counts.of(counts.BestZeroSign()).matches == counts.count) return true;
  constexpr double kBeyondDoubt = 10;
  const RoundingCounts of_sample = CountSample(group, true);
  const auto is_rejected = [](const StochasticSpread& spread) {
    const SpreadResult result = spread.Result();
    return std::max({std::fabs(result.bias), std::fabs(result.slope), std::fabs(result.nearness)}) >
           kBeyondDoubt;
  };
  return !is_rejected(of_sample.fraction_chance) || !is_rejected(of_sample.eight_bits);
}

/// Adds the stochastic candidates whose codes pass the test. Returns the test's result for the
/// first candidate that matches everything but does not pass.
std::optional<SpreadResult> AddStochastic(const std::vector<ScaledGroup>& groups,
                                          const std::vector<RoundingCounts>& counts,
                                          std::vector<CodesCandidate>& candidates) {
  std::optional<SpreadResult> rejected;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (CodesCandidate& candidate : StochasticOf(groups[i], counts[i])) {
      const SpreadResult& spread = *candidate.evidence.spread;
      if (!spread.passes && candidate.is_entire() && !rejected.has_value()) rejected = spread;
      if (spread.passes) candidates.push_back(std::move(candidate));
    }
  }
  SortBestFirst(candidates);
  return rejected;
}

absl::Status CodesExplainer::AddCause(CodesExplanation& explanation) const {
  bool is_entire = false;
  for (const CodesCandidate& candidate : explanation.candidates) {
    if (!candidate.is_entire()) continue;
    is_entire = true;
    if (candidate.is_own_rule || (candidate.is_established && !candidate.libraries.empty())) {
      return absl::OkStatus();
    }
  }
  QG_ASSIGN_OR_RETURN(const std::optional<CodesCause> cause,
                      FindCause(request_, source_, context_));
  std::vector<std::string>& lines = explanation.conclusion;
  const auto second = lines.begin() + (lines.empty() ? 0 : 1);
  if (cause.has_value()) {
    explanation.cause = cause->what;
    lines.insert(second, absl::StrCat("Against this build's quantizers: ", cause->what, ". ",
                                      cause->evidence, "."));
  } else if (!is_entire) {
    explanation.cause = kUnknownCause;
    lines.insert(second, "The cause is unknown: nothing that is known to go wrong gives them.");
  }
  return absl::OkStatus();
}

absl::StatusOr<CodesExplanation> CodesExplainer::Explain() {
  const ScopedIeeeEnvironment ieee;
  QG_ASSIGN_OR_RETURN(const Tensor f32, CastTensor(request_.source, DType::kF32, context_));
  source_.assign(f32.as<float>(), f32.as<float>() + f32.element_count());
  CodesExplanation explanation;
  if (const absl::Status added = AddAll(); !added.ok()) {
    if (!absl::IsInvalidArgument(added)) return added;
    // Scales of a shape that fits no blocks may have a cause.
    QG_RETURN_IF_ERROR(AddCause(explanation));
    if (explanation.cause.empty() || explanation.cause == kUnknownCause) return added;
    return explanation;
  }
  explanation.tried = described_ * (kCodeRoundingCount + kStochasticCount);
  // A candidate that does not fit the sample does not fit all; the others are counted on all
  // elements.
  KeepBestGroups();
  QG_RETURN_IF_ERROR(ApplyToAll());
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  std::vector<RoundingCounts> counts = CountGroups();
  QG_RETURN_IF_ERROR(context_.CheckCancelled());

  std::vector<CodesCandidate>& candidates = explanation.candidates;
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<CodesCandidate> of_group = DeterministicOf(groups_[i], counts[i]);
    std::move(of_group.begin(), of_group.end(), std::back_inserter(candidates));
  }
  SortBestFirst(candidates);
  // Stochastic rounding fits any code that is one step off, so it is offered only if no rule gives
  // everything.
  std::optional<SpreadResult> rejected;
  if (!candidates.front().is_entire()) {
    ParallelFor(context_, static_cast<int64_t>(groups_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (MayBeStochastic(groups_[i], counts[i])) counts[i] = CountAll(groups_[i], true);
      }
    });
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
    rejected = AddStochastic(groups_, counts, candidates);
  }
  for (CodesCandidate& candidate : candidates) {
    candidate.is_established = DoubtOf(candidate).empty();
    explanation.is_established |= candidate.is_established;
  }
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const CodesCandidate& candidate) { return candidate.is_established; });
  const std::set<std::string> libraries = LibrariesOf(candidates);
  for (CodesCandidate& candidate : candidates) {
    if (libraries.size() != 1 || !candidate.is_established) continue;
    if (!candidate.libraries.empty()) candidate.scale_origin = *libraries.begin();
  }
  explanation.conclusion = ConclusionOf(candidates, libraries, rejected);
  QG_RETURN_IF_ERROR(AddCause(explanation));
  if (candidates.size() > kCandidatesKept) candidates.resize(kCandidatesKept);
  return explanation;
}

}  // namespace

absl::Status CheckExplainCodes(const ExplainCodesRequest& request) {
  const Tensor& source = request.source;
  if (!source.has_value() || !IsHighPrecision(source.dtype())) {
    return RefuseTensor("source", source, "must be given, of f32, bf16 or f16");
  }
  if (source.rank() < 1 || source.element_count() == 0) {
    return RefuseTensor("source", source,
                        "must have at least one element and a rank of at least 1");
  }
  if (!request.codes.has_value() || request.codes.rank() < 1 ||
      (DTypeBytes(request.codes.dtype()) != 1 && request.codes.dtype() != DType::kI32)) {
    return RefuseTensor("codes", request.codes,
                        "must be given, of FP8, FP6, packed FP4, integers, a table or u8; i32: "
                        "eight integers each");
  }
  if (!request.scale_inv.has_value() || request.scale_inv.element_count() == 0) {
    return RefuseTensor("scale_inv", request.scale_inv, "must be given, with at least one element");
  }
  if (AreLevels(request)) return CheckLevels(request);
  const DType scale = request.scale_inv.dtype();
  if (!IsScaleDType(scale, DType::kF32) && scale != DType::kI32 && DTypeBytes(scale) != 1) {
    return RefuseTensor("scale_inv", request.scale_inv,
                        "must be f32, bf16, f16, f8_e8m0, f8_e4m3, u8, or i32 of four f8_e8m0");
  }
  if (request.amax.has_value()) {
    const int64_t count = request.amax.element_count();
    if (request.amax.dtype() != DType::kF32 || (count != 1 && count != request.codes.rows())) {
      return RefuseTensor("amax", request.amax,
                          absl::StrCat("must be f32[1], or of the rows of the codes, f32[",
                                       request.codes.rows(), "]"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CodesExplanation> ExplainCodes(const ExplainCodesRequest& request,
                                              const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckExplainCodes(request));
  if (AreLevels(request)) return ExplainLevels(request, context);
  if (!MayBeLevels(request)) return CodesExplainer(request, context).Explain();
  absl::StatusOr<CodesExplanation> of_levels = ExplainLevels(request, context);
  if (!of_levels.ok() && !absl::IsInvalidArgument(of_levels.status())) return of_levels;
  if (of_levels.ok() && of_levels->is_established) return of_levels;
  absl::StatusOr<CodesExplanation> of_floats = CodesExplainer(request, context).Explain();
  if (!of_levels.ok()) return of_floats;
  if (!of_floats.ok()) return absl::IsInvalidArgument(of_floats.status()) ? of_levels : of_floats;
  return JoinExplanations(*std::move(of_levels), *std::move(of_floats));
}

}  // namespace quantgate
