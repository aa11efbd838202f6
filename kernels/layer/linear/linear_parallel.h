// The collectives of a linear unit (docs/ranks.md section 2): what of x and grad_output is
// gathered before the GEMMs that contract over other ranks' rows, what of y and dx is summed after
// the GEMMs whose contraction is divided. Units that are not parallel never come here.
#pragma once

#include <string>

#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {

/// Whether quantizing a shard so takes an amax of the whole tensor.
bool ReducesAmax(const Quantizer& quantizer, Usages usages);

/// An operand that is divided along M.
struct GatheredOperand {
  KeptOperand whole;  ///< What the GEMMs read; where the GEMM gathers it, this rank's rows.
  KeptOperand shard;  ///< This rank's rows, as backward needs them.
};

/// One unit's collectives in one step. Every rank of the group calls the same in the same order.
class LinearCollectives {
 public:
  LinearCollectives(StepRecorder& recorder, const LinearUnit& unit, const StepOptions& options,
                    LayerState& state)
      : recorder_(recorder), unit_(unit), options_(options), state_(state) {}

  /// x of fprop from this rank's rows, and what of these is kept.
  absl::StatusOr<GatheredOperand> GatherX(const Tensor& shard);
  /// x of wgrad from what forward kept, without an override.
  absl::StatusOr<KeptOperand> RegatherX(const KeptOperand& shard);
  /// x of wgrad under an override, from its rows in the activation dtype.
  absl::StatusOr<Tensor> GatherOverriddenX(const Tensor& shard);
  /// grad_output as dgrad and wgrad read it, without an override.
  absl::StatusOr<KeptOperand> GatherGradOutput(const Tensor& shard);
  /// This rank's rows of it, for a dgrad that gathers them itself.
  absl::StatusOr<KeptOperand> GradOutputShard(const Tensor& shard);
  /// Its columnwise codes of all ranks, from those of this rank's.
  absl::StatusOr<KeptOperand> GatherColumnwiseGradOutput(const KeptOperand& shard);
  /// FAILED_PRECONDITION on every rank unless a per-tensor scale of x's codes is everybody's.
  absl::Status CheckScaleOfX(const KeptOperand& shard);
  /// High precision along dim 0, in stage "all-gather WHAT".
  absl::StatusOr<Tensor> Gather(const char* what, const Tensor& shard);

  /// A partial y [M][N] to the sum over the ranks, all of it or this rank's rows.
  absl::StatusOr<Tensor> ReduceY(const Tensor& partial) { return Reduce("y", partial); }
  /// That sum and the bias of a row-parallel unit, which no GEMM adds; absent: none.
  absl::StatusOr<Tensor> AddBias(const Tensor& y, const Tensor& bias);
  /// A partial dx [M][K], likewise.
  absl::StatusOr<Tensor> ReduceDx(const Tensor& partial) { return Reduce("dx", partial); }

 private:
  struct Role {
    TensorRole role;
    const char* what;  ///< Of stages: "x", "grad_output".
    const char* quantize_stage;
    const std::string& name;
    GatherMethod method;
  };
  Role X() const;
  Role GradOutput() const;

  GatherContext context() const;
  ProcessGroup& group() const;
  const LinearParallel& parallel() const { return unit_.parallel; }
  absl::StatusOr<QuantizedTensor> QuantizeShard(const Role& role, const Tensor& shard,
                                                Usages usages);
  absl::StatusOr<QuantizedTensor> QuantizeWhole(const Role& role, const Tensor& whole,
                                                Usages usages);
  absl::StatusOr<QuantizedTensor> GatherShardCodes(const Role& role, const QuantizedTensor& shard,
                                                   Usages usages);
  /// What the codes of the shards stand for; the source of shards without codes.
  absl::StatusOr<Tensor> GatherValues(const Role& role, const KeptOperand& shard);
  absl::StatusOr<KeptOperand> FpropX(const KeptOperand& shard);
  absl::StatusOr<Tensor> Reduce(const char* what, const Tensor& partial);
  void SpoilSaved(KeptOperand& shard);

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  const StepOptions& options_;
  LayerState& state_;
};

}  // namespace quantgate
