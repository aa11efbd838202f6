#include "kernels/validate/explain/explain_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <memory>
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
#include "kernels/validate/explain/explain_evidence.h"
#include "kernels/validate/explain/explain_nvfp4.h"
#include "kernels/validate/explain/explain_scale_rules.h"

namespace quantgate {
namespace {

constexpr int64_t kSampleElements = 8192;
/// The most ways to scale that are counted on all elements, after the sample.
constexpr size_t kGroupsKept = 48;
constexpr char kGivenScaleText[] = "given: the stored scale, as of delayed scaling";
constexpr char kRowScaledText[] = ", row_scaled_activation=true";

bool IsScaleDType(DType given, DType rule) {
  return given == rule || (given == DType::kU8 && rule != DType::kF32);
}

bool IsElementDType(DType given, DType element) { return given == element || given == DType::kU8; }

uint32_t ScaleBits(const Tensor& scale_inv, int64_t index) {
  return scale_inv.dtype() == DType::kF32 ? scale_inv.as<uint32_t>()[index]
                                          : scale_inv.as<uint8_t>()[index];
}

std::vector<CodeBlocks> BlocksThatFit(const StoredCodes& stored) {
  std::vector<CodeBlocks> fitting;
  const auto ceil_of = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto add = [&](int64_t rows, int64_t columns, int64_t amax_rows, int64_t amax_columns) {
    if (ceil_of(stored.rows, rows) != stored.scale_rows ||
        ceil_of(stored.columns, columns) != stored.scale_columns) {
      return;
    }
    // Two lengths that are both longer than a dim give the same block.
    const auto shape = [&](const CodeBlocks& blocks) {
      return std::array{
          std::min(blocks.rows, stored.rows), std::min(blocks.columns, stored.columns),
          std::min(blocks.amax_rows, stored.rows), std::min(blocks.amax_columns, stored.columns)};
    };
    for (const CodeBlocks& known : fitting) {
      if (shape(known) == shape({rows, columns, amax_rows, amax_columns})) return;
    }
    fitting.push_back({rows, columns, amax_rows, amax_columns});
  };
  add(stored.rows, stored.columns, stored.rows, stored.columns);
  add(1, stored.columns, 1, stored.columns);
  add(stored.rows, 1, stored.rows, 1);
  for (const int64_t length : kBlockLengths) {
    add(1, length, 1, length);
    add(1, length, length, length);
    add(length, 1, length, 1);
    add(length, 1, length, length);
    add(length, length, length, length);
  }
  return fitting;
}

/// By stored scale, the amax of the tile that its block lies in.
std::vector<float> BlockAmaxes(const StoredCodes& stored, const CodeBlocks& blocks) {
  const std::vector<float> of_tiles = TileAmaxes(stored, blocks);
  const int64_t tile_columns = (stored.columns + blocks.amax_columns - 1) / blocks.amax_columns;
  std::vector<float> amaxes;
  amaxes.reserve(stored.scales.size());
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    for (int64_t column = 0; column < stored.scale_columns; ++column) {
      amaxes.push_back(of_tiles[row * blocks.rows / blocks.amax_rows * tile_columns +
                                column * blocks.columns / blocks.amax_columns]);
    }
  }
  return amaxes;
}

class CodesExplainer {
 public:
  CodesExplainer(const ExplainCodesRequest& request, const ExecutionContext& context)
      : request_(request), context_(context) {}

  absl::StatusOr<CodesExplanation> Explain();

