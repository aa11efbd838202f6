// A step of a grouped_linear whose experts' weights are divided over the ranks of a tensor-parallel
// group, with what the layers around it do for it: the grouped_linear communicates nothing itself
// (docs/ranks.md section 2.1).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// All rows of x of a column-parallel grouped_linear, or of grad_output of a row-parallel one, from
/// what this rank has of them, under sequence parallelism an even part: in high precision, before
/// anything is quantized, so that no block and no amax sees that rows were divided. Collective.
absl::StatusOr<Tensor> GatherForExperts(StepRecorder& recorder, const ParallelStep& parallel,
                                        const char* what, const Tensor& own);
/// Of what is a sum over the ranks (y of row-parallel, dx of column-parallel) that sum: whole, or
/// under sequence parallelism this rank's even part of dim 0. Collective.
absl::StatusOr<Tensor> SumOfExperts(StepRecorder& recorder, const ParallelStep& parallel,
                                    const char* what, const Tensor& partial);

struct GroupedStep {
  /// This rank's part, as ShardLayer: x and grad_output with all rows.
  LayerRequest request;
  LayerResult result;                      ///< Of that request, but y or dx is SumOfExperts.
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
