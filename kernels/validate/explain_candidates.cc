#include "kernels/validate/explain_candidates.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

template <typename Value>
int64_t CountDistinct(std::vector<Value> values) {
  std::sort(values.begin(), values.end());
  return std::unique(values.begin(), values.end()) - values.begin();
}

std::string BlockText(const StoredCodes& stored, const CodeBlocks& blocks) {
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

std::string ElementRuleText(const ScaledGroup& group, const RoundingCounts& counts,
                            std::string_view rounding) {
  std::string text =
      absl::StrCat(std::string(ScalingText(group.scaling)), ", ", std::string(rounding), ", ",
                   group.overflow == Overflow::kSaturate ? "saturate" : "overflow to NaN");
  const ZeroSign zeros = counts.BestZeroSign();
  if (zeros == ZeroSign::kPositive) absl::StrAppend(&text, ", zeros positive");
  if (zeros == ZeroSign::kNegative) absl::StrAppend(&text, ", zeros negative");
  return text;
}

/// The matrix indices of an element of the codes.
ElementAt Location(const StoredCodes& stored, const FirstMiss& first) {
  const int64_t row = first.at / stored.columns, column = first.at % stored.columns;
  return {stored.transposed ? column : row, stored.transposed ? row : column, first.given,
          first.expected};
}

/// What all candidates of a group have in common.
CodesCandidate CommonOf(const ScaledGroup& group, const RoundingCounts& counts) {
  const StoredCodes& stored = *group.stored;
  const ScaledBlocks& scaled = *group.scaled;
  CodesCandidate candidate;
  candidate.element = group.format->name;
  candidate.block = BlockText(stored, scaled.blocks);
  candidate.scale_rule = scaled.rule;
  candidate.scale_matches = scaled.matches;
  candidate.scale_count = static_cast<int64_t>(scaled.results.size());
  candidate.code_count = counts.count;
  CodesEvidence& evidence = candidate.evidence;
  evidence.scale_distinct = CountDistinct(stored.scales);
  evidence.amax_distinct = CountDistinct(TileAmaxes(stored, scaled.blocks));
  evidence.between_count = counts.between;
  evidence.tie_count = counts.ties;
  evidence.overflow_count = counts.overflowing;
  evidence.zero_telling_count = counts.of(counts.BestZeroSign()).telling;
  return candidate;
}

void SetFirstDifference(const ScaledGroup& group, const RoundingCounts& counts,
                        const FirstMiss& of_rule, CodesCandidate& candidate) {
  const FirstMiss& of_zero = counts.of(counts.BestZeroSign()).first;
  const FirstMiss* first = &of_rule;
  if (first->at < 0 || (of_zero.at >= 0 && of_zero.at < first->at)) first = &of_zero;
  if (first->at >= 0) candidate.first_difference = Location(*group.stored, *first);
}

/// Those whose rules are known saturate.
std::string LibraryOf(const ScaledGroup& group, const RoundingCounts& counts,
                      std::optional<CodeRounding> rounding) {
  if (group.overflow != Overflow::kSaturate && counts.overflowing > 0) return "";
  return std::string(group.scaled->library.empty()
                         ? QuantizerName(group.scaled->rule, group.scaling, rounding)
                         : group.scaled->library);
}

std::vector<std::string> UntoldRoundings(const RoundingCounts& counts) {
  std::vector<std::string> untold;
  for (int i = 0; i < kCodeRoundingCount; ++i) {
    const auto rounding = static_cast<CodeRounding>(i);
    if (rounding == CodeRounding::kNearestEven || !IsNearest(rounding)) continue;
    if (counts.of(rounding).telling == 0) untold.emplace_back(CodeRoundingName(rounding));
  }
  return untold;
}

}  // namespace

std::vector<float> TileAmaxes(const StoredCodes& stored, const CodeBlocks& blocks) {
  const int64_t tile_columns = (stored.columns + blocks.amax_columns - 1) / blocks.amax_columns;
  const int64_t tile_rows = (stored.rows + blocks.amax_rows - 1) / blocks.amax_rows;
  std::vector<float> amaxes(tile_rows * tile_columns, 0.0f);
  for (int64_t row = 0; row < stored.rows; ++row) {
    float* tiles = amaxes.data() + row / blocks.amax_rows * tile_columns;
    for (int64_t column = 0; column < stored.columns; ++column) {
      float& tile = tiles[column / blocks.amax_columns];
      const float magnitude = std::fabs(stored.values[row * stored.columns + column]);
      if (magnitude > tile) tile = magnitude;  // False for NaN.
    }
  }
  return amaxes;
}

std::vector<CodesCandidate> DeterministicOf(const ScaledGroup& group,
                                            const RoundingCounts& counts) {
  std::vector<CodesCandidate> candidates;
  const CodesCandidate common = CommonOf(group, counts);
  for (int i = 0; i < kCodeRoundingCount; ++i) {
    const auto rounding = static_cast<CodeRounding>(i);
    const RuleCount& rule = counts.of(rounding);
    const bool is_usual = rounding == CodeRounding::kNearestEven;
    if (!is_usual && (group.is_nearest_even || rule.telling == 0)) continue;
    CodesCandidate& candidate = candidates.emplace_back(common);
    candidate.element_rule = ElementRuleText(group, counts, CodeRoundingName(rounding));
    candidate.scale_origin = LibraryOf(group, counts, rounding);
    candidate.code_matches = rule.matches + counts.of(counts.BestZeroSign()).matches;
    candidate.evidence.telling_count = rule.telling;
    if (is_usual && !group.is_nearest_even) {
      candidate.evidence.untold_roundings = UntoldRoundings(counts);
    }
    candidate.evidence.step_up_count = rule.step_up;
    candidate.evidence.step_down_count = rule.step_down;
    candidate.evidence.off_tie_max = rule.off_tie_max;
    SetFirstDifference(group, counts, rule.first, candidate);
  }
  return candidates;
}

std::vector<CodesCandidate> StochasticOf(const ScaledGroup& group, const RoundingCounts& counts) {
  if (group.is_nearest_even || group.overflow != Overflow::kSaturate) return {};
  std::vector<CodesCandidate> candidates;
  for (const auto& [name, spread] :
       {std::pair("stochastic (either neighbour)", &counts.fraction_chance),
        {"stochastic by 8 random bits (either neighbour)", &counts.eight_bits}}) {
    CodesCandidate& candidate = candidates.emplace_back(CommonOf(group, counts));
    candidate.is_deterministic = false;
    candidate.element_rule = ElementRuleText(group, counts, name);
    candidate.scale_origin = LibraryOf(group, counts, std::nullopt);
    candidate.code_matches = counts.neighbours + counts.of(counts.BestZeroSign()).matches;
    candidate.evidence.spread = spread->Result();
    SetFirstDifference(group, counts, counts.first_stranger, candidate);
  }
  return candidates;
}

void SortBestFirst(std::vector<CodesCandidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const CodesCandidate& left, const CodesCandidate& right) {
                     const auto key = [](const CodesCandidate& c) {
                       const double matched = double(c.code_matches) / double(c.code_count) +
                                              double(c.scale_matches) / double(c.scale_count);
                       return std::tuple(c.is_entire(), matched, c.is_deterministic);
                     };
                     return key(left) > key(right);
                   });
}

std::set<std::string> LibrariesOf(const std::vector<CodesCandidate>& candidates) {
  std::set<std::string> names;
  for (const CodesCandidate& candidate : candidates) {
    if (candidate.is_established && !candidate.scale_origin.empty()) {
      names.insert(candidate.scale_origin);
    }
  }
  return names;
}

}  // namespace quantgate
