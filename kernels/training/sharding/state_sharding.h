// What of a session's state each of several ranks has. Private to kernels/training.
#pragma once

#include <optional>
#include <string>

#include "kernels/layer/layer_sharding.h"
#include "kernels/training/session_state.h"

namespace quantgate {

/// How a tensor of a rank's state is divided over the tensor-parallel group; absent where the
/// ranks' parts are no parts of a whole: scales of blocks that cross from one rank's part to the
/// next's. `place` is of the rank's own state.
std::optional<ShardRule> StateShardRule(const SessionSpec& spec, const TensorPlace& place);

/// Whether ranks divide the experts of this layer, a grouped_linear, or their rows: each has its
/// own by their numbers in the whole layer, perhaps all.
bool DividesExperts(const SessionSpec& spec, size_t layer);

/// Whether the weights of this layer's experts are divided over tensor-parallel ranks.
bool DividesExpertWeights(const SessionSpec& spec, size_t layer);
/// Whether ranks, or copies of them, have rows of every expert of a batch: whether some layer is a
/// grouped_linear and more than one tensor-parallel group's ranks run it.
bool RoutesRows(const SessionSpec& spec);

/// This rank's end of the group of those that have the same part of a layer's parameters: of
/// divided experts the ranks with the same ones, of other layers SessionRank::copies. Null: no
/// others.
ProcessGroup* CopiesOfLayer(const SessionSpec& spec, size_t layer, const SessionRank& rank);

/// What a rank has of a tensor between two layers, of its copy's.
struct RankLayout {
  ShardRule columns = {};
  bool divides_rows = false;  ///< An even part of dim 0.
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};
/// Of x and of y of a layer. A chain of activations that are not gated takes any, and gives it.
RankLayout InputLayout(const SessionSpec& spec, size_t layer);
RankLayout OutputLayout(const SessionSpec& spec, size_t layer);

/// Columnwise codes of a format that turns them (ScalingTraits::turns_columnwise).
bool IsStoredTransposed(const QuantizedCopy& copy, Usage usage);

/// Of a parameter that every rank has whole, whether each rank's gradient is of its own rows.
bool IsOfOwnRows(const SessionSpec& spec, size_t layer, const std::string& parameter);
/// Whether gradients of it since the last update are sums only when the optimizer has taken them.
bool IsSummedByOptimizer(const SessionSpec& spec, size_t layer, const std::string& parameter);

/// "tp2 dp2 sp: column, row": equal texts are of ranks that have the same parts.
std::string RanksText(const SessionSpec& spec);
/// What a rank's own tensors begin with: "rank0.".
std::string RankPrefix(int rank);

}  // namespace quantgate
