// What ExplainCodes tries: ways to scale the elements of a tensor, and the candidates that the
// codes make of each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_scale_rules.h"
#include "kernels/validate/reference/rounding_counts.h"

namespace quantgate {

/// The source, codes and scales as matrices in the orientation in which the codes are stored.
struct StoredCodes {
  int64_t rows = 0, columns = 0;
  bool transposed = false;
  bool hadamard = false;      ///< Every 16 values of a row are transformed.
  std::vector<float> values;  ///< The source.
  /// As given, or of the values; where the given ones are of the rows, the largest.
  float global_amax = 0;
  std::vector<float> row_amaxes;  ///< Of each row, likewise; empty: one was given for all.
  std::vector<uint8_t> codes;
  int64_t scale_rows = 0, scale_columns = 0;
  std::vector<uint32_t> scales;  ///< Bits of the given ones.
};

/// The lengths of blocks that quantizers in use have.
inline constexpr std::array<int64_t, 5> kBlockLengths = {16, 32, 64, 128, 256};

/// Blocks that share a scale, and the tile whose amax it comes from (larger where one scale is
/// stored for each row of a tile).
struct CodeBlocks {
  int64_t rows, columns;
  int64_t amax_rows, amax_columns;
};

/// A scale rule on one geometry: what it would store, and what elements are multiplied by.
struct ScaledBlocks {
  std::string rule;          ///< As candidates have it.
  std::string_view library;  ///< Where the rule alone says it.
  CodeBlocks blocks;
  std::vector<float> amaxes;             ///< Per stored scale: what it comes from.
  std::vector<ScaleRuleResult> results;  ///< Likewise.
  int64_t matches = 0;
};

/// A description of a way to scale the elements.
struct ScaledBy {
  std::shared_ptr<const ScaledBlocks> scaled;
  ElementScaling scaling;
  bool is_nearest_even = false;  ///< No other rounding goes with it.
};

/// One way to scale the elements: everything of a candidate but its rounding.
struct ScaledGroup {
  std::shared_ptr<const StoredCodes> stored;
  const CodeFormat* format;
  /// All that make the same stored scales and scale every element alike; the first speaks for them.
  std::vector<ScaledBy> by;
  Overflow overflow;
  int64_t sample_score = 0;

  const ScaledBlocks& scaled() const { return *by.front().scaled; }
};

/// Adds `group` as a way of its own, or its description to the way that is the same.
void AddOrJoin(ScaledGroup group, std::vector<ScaledGroup>& groups);

/// Amaxes of the tiles, row by row; NaN elements ignored.
std::vector<float> TileAmaxes(const StoredCodes& stored, const CodeBlocks& blocks);

/// One for each rounding that this data tells from nearest_even.
std::vector<CodesCandidate> DeterministicOf(const ScaledGroup& group, const RoundingCounts& counts);

/// The stochastic ones, by each chance, whatever their test says.
inline constexpr int kStochasticCount = 2;
std::vector<CodesCandidate> StochasticOf(const ScaledGroup& group, const RoundingCounts& counts);

/// By codes and scales matched; stochastic ones last among equals.
void SortBestFirst(std::vector<CodesCandidate>& candidates);

/// The libraries whose rules the established candidates are.
std::set<std::string> LibrariesOf(const std::vector<CodesCandidate>& candidates);

}  // namespace quantgate
