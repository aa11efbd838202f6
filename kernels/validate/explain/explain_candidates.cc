#include "kernels/validate/explain/explain_candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/validate/explain/explain_cause.h"

namespace quantgate {
namespace {

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
  std::string text =
      absl::StrCat(absl::StrJoin(NamesOf(by,
                                         [&](const ScaledBy& one) {
                                           return ScalingText(one.scaling, group.stored->source);
                                         }),
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
                      stored.hadamard ? ", Hadamard-transformed (disable_rht=false)" : "",
                      stored.scale_order);
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
  if (std::min(a.blocks().rows, stored.rows) != std::min(b.blocks().rows, stored.rows) ||
      std::min(a.blocks().columns, stored.columns) !=
          std::min(b.blocks().columns, stored.columns)) {
    return false;
  }
  const ElementScaling by_a = one.by.front().scaling, by_b = other.by.front().scaling;
  if (a.bits != b.bits) return false;
  const ElementScaler scaler_a(by_a, stored.source), scaler_b(by_b, stored.source);
  if (scaler_a.type != scaler_b.type || scaler_a.is_flushed != scaler_b.is_flushed) return false;
  return std::ranges::equal(a.factors_of(by_a), b.factors_of(by_b), [&](float x, float y) {
    return ScalesAlike(x, scaler_a.divides, y, scaler_b.divides);
  });
}

/// Counts distinct values among many that are mostly alike: a table of places, open to the next.
class DistinctValues {
 public:
  void Add(uint32_t value) {
    if (places_[PlaceOf(value)] == kTaken + value) return;
    places_[PlaceOf(value)] = kTaken + value;
    if (++count_ * 2 > static_cast<int64_t>(places_.size())) Grow();
  }
  int64_t count() const { return count_; }

 private:
  static constexpr uint64_t kTaken = uint64_t(1) << 32;  ///< Added to a value in a place; 0: free.

  size_t PlaceOf(uint32_t value) const {
    const size_t mask = places_.size() - 1;
    size_t place = value * 0x9E3779B97F4A7C15u >> 32 & mask;
    while (places_[place] != 0 && places_[place] != kTaken + value) place = (place + 1) & mask;
    return place;
  }
  void Grow() {
    const std::vector<uint64_t> known = std::exchange(places_, {});
    places_.resize(known.size() * 4);
    for (const uint64_t taken : known) {
      if (taken != 0) places_[PlaceOf(static_cast<uint32_t>(taken))] = taken;
    }
  }