 private:
  /// The codes of one format as one byte each in an orientation, when the shapes fit; the scales as
  /// each array that they may be.
  absl::StatusOr<std::vector<StoredCodes>> Orient(const CodeFormat& format, bool transposed) const;
  /// The given scales in the logical layout, as each array that has their type and shape.
  absl::StatusOr<std::vector<Tensor>> LogicalScales(bool transposed) const;
  /// Sets the global amax and the amaxes of rows: given ones, or those of the values.
  void SetAmaxes(StoredCodes& stored) const;
  /// `row_scaled`: with an amax for each row in place of the tensor's.
  ScaledBlocks Scale(const StoredCodes& stored, const CodeBlocks& blocks,
                     const NamedScaleRule& rule, DType element, bool row_scaled = false) const;
  /// The block scales that 4over6 picks; blocks are rows or replicated tiles of 16.
  absl::StatusOr<ScaledBlocks> ScaleByFourOverSix(const StoredCodes& stored,
                                                  const CodeBlocks& blocks,
                                                  const FourOverSixKnobs& knobs,
                                                  bool row_scaled) const;
  absl::Status AddTrials(const CodeFormat& format,
                         const std::shared_ptr<const StoredCodes>& stored);
  /// Adds what only NVFP4's quantizers have: 4over6, and a tensor scale for each row.
  absl::Status AddNvfp4(const CodeFormat& format, const std::shared_ptr<const StoredCodes>& stored);
  /// Adds the codes as those of transformed values, under NVFP4's scale rules.
  absl::Status AddHadamard(const CodeFormat& format, const StoredCodes& stored);
  /// Adds the ways to scale elements that go with a rule.
  void AddGroups(const CodeFormat& format, const std::shared_ptr<const StoredCodes>& stored,
                 ScaledBlocks scaled);
  void AddGroup(ScaledGroup group) {
    ++described_;
    AddOrJoin(std::move(group), groups_);
  }
  /// Adds every way to scale that the shapes allow. INVALID_ARGUMENT if there is none.
  absl::Status AddAll();
  /// Keeps the ways to scale that fit a sample of the elements best.
  void KeepBestGroups();
  /// Counts over every step-th element.
  RoundingCounts Count(const ScaledGroup& group, int64_t step) const;

  const ExplainCodesRequest& request_;
  const ExecutionContext& context_;
  std::vector<float> source_;  // [M][K]
  Tensor padded_source_;       // The same for 4over6: PaddedToBlocks.
  int64_t described_ = 0;      // Ways to scale, before those that are alike are joined.
  std::vector<ScaledGroup> groups_;
};

absl::Status RefuseTensor(const char* field, const Tensor& tensor, const std::string& rule) {
  return Refuse(field, tensor.has_value() ? TensorText(tensor) : "absent", rule);
}

absl::StatusOr<std::vector<Tensor>> CodesExplainer::LogicalScales(bool transposed) const {
  const Tensor& given = request_.scale_inv;
  if (request_.scale_layout == ScaleLayout::kLogical) return std::vector<Tensor>{given};
  std::vector<Tensor> logical;
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (!traits.has_blocks()) continue;
    const DType dtype = ScaleDType(traits.scales);
    if (!IsScaleDType(given.dtype(), dtype)) continue;
    QG_ASSIGN_OR_RETURN(const Tensor scales,
                        Tensor::FromBytes(dtype, given.shape(), given.bytes()));
    for (const int block_dim : {1, 2}) {
      // A micro format stores the scales of tiles as it stores those of lines.
      if (block_dim == 2 && traits.is_micro) continue;
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        const bool is_transposed = usage == Usage::kColumnwise && traits.turns_columnwise;
        if (is_transposed != transposed) continue;
        const ScaleArray array = {traits.format, block_dim, usage, request_.source.rows(),
                                  request_.source.columns()};
        if (!CheckScales(scales, array, request_.scale_layout).ok()) continue;
        QG_ASSIGN_OR_RETURN(Tensor converted, ConvertScales(scales, array, request_.scale_layout,
                                                            ScaleLayout::kLogical));
        const bool is_new = std::none_of(logical.begin(), logical.end(), [&](const Tensor& known) {
          return known.dtype() == converted.dtype() && known.shape() == converted.shape() &&
                 std::ranges::equal(known.bytes(), converted.bytes());
        });
        if (is_new) logical.push_back(std::move(converted));
      }
    }
  }
  return logical;
}

