#include "kernels/validate/explain/explain_candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace {

template <typename Value>
int64_t CountDistinct(std::vector<Value> values) {
  std::sort(values.begin(), values.end());
  return std::unique(values.begin(), values.end()) - values.begin();
}

std::string BlockText(const StoredCodes& stored, const CodeBlocks& blocks) {
  const bool is_replicated =
      blocks.amax_rows != blocks.rows || blocks.amax_columns != blocks.columns;
  const std::string shape = absl::StrCat(blocks.amax_rows, "x", blocks.amax_columns);
  if (is_replicated) return absl::StrCat(shape, " replicated");
  const bool has_all_rows = blocks.rows >= stored.rows;
  const bool has_all_columns = blocks.columns >= stored.columns;
  const char* whole = has_all_rows && has_all_columns       ? "tensor"
                      : has_all_columns && blocks.rows == 1 ? "one per row"
                      : has_all_rows && blocks.columns == 1 ? "one per column"
                                                            : "";
  if (whole[0] == '\0') return shape;
  // A whole dim may be a block too.
  const int64_t length = std::max(blocks.rows, blocks.columns);
  const bool is_block = std::min(blocks.rows, blocks.columns) == 1 || blocks.rows == blocks.columns;
  const bool has_length =
      std::find(kBlockLengths.begin(), kBlockLengths.end(), length) != kBlockLengths.end();
  return is_block && has_length ? absl::StrCat(whole, " or ", shape) : whole;
}

