// The collectives of a linear unit (docs/ranks.md section 2): x and grad_output are gathered
// before GEMMs that need other ranks' rows, and y and dx are summed after GEMMs whose contraction
// is divided. Units that are not parallel have none.
#pragma once

#include <string>

#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {

/// Whether quantizing a shard by this rule in these usages needs the amax of the whole tensor.
bool ReducesAmax(const Quantizer& quantizer, Usages usages);

/// An operand that is divided along M.
struct GatheredOperand {
  KeptOperand whole;  ///< What the GEMMs read; this rank's rows if the GEMM gathers it itself.
  KeptOperand shard;  ///< This rank's rows, as backward needs them.
};

/// One unit's collectives in one step. Every rank of the group must make the same calls in the same
/// order.
class LinearCollectives {
 public:
  LinearCollectives(StepRecorder& recorder, const LinearUnit& unit, const StepOptions& options,
                    LayerState& state)
      : recorder_(recorder), unit_(unit), options_(options), state_(state) {}

  /// x for fprop from this rank's rows, and this rank's part to keep for backward.
  absl::StatusOr<GatheredOperand> GatherX(const Tensor& shard);
  /// x for wgrad from what forward kept, without a backward override.
  absl::StatusOr<KeptOperand> RegatherX(const KeptOperand& shard);
  /// x for wgrad under a backward override, from this rank's rows in the activation dtype.
  absl::StatusOr<KeptOperand> GatherOverriddenX(const Tensor& shard);
  /// grad_output for dgrad and wgrad, without a backward override.
  absl::StatusOr<KeptOperand> GatherGradOutput(const Tensor& shard);
  /// This rank's rows of grad_output, for a dgrad that gathers them itself.
  absl::StatusOr<KeptOperand> GradOutputShard(const Tensor& shard);
  /// The columnwise codes of the whole grad_output, from this rank's.
  absl::StatusOr<KeptOperand> GatherColumnwiseGradOutput(const KeptOperand& shard);
  /// FAILED_PRECONDITION on every rank unless the per-tensor scale of x's codes is the same on all.
  absl::Status CheckScaleOfX(const KeptOperand& shard);
  /// Gathers a high-precision tensor along dim 0, in stage "all-gather WHAT".
  absl::StatusOr<Tensor> Gather(const char* what, const Tensor& shard);
  /// Counts an operand that was gathered for backward until its last copy has gone.
  void Hold(KeptOperand& gathered);

  /// The sum over the ranks of a partial y [M][N]: all rows, or this rank's under sequence
  /// parallelism.
  absl::StatusOr<Tensor> ReduceY(const Tensor& partial) { return Reduce("y", partial); }
  /// Adds the bias of a row-parallel unit, which no GEMM adds, to that sum. An absent bias adds
  /// nothing.
  absl::StatusOr<Tensor> AddBias(const Tensor& y, const Tensor& bias);
  /// The sum over the ranks of a partial dx [M][K], as ReduceY.
  absl::StatusOr<Tensor> ReduceDx(const Tensor& partial) { return Reduce("dx", partial); }

 private:
  struct Role {
    TensorRole role;
    const char* what;  ///< The operand in names of stages: "x", "grad_output".
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
  /// The whole operand in high precision: the values of the shards' codes, or the shards themselves
  /// if they have none.
  absl::StatusOr<Tensor> GatherValues(const Role& role, const KeptOperand& shard);
  /// The whole operand quantized from what GatherValues gives, which is put into `values`; both
  /// count as gathered.
  absl::StatusOr<KeptOperand> GatherAndQuantize(const Role& role, const KeptOperand& shard,
                                                Usages usages, KeptOperand& values);
  absl::StatusOr<KeptOperand> FpropX(const KeptOperand& shard);
  absl::StatusOr<KeptOperand> WholeGradOutput(const Tensor& shard);
  absl::StatusOr<Tensor> Reduce(const char* what, const Tensor& partial);
  void SeedSavedFaults(KeptOperand& shard);

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  const StepOptions& options_;
  LayerState& state_;
};

}  // namespace quantgate
