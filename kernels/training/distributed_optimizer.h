// An optimizer whose masters and moments are divided over the ranks of a data-parallel group: each
// gradient is summed in a named order, each rank updates its fragment of the parameter and the
// parameter is put together again on all ranks, quantized weights by quantize_master_weights
// (docs/distributed.md section 7). The bits are those of one rank with the whole of everything.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/training/master_weights.h"
#include "kernels/training/shard_checkpoint.h"

namespace quantgate {

struct DistributedParameter {
  std::string name;  ///< "fc1.weight".
  Shape shape;       ///< Whole; of rank 2 where it is quantized.
  DType dtype = DType::kBF16;
  ShardBounds bounds;  ///< Its row-major elements by rank, unaligned and empty parts included.
  bool is_quantized = false;
  Quantizer quantizer = {};
  Usages usages = {true, true};
};

struct DistributedOptimizerSpec {
  OptimizerSpec optimizer;
  Requantization requantization = Requantization::kThroughBf16;
  ReductionProfile profile = {};  ///< Of gradients.
};

class DistributedOptimizer {
 public:
  /// `values`: whole and in high precision, the same on all ranks; fp32 masters are made of them.
  /// `delayed`: by weight, read and changed as by a training session; empty under other recipes.
  static absl::StatusOr<DistributedOptimizer> Create(
      const GatherContext& context, DistributedOptimizerSpec spec,
      std::vector<DistributedParameter> parameters, const std::map<std::string, Tensor>& values,
      std::map<std::string, DelayedScalingState>& delayed);

  /// One update from this rank's own gradients, whole: their sum over the group is what updates.
  /// Parameters without one stay; every rank brings gradients of the same parameters. A step that
  /// fails changes nothing.
  absl::Status Step(const GatherContext& context, const std::map<std::string, Tensor>& gradients,
                    std::map<std::string, DelayedScalingState>& delayed);

  /// Whole, for layers.
  const std::map<std::string, Parameter>& parameters() const { return whole_; }
  /// f32, flat: this rank's fragment.
  const Tensor& master(const std::string& name) const { return trained_.at(name).master; }
  int64_t steps() const { return steps_; }

  /// This rank's file (kernels/training/shard_checkpoint.h): fragments of masters and moments, and
  /// on the first rank the whole parameters and delayed scaling's states.
  absl::StatusOr<TensorFile> Checkpoint(
      const GatherContext& context,
      const std::map<std::string, DelayedScalingState>& delayed) const;
  /// Goes on from the files of any number of ranks; `parameters` have this group's bounds.
  /// INVALID_ARGUMENT, NOT_FOUND naming the tensor, FAILED_PRECONDITION where the checkpoint is of
  /// another optimizer.
  static absl::StatusOr<DistributedOptimizer> Restore(
      const GatherContext& context, DistributedOptimizerSpec spec,
      std::vector<DistributedParameter> parameters, const ShardCheckpoint& checkpoint,
      std::map<std::string, DelayedScalingState>& delayed);

 private:
  /// Flat fragments, f32.
  struct Trained {
    Tensor master, exp_avg, exp_avg_sq, momentum;
  };

  DistributedOptimizer(DistributedOptimizerSpec spec, std::vector<DistributedParameter> parameters)
      : spec_(std::move(spec)), parameters_(std::move(parameters)) {}

  absl::Status CheckParameters(const GatherContext& context) const;
  absl::Status Begin(const GatherContext& context, const DistributedParameter& parameter,
                     const Tensor& value, std::map<std::string, DelayedScalingState>& delayed);
  absl::StatusOr<Trained> Updated(const GatherContext& context,
                                  const DistributedParameter& parameter, const Tensor& gradient,
                                  int64_t step) const;
  /// The parameters of these masters, whole again.
  absl::Status Assemble(const GatherContext& context,
                        std::span<const DistributedParameter* const> changed,
                        const std::map<std::string, Trained>& trained,
                        std::map<std::string, Parameter>& whole,
                        std::map<std::string, DelayedScalingState>& delayed) const;
  absl::Status RestoreOne(const GatherContext& context, const DistributedParameter& parameter,
                          const ShardCheckpoint& checkpoint,
                          std::map<std::string, DelayedScalingState>& delayed);
  std::string Identity() const;

  DistributedOptimizerSpec spec_;
  std::vector<DistributedParameter> parameters_;
  std::map<std::string, Trained> trained_;
  std::map<std::string, Parameter> whole_;
  int64_t steps_ = 0;
};

}  // namespace quantgate
