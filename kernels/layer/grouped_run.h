// A step of a grouped_linear whose experts' weights are divided over the ranks of a tensor-parallel
// group, with what the layers around it do for it: the grouped_linear communicates nothing itself
// (docs/distributed.md section 2.1).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

struct GroupedStep {
  /// This rank's part, as ShardLayer: x and grad_output with all rows.
  LayerRequest request;
  /// Of that request, but what is a sum over the ranks (y of row-parallel, dx of column-parallel)
  /// is that sum: whole, or under sequence parallelism this rank's rows of it.
  LayerResult result;
  std::vector<NamedTensor> partials = {};  ///< "y" or "dx" as this rank gave it to the sum.
};

/// `whole`, which CheckLayer accepts, has its tensors in the engine's memory or on the host;
/// `parallel` has this rank's end of the group. Under sequence parallelism the rank begins with an
/// even part of dim 0 of x (column-parallel) and of grad_output (row-parallel). Collective.
absl::StatusOr<GroupedStep> RunGrouped(Engine& engine, const LayerRequest& whole,
                                       ParallelStep parallel, const Recipe& recipe,
                                       const Arithmetic& arithmetic,
                                       const Cancellation* cancellation);

}  // namespace quantgate