  int64_t count_ = 0;
  std::vector<uint64_t> places_ = std::vector<uint64_t>(1024);
};

/// Of several equivalent rules the one with the fewest amaxes whose scales it computes counts.
std::pair<int64_t, int64_t> DistinctAmaxes(const std::vector<ScaledBy>& by) {
  std::pair<int64_t, int64_t> fewest(by.front().scaled->amax_distinct,
                                     by.front().scaled->amax_bound_count);
  for (const ScaledBy& one : by) {
    if (one.scaled->amax_distinct < fewest.first) {
      fewest = {one.scaled->amax_distinct, one.scaled->amax_bound_count};
    }
  }
  return fewest;
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
  if (stored.packing == CodePacking::kOneToAByte) candidate.element += ", one to a byte";
  if (stored.packing == CodePacking::kSixBits) candidate.element += ", four in three bytes";
  candidate.block =
      absl::StrJoin(NamesOf(by,
                            [&](const ScaledBy& one) {
                              return absl::StrCat(BlockText(stored, one.scaled->blocks()),
                                                  OrientationText(stored));
                            }),
                    " or ");
  candidate.scale_rule = ScaleRuleText(by);
  candidate.element_rule = ElementRuleText(group, by, counts, rounding_name);
  candidate.has_other_names = by.size() > 1;
  // Ties away from zero are a knob of this build.
  const bool is_own_rounding = !rounding.has_value() || *rounding == CodeRounding::kNearestEven ||
                               *rounding == CodeRounding::kNearestAway;
  for (const ScaledBy& one : by) {
    candidate.is_own_rule |= is_own_rounding && IsOwnRule(one.scaled->rule, one.scaling);
    for (const std::string_view library : LibrariesOf(group, one, counts, rounding)) {
      candidate.libraries.emplace(library);
    }
  }
  candidate.scale_matches = scaled.matches;
  candidate.scale_count = static_cast<int64_t>(scaled.bits.size());
  candidate.code_count = counts.count;
  CodesEvidence& evidence = candidate.evidence;
  evidence.scale_distinct = stored.scale_distinct;
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

/// Adds elements to counts.
struct ElementCounter {
  const ElementScaler scaler;
  const bool has_no_nan;
  RoundingTally tally;

  ElementCounter(const ScaledGroup& group, bool counts_spread)
      : scaler(group.by.front().scaling, group.stored->source),
        has_no_nan(scaler.is_flushed && !group.format->has_nan),
        tally(*group.format, group.overflow, counts_spread) {}
  void operator()(float factor, float value, uint8_t code, int64_t at) {
    float scaled = scaler(value, factor);
    if (has_no_nan && scaled != scaled) scaled = -0.0f;  // qwix: 0 / 0 is the code of -0.
    tally.Add(scaled, code, at);
  }
};

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

TileMaxima MaximaOfTiles(const CodedElements& elements, int64_t tile_rows, int64_t tile_columns,
                         const ExecutionContext& context) {
  const int64_t across = (elements.columns + tile_columns - 1) / tile_columns;
  const int64_t down = (elements.rows + tile_rows - 1) / tile_rows;
  // Pieces of at most 64 rows of a tile, so that one tile is shared among threads too.
  constexpr int64_t kRowsAtOnce = 64;
  const int64_t pieces_per_tile =
      (std::min(tile_rows, elements.rows) + kRowsAtOnce - 1) / kRowsAtOnce;
  std::vector<uint32_t> of_pieces(down * pieces_per_tile * across, 0);  // Bits of magnitudes.
  ParallelFor(context, down * pieces_per_tile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      uint32_t* const tiles = of_pieces.data() + piece * across;
      const int64_t tile_end = std::min((piece / pieces_per_tile + 1) * tile_rows, elements.rows);
      const int64_t first =
          piece / pieces_per_tile * tile_rows + piece % pieces_per_tile * kRowsAtOnce;
      for (int64_t row = first; row < std::min(first + kRowsAtOnce, tile_end); ++row) {
        const float* const values = elements.values.data() + row * elements.columns;
        for (int64_t tile = 0; tile < across; ++tile) {
          const int64_t stop = std::min((tile + 1) * tile_columns, elements.columns);
          const uint32_t known = tiles[tile] & 0x7FFFFFFF, has_nan = tiles[tile] >> 31;
          const auto most_of = [&](uint32_t limit) {
            uint32_t most = known;
            for (int64_t column = tile * tile_columns; column < stop; ++column) {
              const uint32_t bits = std::bit_cast<uint32_t>(values[column]) & 0x7FFFFFFF;
              most = std::max(most, bits <= limit ? bits : 0);
            }
            return most;
          };
          constexpr uint32_t kInfinity = 0x7F800000;
          const uint32_t most = most_of(0x7FFFFFFF);
          const bool is_nan = most > kInfinity;
          tiles[tile] = (is_nan ? most_of(kInfinity) : most) | (has_nan | uint32_t(is_nan)) << 31;
        }
      }
    }
  });
  TileMaxima maxima;
  maxima.amaxes.resize(down * across);
  maxima.has_nan.resize(down * across);
  for (int64_t tile = 0; tile < down * across; ++tile) {
    uint32_t most = 0, is_nan = 0;
    for (int64_t piece = 0; piece < pieces_per_tile; ++piece) {
      const uint32_t bits =
          of_pieces[(tile / across * pieces_per_tile + piece) * across + tile % across];
      most = std::max(most, bits & 0x7FFFFFFF);
      is_nan |= bits >> 31;
    }
    maxima.amaxes[tile] = std::bit_cast<float>(most);
    maxima.has_nan[tile] = static_cast<uint8_t>(is_nan);
  }
  return maxima;
}

int64_t CountDistinct(const std::vector<uint32_t>& values) {
  DistinctValues distinct;
  for (const uint32_t value : values) distinct.Add(value);
  return distinct.count();
}

void CountDistinctAmaxes(ScaledBlocks& scaled) {
  DistinctValues amaxes[2];
  for (size_t i = 0; i < scaled.bits.size(); ++i) {
    amaxes[scaled.is_at_bound[i]].Add(std::bit_cast<uint32_t>(scaled.maxima->amaxes[i]));
  }
  scaled.amax_distinct = amaxes[0].count();
  scaled.amax_bound_count = amaxes[1].count();
}

RoundingCounts CountSample(const ScaledGroup& group, bool counts_spread) {
  const StoredCodes& stored = *group.stored;
  const ScaledBlocks& scaled = group.scaled();
  const CodeBlocks& blocks = scaled.blocks();
  const std::vector<float>& factors = scaled.factors_of(group.by.front().scaling);
  ElementCounter counter(group, counts_spread);
  for (const int64_t at : stored.sample) {
    const int64_t scale = at / stored.columns / blocks.rows * stored.scale_columns +
                          at % stored.columns / blocks.columns;
    counter(factors[scaled.Slot(scale)], stored.elements->values[at], stored.elements->codes[at],
            at);
  }
  return counter.tally.Take();
}

RoundingCounts CountAll(const ScaledGroup& group, bool counts_spread) {
  const StoredCodes& stored = *group.stored;
  const CodeBlocks& blocks = group.scaled().blocks();
  const std::vector<float>& factors = group.scaled().factors_of(group.by.front().scaling);
  ElementCounter counter(group, counts_spread);
  const CodedElements& elements = *stored.elements;
  for (int64_t row = 0; row < stored.rows; ++row) {
    const float* const of_row = factors.data() + row / blocks.rows * stored.scale_columns;
    for (int64_t first = 0; first < stored.columns; first += blocks.columns) {
      const float factor = of_row[first / blocks.columns];
      const int64_t end = std::min(first + blocks.columns, stored.columns);
      for (int64_t at = row * stored.columns + first; at < row * stored.columns + end; ++at) {
        counter(factor, elements.values[at], elements.codes[at], at);
      }
    }
  }
  return counter.tally.Take();
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
  // Scales whose shape fits two readings may give one description twice; the better stays.
  std::map<std::tuple<std::string, std::string, std::string, std::string>, size_t> described;
  std::vector<CodesCandidate> kept;
  for (CodesCandidate& c : candidates) {
    const auto [place, is_new] =
        described.try_emplace({c.element, c.block, c.scale_rule, c.element_rule}, kept.size());
    if (is_new) {
      kept.push_back(std::move(c));
    } else if (c.is_entire()) {
      // So is the better; whose of the two's libraries' it is cannot be told.
      kept[place->second].libraries.insert(c.libraries.begin(), c.libraries.end());
    }
  }
  candidates = std::move(kept);
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