absl::StatusOr<std::vector<StoredCodes>> CodesExplainer::Orient(const CodeFormat& format,
                                                                bool transposed) const {
  StoredCodes stored;
  stored.transposed = transposed;
  const int64_t m = request_.source.rows(), k = request_.source.columns();
  stored.rows = transposed ? k : m;
  stored.columns = transposed ? m : k;
  const bool is_packed = format.dtype == DType::kF4E2M1x2;
  const int64_t bytes_per_row = is_packed ? (stored.columns + 1) / 2 : stored.columns;
  if (request_.codes.rows() != stored.rows || request_.codes.columns() != bytes_per_row) {
    return std::vector<StoredCodes>();
  }
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
  SetAmaxes(stored);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> scales, LogicalScales(transposed));
  std::vector<StoredCodes> oriented(scales.size(), stored);
  for (size_t i = 0; i < scales.size(); ++i) {
    oriented[i].scale_rows =
        scales[i].rank() == 2 ? scales[i].shape()[0] : scales[i].element_count();
    oriented[i].scale_columns = scales[i].rank() == 2 ? scales[i].shape()[1] : 1;
    for (int64_t at = 0; at < scales[i].element_count(); ++at) {
      oriented[i].scales.push_back(ScaleBits(scales[i], at));
    }
  }
  return oriented;
}

void CodesExplainer::SetAmaxes(StoredCodes& stored) const {
  if (!request_.amax.has_value()) {
    stored.row_amaxes = TileAmaxes(stored, {1, stored.columns, 1, stored.columns});
  } else if (request_.amax.element_count() == 1) {
    stored.row_amaxes.clear();
    stored.global_amax = *request_.amax.as<float>();
    return;
  } else {
    stored.row_amaxes.assign(request_.amax.as<float>(), request_.amax.as<float>() + stored.rows);
  }
  stored.global_amax = *std::max_element(stored.row_amaxes.begin(), stored.row_amaxes.end());
}

ScaledBlocks CodesExplainer::Scale(const StoredCodes& stored, const CodeBlocks& blocks,
                                   const NamedScaleRule& rule, DType element,
                                   bool row_scaled) const {
  ScaledBlocks scaled{std::string(rule.name), "", blocks, BlockAmaxes(stored, blocks), {}, 0};
  if (row_scaled) scaled.rule.insert(scaled.rule.find(':'), kRowScaledText);
  scaled.results.resize(stored.scales.size());
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    for (int64_t column = 0; column < stored.scale_columns; ++column) {
      const int64_t at = row * stored.scale_columns + column;
      const float global_amax =
          row_scaled ? stored.row_amaxes[row * blocks.rows] : stored.global_amax;
      scaled.results[at] =
          rule.apply({scaled.amaxes[at], global_amax, element, request_.source.dtype()});
      scaled.matches += scaled.results[at].scale_inv_bits == stored.scales[at];
    }
  }
  return scaled;
}

absl::StatusOr<ScaledBlocks> CodesExplainer::ScaleByFourOverSix(const StoredCodes& stored,
                                                                const CodeBlocks& blocks,
                                                                const FourOverSixKnobs& knobs,
                                                                bool row_scaled) const {
  ScaledBlocks scaled{absl::StrCat("two_level, ", knobs.Text(), row_scaled ? kRowScaledText : ""),
                      "Transformer Engine, NVFP4 with 4over6",
                      blocks,
                      BlockAmaxes(stored, blocks),
                      {},
                      0};
  QG_ASSIGN_OR_RETURN(const Tensor codes,
                      FourOverSixScaleCodes(
                          padded_source_, knobs, blocks.amax_rows == 1 ? 1 : 2,
                          stored.transposed ? Usage::kColumnwise : Usage::kRowwise,
                          row_scaled ? std::nullopt : std::optional(stored.global_amax), context_));
  scaled.results.resize(stored.scales.size());
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    const float amax = row_scaled ? stored.row_amaxes[row] : stored.global_amax;
    const Nvfp4TensorScale tensor =
        MakeNvfp4TensorScale(amax, knobs.e4m3_max, ScaleRule::kTwoLevel);
    for (int64_t column = 0; column < stored.scale_columns; ++column) {
      const int64_t at = row * stored.scale_columns + column;
      const uint8_t code = codes.as<uint8_t>()[row * codes.columns() + column];
      const float factor = BoundedReciprocal(DecodeFloat<E4M3>(code) * tensor.decode);
      scaled.results[at] = {code, {factor}, IsE4m3AtBound(code, 0)};
      scaled.matches += code == stored.scales[at];
    }
  }
  return scaled;
}

