// A layer divided over virtual ranks on the engine that is looked at, beside its shards run alone
// on the reference engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/layer/layer_sharding.h"
#include "kernels/layer/layer_step.h"
#include "kernels/validate/scenarios/virtual_ranks.h"

namespace quantgate {

/// One rank's layer in training, with the faults of the scenario's run.
class RankLayer {
 public:
  RankLayer(ScenarioContext& context, const LayerRequest& shard);

  absl::StatusOr<ForwardResult> Forward(const Tensor& x, const StepOptions& options);
  absl::StatusOr<BackwardResult> Backward(std::unique_ptr<LayerSaved> saved, const Tensor& dy);

 private:
  ScenarioContext& context_;
  const LayerSpec spec_;
  LayerState state_;
};

/// y, dx and dw of a step; absent where it has none.
struct StepTensors {
  Tensor y, dx, dw;
};
StepTensors TensorsOf(const Tensor& y, const BackwardResult& backward);

/// The ranks' bodies; what one of them refuses is a difference.
void RunBodies(ScenarioContext& context, std::string_view what, World& world,
               const std::function<absl::Status(Rank& rank)>& body);

/// What a rank does of a whole request, with its tensors in the engine's memory.
absl::StatusOr<LayerRequest> ShardOn(ScenarioContext& context, const LayerRequest& whole,
                                     ParallelStep step);
absl::StatusOr<LayerRequest> ShardOn(ScenarioContext& context, const LayerRequest& whole,
                                     ProcessGroup& group, bool sequence_parallel);
StepOptions StepOptionsOf(ScenarioContext& context, const LayerRequest& shard);

/// Each shard as a layer of one rank, with all rows, on the reference engine; a row-parallel one
/// without its bias. `weight`: everybody's part of it, in place of the ranks' own.
absl::StatusOr<std::vector<StepTensors>> ShardsAlone(ScenarioContext& context,
                                                     const LayerRequest& whole, int size,
                                                     const Tensor& weight = {});
/// In fp32 in this order, rounded once: docs/distributed.md section 1.1, rank_asc_fp32.
absl::StatusOr<Tensor> SumInOrder(const std::vector<Tensor>& parts);
/// Part `rank` of `size` of the rows.
absl::StatusOr<Tensor> RowPart(const Tensor& tensor, int rank, int size);

/// A training step of one rank.
absl::StatusOr<StepTensors> OneStep(ScenarioContext& context, const LayerRequest& shard);
/// What each rank of a group gives, from the shards alone. `weight` as above.
absl::StatusOr<std::vector<StepTensors>> ExpectedRanks(ScenarioContext& context,
                                                       const LayerRequest& whole, int size,
                                                       bool sequence_parallel,
                                                       const Tensor& weight = {});
absl::Status ExpectStep(ScenarioContext& context, const std::string& name,
                        const StepTensors& subject, const StepTensors& expected);
/// "column SP, rank 1:".
std::string ModeText(ParallelMode mode, bool sequence_parallel, int rank);

inline constexpr ParallelMode kParallelModes[] = {ParallelMode::kColumn, ParallelMode::kRow};

/// A square linear layer.
absl::StatusOr<LayerRequest> MakeParallelLinear(ScenarioContext& context, ParallelMode mode,
                                                int64_t rows, uint64_t seed, int64_t columns = 128);

}  // namespace quantgate
