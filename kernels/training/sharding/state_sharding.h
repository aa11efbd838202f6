// Which parts of a session's state each of several ranks has. Private to kernels/training.
#pragma once

#include <optional>
#include <string>

#include "kernels/layer/layer_sharding.h"
#include "kernels/training/session_state.h"

namespace quantgate {

/// How the tensor-parallel group divides a tensor of the state; `place` is its place in one rank's
/// state. Absent if the ranks' parts do not make up a whole: blocks of the whole weight would cross
/// from one rank's part to the next's.
std::optional<ShardRule> StateShardRule(const SessionSpec& spec, const TensorPlace& place);

/// Whether this layer is a grouped_linear whose experts, or their rows, ranks divide. Each rank
/// then has its experts, perhaps all, under their numbers in the whole layer.
bool DividesExperts(const SessionSpec& spec, size_t layer);

/// Whether the weights of this layer's experts are divided over tensor-parallel ranks.
bool DividesExpertWeights(const SessionSpec& spec, size_t layer);
/// Whether each rank, or each tensor-parallel group, has a part of every expert's rows of a batch:
/// some layer is a grouped_linear, and more than one tensor-parallel group runs it.
bool RoutesRows(const SessionSpec& spec);

/// This rank's end of the group of ranks with the same part of a layer's parameters: for divided
/// experts the ranks with the same experts, for other layers SessionRank::copies. Null if it is
/// alone.
ProcessGroup* CopiesOfLayer(const SessionSpec& spec, size_t layer, const SessionRank& rank);

/// The part that a rank has of its copy's tensor between two layers.
struct RankLayout {
  ShardRule columns = {};
  bool divides_rows = false;  ///< Each rank has an even part of dim 0.
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};
/// The layouts of a layer's x and y. A chain of activations that are not gated takes any layout,
/// and keeps it.
RankLayout InputLayout(const SessionSpec& spec, size_t layer);
RankLayout OutputLayout(const SessionSpec& spec, size_t layer);

/// Whether these are columnwise codes of a format that stores them transposed
/// (ScalingTraits::turns_columnwise).
bool IsStoredTransposed(const QuantizedCopy& copy, Usage usage);

/// Whether every rank has the whole parameter, but its gradient only from its own rows.
bool IsOfOwnRows(const SessionSpec& spec, size_t layer, const std::string& parameter);
/// Whether gradients of the parameter are summed over ranks by the optimizer and not before.
bool IsSummedByOptimizer(const SessionSpec& spec, size_t layer, const std::string& parameter);

/// Describes how the ranks divide the layers: "tp2 dp2 sp: column, row". Sessions with equal texts
/// give their ranks the same parts.
std::string RanksText(const SessionSpec& spec);
/// The prefix of a rank's own tensors: "rank0.".
std::string RankPrefix(int rank);

}  // namespace quantgate
