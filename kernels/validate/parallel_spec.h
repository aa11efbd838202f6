// ParallelSpec: a variant on several ranks (docs/distributed.md section 2), as a request asks for
// it, and what it must satisfy before there are ranks.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/comm/reduction_profile.h"
#include "kernels/comm/transport.h"
#include "kernels/layer/layer.h"

namespace quantgate {

std::string_view CollectiveBackendName(CollectiveBackend backend);  ///< "local", "nccl".
/// INVALID_ARGUMENT with the value and the known names.
absl::StatusOr<CollectiveBackend> ParseCollectiveBackend(std::string_view name);

/// The layer's weights over one tensor-parallel group, each by its parallel mode.
struct ParallelSpec {
  int tensor_parallel = 2;  ///< Ranks of the group, 2 to kWorldSizeMax.
  bool sequence_parallel = false;
  ReductionProfile profile = {};  ///< Of sums over the ranks.
  CollectiveBackend backend = CollectiveBackend::kLocal;

  /// "tp2", "tp4 sp ub_p2p nccl": what differs from the defaults.
  std::string Label() const;
  friend bool operator==(const ParallelSpec&, const ParallelSpec&) = default;
};

/// The request of one rank without its tensors' data, from the whole layer's. INVALID_ARGUMENT
/// naming the tensor, the dim and the rule where the ranks do not divide it.
absl::StatusOr<LayerRequest> OutlineShard(const LayerRequest& whole, const ParallelSpec& parallel,
                                          int rank);

/// Everything about a parallel variant of `step` that is known before it runs, for a step that
/// CheckLayer accepts under `recipe`. INVALID_ARGUMENT or UNIMPLEMENTED naming `field`, value and
/// rule.
absl::Status CheckParallel(const std::string& field, const LayerRequest& step,
                           const ParallelSpec& parallel, const Recipe& recipe,
                           const Arithmetic& arithmetic);

/// Some weight of the layer is divided over the ranks of a parallel variant.
bool HasParallelMode(const LayerSpec& layer);

}  // namespace quantgate