/// The names that `name_of` gives the descriptions, each once.
template <typename NameOf>
std::vector<std::string> NamesOf(const std::vector<ScaledBy>& by, NameOf name_of) {
  std::vector<std::string> names;
  for (const ScaledBy& one : by) {
    std::string name = name_of(one);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

/// Joins the names of the scale rules, the first with its formula, the others without.
std::string ScaleRuleText(const std::vector<ScaledBy>& by) {
  std::vector<std::string> names =
      NamesOf(by, [](const ScaledBy& one) { return one.scaled->rule; });
  for (size_t i = 1; i < names.size(); ++i)
    names[i].resize(std::min(names[i].find(": "), names[i].size()));
  return absl::StrJoin(names, "; also ");
}

std::string ElementRuleText(const ScaledGroup& group, const std::vector<ScaledBy>& by,
                            const RoundingCounts& counts, std::string_view rounding) {
  std::string text = absl::StrCat(
      absl::StrJoin(
          NamesOf(by, [](const ScaledBy& one) { return std::string(ScalingText(one.scaling)); }),
          " or "),
      ", ", std::string(rounding), ", ",
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

void SetFirstDifference(const ScaledGroup& group, const RoundingCounts& counts,
                        const FirstMiss& of_rule, CodesCandidate& candidate) {
  const FirstMiss& of_zero = counts.of(counts.BestZeroSign()).first;
  const FirstMiss* first = &of_rule;
  if (first->at < 0 || (of_zero.at >= 0 && of_zero.at < first->at)) first = &of_zero;
  if (first->at >= 0) candidate.first_difference = Location(*group.stored, *first);
}

std::string OrientationText(const StoredCodes& stored) {
  return absl::StrCat(stored.transposed ? " of the transpose" : "",
                      stored.hadamard ? ", Hadamard-transformed (disable_rht=false)" : "");
}

/// Whether elements are scaled alike: dividing by a power of two is multiplying by its inverse.
bool ScalesAlike(float one, bool one_divides, float other, bool other_divides) {
  if (one_divides == other_divides) {
    return std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other);
  }
  const float divisor = one_divides ? one : other, factor = one_divides ? other : one;
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5f && std::isnormal(1.0f / divisor) &&
         1.0f / divisor == factor;
}

/// Whether two ways are one on this data: no scale and no element differs, however rounded.
bool AreOneWay(const ScaledGroup& one, const ScaledGroup& other) {
  if (one.stored != other.stored || one.format != other.format || one.overflow != other.overflow) {
    return false;
  }
  // Their scale shapes can differ only in the lengths of blocks that cover a whole dim.
  const ScaledBlocks &a = one.scaled(), &b = other.scaled();
  const StoredCodes& stored = *one.stored;
  if (std::min(a.blocks.rows, stored.rows) != std::min(b.blocks.rows, stored.rows) ||
      std::min(a.blocks.columns, stored.columns) != std::min(b.blocks.columns, stored.columns)) {
    return false;
  }
  const ElementScaling by_a = one.by.front().scaling, by_b = other.by.front().scaling;
  return std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(),
                    [&](const ScaleRuleResult& x, const ScaleRuleResult& y) {
                      return x.scale_inv_bits == y.scale_inv_bits &&
                             ScalesAlike(x.factor(by_a), Divides(by_a), y.factor(by_b),
                                         Divides(by_b));
                    });
}

/// Counts the distinct amaxes whose scales the rule computes, and those whose scale is at a bound
/// of the rule. Of several equivalent rules the one with the fewest of the first kind counts.
std::pair<int64_t, int64_t> DistinctAmaxes(const std::vector<ScaledBy>& by) {
  std::optional<std::pair<int64_t, int64_t>> fewest;
  for (const ScaledBy& one : by) {
    std::vector<float> amaxes[2];
    for (size_t i = 0; i < one.scaled->amaxes.size(); ++i) {
      amaxes[one.scaled->results[i].is_at_bound ? 1 : 0].push_back(one.scaled->amaxes[i]);
    }
    const std::pair distinct(CountDistinct(std::move(amaxes[0])),
                             CountDistinct(std::move(amaxes[1])));
    if (!fewest.has_value() || distinct.first < fewest->first) fewest = distinct;
  }
  return *fewest;
}

/// The candidate of a group with this rounding (absent: stochastic), without results of the
/// rounding. Absent if no description of the group goes with the rounding.
std::optional<CodesCandidate> CandidateOf(const ScaledGroup& group, const RoundingCounts& counts,
                                          std::optional<CodeRounding> rounding,
                                          std::string_view rounding_name) {
  std::vector<ScaledBy> by;
  for (const ScaledBy& one : group.by) {
    if (!one.is_nearest_even || rounding == CodeRounding::kNearestEven) by.push_back(one);
  }
  if (by.empty()) return std::nullopt;
  const StoredCodes& stored = *group.stored;
  const ScaledBlocks& scaled = *by.front().scaled;
  CodesCandidate candidate;
  candidate.element = group.format->name;
  candidate.block = absl::StrJoin(
      NamesOf(by,
              [&](const ScaledBy& one) {
                return absl::StrCat(BlockText(stored, one.scaled->blocks), OrientationText(stored));
              }),
      " or ");
  candidate.scale_rule = ScaleRuleText(by);
  candidate.element_rule = ElementRuleText(group, by, counts, rounding_name);
  candidate.has_other_names = by.size() > 1;
  for (const ScaledBy& one : by) {
    const std::string_view library = LibraryOf(group, one, counts, rounding);
    if (!library.empty()) candidate.libraries.emplace(library);
  }
  candidate.scale_matches = scaled.matches;
  candidate.scale_count = static_cast<int64_t>(scaled.results.size());
  candidate.code_count = counts.count;
  CodesEvidence& evidence = candidate.evidence;
  evidence.scale_distinct = CountDistinct(stored.scales);
  std::tie(evidence.amax_distinct, evidence.amax_bound_count) = DistinctAmaxes(by);
  evidence.between_count = counts.between;
  evidence.tie_count = counts.ties;
  evidence.overflow_count =
      counts.of(rounding.value_or(CodeRounding::kNearestEven)).overflow_telling;
  evidence.zero_telling_count = counts.of(counts.BestZeroSign()).telling;
  return candidate;
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

void AddOrJoin(ScaledGroup group, std::vector<ScaledGroup>& groups) {
  const auto same = std::find_if(groups.begin(), groups.end(),
                                 [&](const ScaledGroup& known) { return AreOneWay(known, group); });
  if (same == groups.end()) {
    groups.push_back(std::move(group));
  } else {
    same->by.insert(same->by.end(), group.by.begin(), group.by.end());
  }
}

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
  for (int i = 0; i < kCodeRoundingCount; ++i) {
    const auto rounding = static_cast<CodeRounding>(i);
    const RuleCount& rule = counts.of(rounding);
    const bool is_usual = rounding == CodeRounding::kNearestEven;
    if (!is_usual && rule.telling == 0) continue;
    // Saturation gives the same codes and is a candidate already.
    if (group.overflow == Overflow::kNan && rule.overflow_telling == 0) continue;
    std::optional<CodesCandidate> made =
        CandidateOf(group, counts, rounding, CodeRoundingName(rounding));
    if (!made.has_value()) continue;
    CodesCandidate& candidate = candidates.emplace_back(*std::move(made));
    candidate.code_matches = rule.matches + counts.of(counts.BestZeroSign()).matches;
    candidate.evidence.telling_count = rule.telling;
    if (is_usual && !group.by.front().is_nearest_even) {
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
  if (group.overflow != Overflow::kSaturate) return {};
  std::vector<CodesCandidate> candidates;
  for (const auto& [name, spread] :
       {std::pair("stochastic (either neighbour)", &counts.fraction_chance),
        {"stochastic by 8 random bits (either neighbour)", &counts.eight_bits}}) {
    std::optional<CodesCandidate> made = CandidateOf(group, counts, std::nullopt, name);
    if (!made.has_value()) continue;
    CodesCandidate& candidate = candidates.emplace_back(*std::move(made));
    candidate.is_deterministic = false;
    candidate.code_matches = counts.neighbours + counts.of(counts.BestZeroSign()).matches;
    candidate.evidence.spread = spread->Result();
    SetFirstDifference(group, counts, counts.first_non_neighbour, candidate);
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
    if (candidate.is_established)
      names.insert(candidate.libraries.begin(), candidate.libraries.end());
  }
  return names;
}

}  // namespace quantgate