RoundingCounts CodesExplainer::Count(const ScaledGroup& group, int64_t step) const {
  const StoredCodes& stored = *group.stored;
  const ScaledBlocks& scaled = group.scaled();
  const ElementScaling scaling = group.by.front().scaling;
  const bool divides = Divides(scaling);
  RoundingCounts counts;
  for (int64_t at = 0; at < stored.rows * stored.columns; at += step) {
    const int64_t row = at / stored.columns, column = at % stored.columns;
    const float factor = scaled
                             .results[row / scaled.blocks.rows * stored.scale_columns +
                                      column / scaled.blocks.columns]
                             .factor(scaling);
    const float value = stored.values[at];
    counts.Add(*group.format, group.overflow, divides ? value / factor : value * factor,
               stored.codes[at], at);
  }
  return counts;
}

void CodesExplainer::AddGroups(const CodeFormat& format,
                               const std::shared_ptr<const StoredCodes>& stored,
                               ScaledBlocks scaled) {
  const auto shared = std::make_shared<const ScaledBlocks>(std::move(scaled));
  for (int i = 0; i < kScalingCount; ++i) {
    const auto scaling = static_cast<ElementScaling>(i);
    if (std::all_of(shared->results.begin(), shared->results.end(),
                    [&](const ScaleRuleResult& result) { return result.factor(scaling) == 0; })) {
      continue;
    }
    AddGroup({stored, &format, {{shared, scaling}}, Overflow::kSaturate});
    if (format.has_nan) AddGroup({stored, &format, {{shared, scaling}}, Overflow::kNan});
  }
}

absl::Status CodesExplainer::AddTrials(const CodeFormat& format,
                                       const std::shared_ptr<const StoredCodes>& stored) {
  bool gives_scales = false;
  for (const CodeBlocks& blocks : BlocksThatFit(*stored)) {
    for (const NamedScaleRule& rule : AllScaleRules()) {
      const bool fits =
          IsScaleDType(request_.scale_inv.dtype(), rule.scale) && rule.fits(format.dtype);
      if (!fits) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      ScaledBlocks scaled = Scale(*stored, blocks, rule, format.dtype);
      gives_scales |= scaled.matches == static_cast<int64_t>(scaled.results.size());
      AddGroups(format, stored, std::move(scaled));
    }
  }
  // A single scale that no rule makes of this source may be one that was given.
  const bool is_single = stored->scales.size() == 1 && request_.scale_inv.dtype() == DType::kF32;
  if (!is_single || gives_scales || !IsFp8(format.dtype)) return absl::OkStatus();
  const float scale_inv = std::bit_cast<float>(stored->scales.front());
  if (!(scale_inv > 0) || !std::isnormal(scale_inv) || !std::isnormal(1.0f / scale_inv)) {
    return absl::OkStatus();
  }
  const CodeBlocks tensor = {stored->rows, stored->columns, stored->rows, stored->columns};
  AddGroups(format, stored,
            {std::string(kGivenScaleText),
             "",
             tensor,
             BlockAmaxes(*stored, tensor),
             {GivenScale(scale_inv)},
             1});
  return absl::OkStatus();
}

/// The blocks of NVFP4's quantizers: rows of 16, and tiles whose scale is stored for each of their
/// rows.
bool AreNvfp4Blocks(const CodeBlocks& blocks) {
  return blocks.rows == 1 && blocks.columns == 16 &&
         (blocks.amax_rows == 1 || blocks.amax_rows == 16);
}

