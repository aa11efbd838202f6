// A step of a grouped_linear whose experts' weights are divided over the ranks of a tensor-parallel
// group. The grouped_linear itself does not communicate, so the step includes the gather and the
// sum that the layers around it would do (docs/ranks.md section 2.1).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// All rows of a column-parallel grouped_linear's x, or of a row-parallel one's grad_output. Under
/// sequence parallelism `own` is this rank's even part of the rows; else it has all rows. The
/// gather is in high precision, before anything is quantized, so that no block and no amax depends
/// on the division. Collective.
absl::StatusOr<Tensor> GatherForExperts(StepRecorder& recorder, const ParallelStep& parallel,
                                        const char* what, const Tensor& own);
/// Counts a gathered grad_output as StepRecorder::HoldGathered does. Null if nothing was gathered.
std::shared_ptr<const void> HoldGatheredForExperts(StepRecorder& recorder,
                                                   const ParallelStep& parallel,
                                                   const Tensor& whole);
/// The sum over the ranks of `partial`, a row-parallel grouped_linear's y or a column-parallel
/// one's dx. Under sequence parallelism only this rank's even part of dim 0. Collective.
absl::StatusOr<Tensor> SumOfExperts(StepRecorder& recorder, const ParallelStep& parallel,
                                    const char* what, const Tensor& partial);

struct GroupedStep {
  /// This rank's part, as ShardLayer gives it, with all rows of x and grad_output.
  LayerRequest request;
  LayerResult result;  ///< The result of `request`, except that y or dx is SumOfExperts.
  std::vector<NamedTensor> partials = {};  ///< This rank's summand "y" or "dx".
};

/// Runs this rank's part of `whole`, which CheckLayer accepts; its tensors are in the engine's
/// memory or on the host. `parallel` has this rank's end of the group. Under sequence parallelism
/// the rank begins with an even part of dim 0 of x (column-parallel) or grad_output (row-parallel).
/// Collective.
absl::StatusOr<GroupedStep> RunGrouped(Engine& engine, const LayerRequest& whole,
                                       ParallelStep parallel, const Recipe& recipe,
                                       const Arithmetic& arithmetic,
                                       const Cancellation* cancellation);

}  // namespace quantgate
