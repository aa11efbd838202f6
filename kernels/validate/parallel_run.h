// One layer on several ranks of this process: their engines, and a step on all of them.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/world.h"
#include "kernels/validate/plan.h"

namespace quantgate {

/// The engines of ranks, made when first asked for and kept for the other variants of a run.
class RankEngines {
 public:
  /// `engine`: the run's own, which says on which kind of device ranks are.
  explicit RankEngines(Engine& engine) : engine_(engine) {}

  /// One for each rank: CPU engines that share the host's CPUs; virtual ranks on the run's GPU;
  /// under backend nccl GPUs 0 to N - 1. FAILED_PRECONDITION or UNIMPLEMENTED naming what is
  /// missing.
  absl::StatusOr<std::vector<Engine*>> For(const ParallelSpec& parallel);

 private:
  absl::StatusOr<std::unique_ptr<Engine>> Make(const ParallelSpec& parallel, int rank) const;

  Engine& engine_;
  std::map<std::pair<CollectiveBackend, int>, std::vector<std::unique_ptr<Engine>>> engines_;
};

/// What one rank was given and what it gave, in the memory of its engine.
struct RankStep {
  Engine* engine = nullptr;
  LayerRequest request;
  LayerResult result;
};

/// A step that all ranks have done. The world lives as long, since requests name its groups.
struct ParallelStepResult {
  std::unique_ptr<World> world;
  std::vector<RankStep> ranks;
};

/// A world of these ranks with the group that `parallel` asks for. Errors as World::Create.
absl::StatusOr<std::unique_ptr<World>> MakeWorld(const ParallelSpec& parallel,
                                                 std::vector<Engine*> engines);

/// Divides `whole`, whose tensors are on the host or `owner`'s, and runs it under a parallel
/// variant that Plan::Create accepts.
absl::StatusOr<ParallelStepResult> RunOnRanks(const LayerRequest& whole, Engine& owner,
                                              const Variant& variant,
                                              const std::vector<Engine*>& engines,
                                              const Cancellation* cancellation);

}  // namespace quantgate