absl::Status CodesExplainer::AddNvfp4(const CodeFormat& format,
                                      const std::shared_ptr<const StoredCodes>& stored) {
  for (const CodeBlocks& blocks : BlocksThatFit(*stored)) {
    if (!AreNvfp4Blocks(blocks)) continue;
    for (const bool row_scaled : {false, true}) {
      if (row_scaled && (blocks.amax_rows != 1 || stored->row_amaxes.empty())) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      // Row scales go only with the usual rule.
      if (row_scaled) {
        AddGroups(format, stored, Scale(*stored, blocks, TwoLevelRule(), format.dtype, true));
      }
      if (row_scaled && stored->transposed) continue;  // Row-scaled 4over6 is never transposed.
      for (const FourOverSixKnobs& knobs : kAllFourOverSixKnobs) {
        QG_ASSIGN_OR_RETURN(ScaledBlocks scaled,
                            ScaleByFourOverSix(*stored, blocks, knobs, row_scaled));
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
  StoredCodes transformed = stored;
  transformed.hadamard = true;
  transformed.values = HadamardTransformed(stored.values, context_);
  SetAmaxes(transformed);
  const auto shared = std::make_shared<const StoredCodes>(std::move(transformed));
  for (const CodeBlocks& blocks : BlocksThatFit(*shared)) {
    if (!AreNvfp4Blocks(blocks) || blocks.amax_rows != 1) continue;
    for (const NamedScaleRule& rule : AllScaleRules()) {
      if (rule.scale != DType::kF8E4M3 || !rule.fits(format.dtype)) continue;
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      AddGroups(format, shared, Scale(*shared, blocks, rule, format.dtype));
    }
  }
  return absl::OkStatus();
}

absl::Status CodesExplainer::AddAll() {
  for (const CodeFormat& format : AllCodeFormats()) {
    if (!IsElementDType(request_.codes.dtype(), format.dtype)) continue;
    for (const bool transposed : {false, true}) {
      if (transposed && request_.source.rows() == 1) continue;  // The same orientation.
      QG_ASSIGN_OR_RETURN(std::vector<StoredCodes> oriented, Orient(format, transposed));
      for (StoredCodes& one : oriented) {
        const auto stored = std::make_shared<const StoredCodes>(std::move(one));
        QG_RETURN_IF_ERROR(AddTrials(format, stored));
        const bool may_be_nvfp4 = format.dtype == DType::kF4E2M1x2 &&
                                  IsScaleDType(request_.scale_inv.dtype(), DType::kF8E4M3);
        if (!may_be_nvfp4) continue;
        QG_RETURN_IF_ERROR(AddNvfp4(format, stored));
        QG_RETURN_IF_ERROR(AddHadamard(format, *stored));
      }
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
  const int64_t step = std::max<int64_t>(1, request_.source.element_count() / kSampleElements);
  ParallelFor(context_, static_cast<int64_t>(groups_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RoundingCounts counts = Count(groups_[i], step);
      int64_t best = 0;
      for (const RuleCount& rule : counts.rules) best = std::max(best, rule.matches);
      // Neighbours count too, since stochastic rounding gives most codes of no single rule.
      groups_[i].sample_score = best + counts.neighbours + counts.of(counts.BestZeroSign()).matches;
    }
  });
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const ScaledGroup& left, const ScaledGroup& right) {
                     return std::pair(left.sample_score, left.scaled().matches) >
                            std::pair(right.sample_score, right.scaled().matches);
                   });
  groups_.resize(std::min(groups_.size(), kGroupsKept));
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

absl::StatusOr<CodesExplanation> CodesExplainer::Explain() {
  QG_RETURN_IF_ERROR(CheckExplainCodes(request_));
  const ScopedIeeeEnvironment ieee;
  QG_ASSIGN_OR_RETURN(const Tensor f32, CastTensor(request_.source, DType::kF32, context_));
  source_.assign(f32.as<float>(), f32.as<float>() + f32.element_count());
  QG_ASSIGN_OR_RETURN(padded_source_, PaddedToBlocks(f32));
  QG_RETURN_IF_ERROR(AddAll());
  CodesExplanation explanation;
  explanation.tried = described_ * (kCodeRoundingCount + kStochasticCount);
  // A sample rules out most ways to scale; the others are counted on all elements.
  KeepBestGroups();
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  std::vector<RoundingCounts> counts(groups_.size());
  ParallelFor(context_, static_cast<int64_t>(groups_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) counts[i] = Count(groups_[i], 1);
  });
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
  if (!candidates.front().is_entire()) rejected = AddStochastic(groups_, counts, candidates);
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
      DTypeBytes(request.codes.dtype()) != 1) {
    return RefuseTensor("codes", request.codes, "must be given, of FP8, FP6, packed FP4 or u8");
  }
  if (!request.scale_inv.has_value() || request.scale_inv.rank() > 2) {
    return RefuseTensor("scale_inv", request.scale_inv, "must be given, with a rank of at most 2");
  }
  const DType scale = request.scale_inv.dtype();
  if (scale != DType::kF32 && DTypeBytes(scale) != 1) {
    return RefuseTensor("scale_inv", request.scale_inv, "must be f32, f8_e8m0, f8_e4m3 or u8");
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
  return CodesExplainer(request, context).Explain();
}

}  // namespace quantgate
