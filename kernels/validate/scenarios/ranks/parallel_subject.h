// A layer divided over virtual ranks on the engine under test, and its shards run alone on the
// reference engine, with which it is compared.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/layer/layer_sharding.h"
#include "kernels/layer/layer_step.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"

namespace quantgate {

/// One rank's layer in training.
class RankLayer {
 public:
  RankLayer(Rank& rank, const LayerRequest& shard);

  absl::StatusOr<ForwardResult> Forward(const Tensor& x, const StepOptions& options);
  absl::StatusOr<BackwardResult> Backward(std::unique_ptr<LayerSaved> saved, const Tensor& dy);
  /// The records of the last backward.
  const StepRecords& records() const { return records_; }

 private:
  Rank& rank_;
  const LayerSpec spec_;
  LayerState state_;
  StepRecords records_;
};

/// The tensors of one step; each may be absent.
struct StepTensors {
  Tensor y = {}, dx = {}, dw = {};
  GemmOperand wgrad_grad_output = {}, wgrad_x = {};  ///< Operands of wgrad: data and scale_inv.
};
/// The tensors of a step, with the operands of the layer's last backward, in the memory of its
/// engine.
StepTensors TensorsOf(const RankLayer& layer, const Tensor& y, const BackwardResult& backward);
/// The tensors of a rank's step, copied to the host by the rank's engine.
absl::StatusOr<StepTensors> OnHost(Rank& rank, StepTensors tensors);

/// A rank's part of a whole request, with its tensors in the memory of the rank's engine.
absl::StatusOr<LayerRequest> ShardOn(Rank& rank, const LayerRequest& whole, ParallelStep step);
absl::StatusOr<LayerRequest> ShardOn(Rank& rank, const LayerRequest& whole, ProcessGroup& group,
                                     bool sequence_parallel);
StepOptions StepOptionsOf(ScenarioContext& context, const LayerRequest& shard);

/// Runs each shard as a layer of one rank, with all rows, on the reference engine; a row-parallel
/// shard without its bias. If `weight` is present, all ranks have it in place of their own parts.
absl::StatusOr<std::vector<StepTensors>> ShardsAlone(ScenarioContext& context,
                                                     const LayerRequest& whole, int size,
                                                     const Tensor& weight = {});
/// The sum of the parts in fp32, in this order, rounded once: docs/ranks.md section 1.1,
/// rank_asc_fp32.
absl::StatusOr<Tensor> SumInOrder(const std::vector<Tensor>& parts);
/// Part `rank` of `size` of the rows.
absl::StatusOr<Tensor> RowPart(const Tensor& tensor, int rank, int size);

/// A training step of one rank, in the memory of its engine.
absl::StatusOr<StepTensors> OneStep(ScenarioContext& context, Rank& rank,
                                    const LayerRequest& shard);
/// A training step of every rank of a new world, on the host. Empty if a rank refuses, which is
/// recorded as a difference.
absl::StatusOr<std::vector<StepTensors>> StepOnRanks(ScenarioContext& context,
                                                     const LayerRequest& whole, int size,
                                                     bool sequence_parallel);
/// What each rank of a group must give, computed from the shards alone. `weight`: as for
/// ShardsAlone.
absl::StatusOr<std::vector<StepTensors>> ExpectedRanks(ScenarioContext& context,
                                                       const LayerRequest& whole, int size,
                                                       bool sequence_parallel,
                                                       const Tensor& weight = {});
absl::Status ExpectStep(ScenarioContext& context, const std::string& name,
                        const StepTensors& subject, const StepTensors& expected);
/// Expects the steps of all ranks to equal ExpectedRanks; `subjects` may be empty.
absl::Status ExpectStepsOfRanks(ScenarioContext& context, const std::vector<StepTensors>& subjects,
                                const LayerRequest& whole, bool sequence_parallel);
/// A rank and its mode in the names of checks: "column SP, rank 1:".
std::string ModeText(ParallelMode mode, bool sequence_parallel, int rank);

inline constexpr ParallelMode kParallelModes[] = {ParallelMode::kColumn, ParallelMode::kRow};

/// A square linear layer.
absl::StatusOr<LayerRequest> MakeParallelLinear(ScenarioContext& context, ParallelMode mode,
                                                int64_t rows, uint64_t seed, int64_t columns = 128);

/// Delayed scaling's states after a step, on the host, by the names of the states.
using StatesByName = std::map<std::string, DelayedScalingState>;
absl::StatusOr<StatesByName> StatesAfter(Engine& engine, const LayerResult& result);

}  // namespace quantgate
