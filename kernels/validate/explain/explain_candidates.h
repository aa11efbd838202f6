// The candidates of ExplainCodes: ways to scale the elements of a tensor, each with the roundings
// that fit the codes best.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_scale_rules.h"
#include "kernels/validate/reference/rounding_counts.h"

namespace quantgate {

/// How codes lie in bytes.
enum class CodePacking {
  kUsual,       ///< Two FP4 codes to a byte, the even column low; others one to a byte.
  kOneToAByte,  ///< FP4.
  kSixBits,     ///< Four FP6 codes in three bytes, the first lowest.
};

/// The elements of a source and their codes as matrices.
struct CodedElements {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
  std::vector<uint8_t> codes;  ///< One to a byte.
};

/// The source, codes and scales as matrices, in the orientation in which the codes are stored.
struct StoredCodes {
  int64_t rows = 0, columns = 0;
  bool transposed = false;
  bool hadamard = false;  ///< Every 16 values of a row are transformed.
  CodePacking packing = CodePacking::kUsual;
  DType source = DType::kF32;
  std::shared_ptr<const CodedElements> elements;
  /// Some of them: the sample on which most candidates fail. Ascending.
  std::vector<int64_t> sample;
  /// The given amax, the largest of the given amaxes of rows or, if none is given, the amax of
  /// `values`.
  float global_amax = 0;
  /// By row, the given amax or that of `values`. Empty if one amax was given for all rows.
  std::vector<float> row_amaxes;
  int64_t scale_rows = 0, scale_columns = 0;
  std::vector<uint32_t> scales;     ///< The bits of the given scales; of bf16 and f16 those as f32.
  DType scale_dtype = DType::kF32;  ///< As the given layout has them read; i32: of E8M0.
  int64_t scale_distinct = 0;
  std::string scale_order;  ///< ", scales transposed"; empty: as the blocks lie.
};

/// The lengths of blocks in quantizers in use.
inline constexpr std::array<int64_t, 5> kBlockLengths = {16, 32, 64, 128, 256};

/// The size of blocks that share a stored scale, and of the tile whose amax the scale comes from.
/// The tile is larger if a scale is stored for each row of a tile.
struct CodeBlocks {
  int64_t rows, columns;
  int64_t amax_rows, amax_columns;
};

/// What scale rules need of the blocks of one shape, by stored scale.
struct BlockMaxima {
  CodeBlocks blocks;
  std::vector<float> amaxes;     ///< Of the tile that the block lies in; NaN elements ignored.
  std::vector<uint8_t> has_nan;  ///< Empty: no block has one.
  /// By stored scale, its place among those that the sample needs; -1: it needs it not. Empty: it
  /// needs all.
  std::vector<int32_t> sample_slots;
  std::vector<int32_t> sample_scales;  ///< The stored scales that the sample needs.
};

/// A scale rule applied to one block geometry: the scales that it would store, and the factors of
/// the elements. Of all stored scales or of those of the sample.
struct ScaledBlocks {
  std::string rule;          ///< CodesCandidate::scale_rule.
  std::string_view library;  ///< The library, if the rule alone tells it.
  std::shared_ptr<const BlockMaxima> maxima;
  bool is_sample = false;
  std::vector<uint32_t> bits;                             ///< Of the scales.
  std::vector<uint8_t> is_at_bound;                       ///< ScaleRuleResult::is_at_bound.
  std::array<std::vector<float>, kScalingCount> factors;  ///< Empty: not with that scaling.
  int64_t matches = 0;                                    ///< Scales equal to the given ones.
  /// Distinct amaxes whose scales the rule computes, and those whose scale is at a bound of it. Of
  /// all scales only.
  int64_t amax_distinct = 0, amax_bound_count = 0;
  /// What applies the rule to all scales and keeps the factors of one way.
  std::function<absl::StatusOr<ScaledBlocks>(ElementScaling)> apply_to_all;

  const CodeBlocks& blocks() const { return maxima->blocks; }
  const std::vector<float>& factors_of(ElementScaling scaling) const {
    return factors[static_cast<int>(scaling)];
  }
  /// The place of a stored scale in `bits`.
  int64_t Slot(int64_t scale) const {
    return is_sample && !maxima->sample_slots.empty() ? maxima->sample_slots[scale] : scale;
  }
  int64_t ScaleOf(int64_t slot) const {
    return is_sample && !maxima->sample_slots.empty() ? maxima->sample_scales[slot] : slot;
  }
};

/// A description of a way to scale the elements.
struct ScaledBy {
  std::shared_ptr<const ScaledBlocks> scaled;
  ElementScaling scaling;
  bool is_nearest_even = false;  ///< Only nearest_even goes with it.
};

/// One way to scale the elements: everything of a candidate except its rounding.
struct ScaledGroup {
  std::shared_ptr<const StoredCodes> stored;
  const CodeFormat* format;
  /// All descriptions that store the same scales and scale every element alike. Results of the
  /// first hold for all.
  std::vector<ScaledBy> by;
  Overflow overflow;
  int64_t sample_score = 0;
  bool fits_sample = true;  ///< Whether some rounding gives all codes and scales of the sample.

  const ScaledBlocks& scaled() const { return *by.front().scaled; }
};

/// The libraries known to write such codes. `by`, one of group.by, `counts`, taken
/// of its codes, and `rounding` (absent: stochastic) describe one candidate. The candidate must
/// have the library's scale rule, way to scale, rounding, element formats, blocks, orientation and
/// signs of zeros. The libraries' rules are from their sources or documents (docs/quantizers.md
/// section 1.6).
std::vector<std::string_view> LibrariesOf(const ScaledGroup& group, const ScaledBy& by,
                                          const RoundingCounts& counts,
                                          std::optional<CodeRounding> rounding);

/// Adds `group` to `groups`, or its descriptions to a group that scales alike.
void AddOrJoin(ScaledGroup group, std::vector<ScaledGroup>& groups);

/// The amaxes of the tiles of `blocks`, row by row, NaN elements ignored; and which tiles have a
/// NaN.
struct TileMaxima {
  std::vector<float> amaxes;
  std::vector<uint8_t> has_nan;
};
TileMaxima MaximaOfTiles(const CodedElements& elements, int64_t tile_rows, int64_t tile_columns,
                         const ExecutionContext& context);

int64_t CountDistinct(const std::vector<uint32_t>& values);
/// Sets ScaledBlocks::amax_distinct and amax_bound_count.
void CountDistinctAmaxes(ScaledBlocks& scaled);

/// The counts of a group over the elements of the sample, and over all.
RoundingCounts CountSample(const ScaledGroup& group, bool counts_spread);
RoundingCounts CountAll(const ScaledGroup& group, bool counts_spread);

/// The candidates with deterministic roundings: one for each rounding that this data tells from
/// nearest_even.
std::vector<CodesCandidate> DeterministicOf(const ScaledGroup& group, const RoundingCounts& counts);

/// The candidates with stochastic rounding: one for each StochasticChance, whether or not its test
/// passes.
inline constexpr int kStochasticCount = 2;
std::vector<CodesCandidate> StochasticOf(const ScaledGroup& group, const RoundingCounts& counts);

/// Sorts by the numbers of codes and scales that match; among equals, stochastic candidates are
/// last. Of those with one description the first stays, with the libraries of all that give
/// everything.
void SortBestFirst(std::vector<CodesCandidate>& candidates);

/// The libraries whose rules are those of the established candidates.
std::set<std::string> LibrariesOf(const std::vector<CodesCandidate>& candidates);

}  // namespace quantgate
