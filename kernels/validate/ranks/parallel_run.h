// One layer on several ranks of this process: a step on all of them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/rank_engines.h"
#include "kernels/validate/plan.h"

namespace quantgate {

/// What one rank was given and what it gave, in the memory of its engine.
struct RankStep {
  Engine* engine = nullptr;
  LayerRequest request;
  LayerResult result;        ///< Of experts: y and dx of the rank's own tokens.
  int64_t first_expert = 0;  ///< Of the whole layer, whose name on this rank ends with 0.
  // Of experts, as in ExpertStep.
  std::vector<int64_t> tokens = {};
  std::vector<int64_t> rows = {};
  std::vector<NamedTensor> own_gradients = {};
  std::vector<NamedTensor> partials = {};  ///< Of a divided grouped_linear, as in GroupedStep.
};

/// A step that all ranks have done. The world and the ranks' ends of overlapped calls live as long,
/// since requests name them.
struct ParallelStepResult {
  std::unique_ptr<World> world;
  std::vector<std::unique_ptr<RankOverlap>> overlaps;  ///< Null where nothing overlaps.
  std::vector<RankStep> ranks;
};

/// Divides `whole`, whose tensors are on the host or `owner`'s, and runs it under a parallel
/// variant that Plan::Create accepts.
absl::StatusOr<ParallelStepResult> RunOnRanks(const LayerRequest& whole, Engine& owner,
                                              const Variant& variant,
                                              const std::vector<Engine*>& engines,
                                              const RankSetting* setting,
                                              const Cancellation* cancellation);

}  // namespace quantgate
