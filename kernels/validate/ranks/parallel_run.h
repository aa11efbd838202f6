// One layer on several ranks of this process: a step on all of them, and what cutting GEMMs into
// pieces did to the bits of the step.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/rank_engines.h"
#include "kernels/validate/plan.h"

namespace quantgate {

/// What one rank was given and what it computed, in the memory of its engine.
struct RankStep {
  Engine* engine = nullptr;
  LayerRequest request;
  LayerResult result;        ///< With divided experts: y and dx are those of the rank's tokens.
  int64_t first_expert = 0;  ///< The whole layer's number of this rank's expert 0.
  // With divided experts, as in ExpertStep.
  std::vector<int64_t> tokens = {};
  std::vector<int64_t> rows = {};
  std::vector<NamedTensor> own_gradients = {};
  std::vector<NamedTensor> partials = {};  ///< With divided weights of experts, as in GroupedStep.
};

/// A step that all ranks have done. It keeps the world and the ranks' ends of overlapped calls
/// alive, since requests refer to them.
struct ParallelStepResult {
  std::unique_ptr<World> world;
  std::vector<std::unique_ptr<RankOverlap>> overlaps;  ///< Null where nothing overlaps.
  std::vector<RankStep> ranks;
};

/// Divides `whole`, whose tensors are on the host or in `owner`'s memory, over the ranks, one for
/// each of `engines`, and runs it. `variant` must be a parallel one that Plan::Create accepts.
absl::StatusOr<ParallelStepResult> RunOnRanks(const LayerRequest& whole, Engine& owner,
                                              const Variant& variant,
                                              const std::vector<Engine*>& engines,
                                              const RankSetting* setting,
                                              const Cancellation* cancellation);

/// A GEMM may be cut into several so that communication can run beside it (docs/ranks.md section
/// 10.5). The bits of a model do not depend on that; cuBLASLt may take another kernel for another
/// shape. For every GEMM that hardware ran in several pieces: one line that says how many elements,
/// over all ranks, have other bits than the same GEMM in one piece; which algorithms ran; and,
/// where bits differ, which arithmetics ExplainGemm finds in either result. Runs those GEMMs again,
/// on the ranks' engines.
absl::StatusOr<std::vector<std::string>> CutGemmNotes(std::span<const RankStep> ranks,
                                                      const Cancellation* cancellation);

}  // namespace quantgate
