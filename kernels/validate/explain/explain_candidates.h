// The candidates of ExplainCodes: ways to scale the elements of a tensor, each with the roundings
// that fit the codes best.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_scale_rules.h"
#include "kernels/validate/reference/rounding_counts.h"

namespace quantgate {

/// The source, codes and scales as matrices, in the orientation in which the codes are stored.
struct StoredCodes {
  int64_t rows = 0, columns = 0;
  bool transposed = false;
  bool hadamard = false;      ///< Every 16 values of a row are transformed.
  std::vector<float> values;  ///< The source.
  /// The given amax, the largest of the given amaxes of rows or, if none is given, the amax of
  /// `values`.
  float global_amax = 0;
  /// By row, the given amax or that of `values`. Empty if one amax was given for all rows.
  std::vector<float> row_amaxes;
  std::vector<uint8_t> codes;
  int64_t scale_rows = 0, scale_columns = 0;
  std::vector<uint32_t> scales;  ///< The bits of the given scales.
};

/// The lengths of blocks in quantizers in use.
inline constexpr std::array<int64_t, 5> kBlockLengths = {16, 32, 64, 128, 256};

/// The size of blocks that share a stored scale, and of the tile whose amax the scale comes from.
/// The tile is larger if a scale is stored for each row of a tile.
struct CodeBlocks {
  int64_t rows, columns;
  int64_t amax_rows, amax_columns;
};

/// A scale rule applied to one block geometry: the scales that it would store, and the factors of
/// the elements.
struct ScaledBlocks {
  std::string rule;          ///< CodesCandidate::scale_rule.
  std::string_view library;  ///< The library, if the rule alone tells it.
  CodeBlocks blocks;
  std::vector<float> amaxes;             ///< By stored scale: the amax that it comes from.
  std::vector<ScaleRuleResult> results;  ///< By stored scale.
  int64_t matches = 0;                   ///< Scales equal to the given ones.
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

  const ScaledBlocks& scaled() const { return *by.front().scaled; }
};

/// The library known to write such codes; empty if none is. `by`, one of group.by, `counts`, taken
/// of its codes, and `rounding` (absent: stochastic) describe one candidate. The candidate must
/// have the library's scale rule, way to scale, rounding, element formats, blocks, orientation and
/// signs of zeros. The libraries' rules are from their sources or documents (docs/quantizers.md
/// section 1.6).
std::string_view LibraryOf(const ScaledGroup& group, const ScaledBy& by,
                           const RoundingCounts& counts, std::optional<CodeRounding> rounding);

/// Adds `group` to `groups`, or its descriptions to a group that scales alike.
void AddOrJoin(ScaledGroup group, std::vector<ScaledGroup>& groups);

/// Amaxes of the tiles, row by row; NaN elements ignored.
std::vector<float> TileAmaxes(const StoredCodes& stored, const CodeBlocks& blocks);

/// The candidates with deterministic roundings: one for each rounding that this data tells from
/// nearest_even.
std::vector<CodesCandidate> DeterministicOf(const ScaledGroup& group, const RoundingCounts& counts);

/// The candidates with stochastic rounding: one for each StochasticChance, whether or not its test
/// passes.
inline constexpr int kStochasticCount = 2;
std::vector<CodesCandidate> StochasticOf(const ScaledGroup& group, const RoundingCounts& counts);

/// Sorts by the numbers of codes and scales that match; among equals, stochastic candidates are
/// last.
void SortBestFirst(std::vector<CodesCandidate>& candidates);

/// The libraries whose rules are those of the established candidates.
std::set<std::string> LibrariesOf(const std::vector<CodesCandidate>& candidates);

}  // namespace quantgate
