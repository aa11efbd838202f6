// What flows through a layer in one step: values forward, gradients backward, and the operations
// that are no linear unit, each in both directions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/layer/layer_plan.h"

namespace quantgate {

/// What an operation gave the next.
struct LayerValue {
  Tensor tensor;
  QuantizedTensor codes;  ///< Of a quantize operation, for a linear unit.
  /// What other operations read in place of `tensor`: what the codes stand for.
  Tensor dequantized;

  const Tensor& plain() const { return dequantized.has_value() ? dequantized : tensor; }
};

/// The gradient of a value.
struct ValueGradient : LinearGradient {
  Tensor dequantized;  ///< As LayerValue's.

  bool has_value() const { return value.has_value(); }
  const Tensor& plain() const { return dequantized.has_value() ? dequantized : value; }
};

/// What one operation keeps for backward. Of a norm x, gamma, mean and rstd; of an activation x.
struct OperationSaved {
  std::optional<LinearSaved> linear;
  std::vector<KeptOperand> operands;
};

/// One program in one step.
struct ProgramRun {
  StepRecorder& recorder;
  const LayerPlan& layer;
  const ProgramPlan& program;
  LayerState& state;
  std::shared_ptr<const StepOptions> options;
  ExpertAmaxes* expert_amaxes = nullptr;  ///< Of a grouped_linear.
  Tensor whole_norm_out = {};             ///< Where the value that is returned is gathered.
};

absl::StatusOr<LayerValue> ForwardNorm(ProgramRun& run, size_t operation, const LayerValue& x,
                                       OperationSaved& saved);
absl::StatusOr<LayerValue> ForwardActivation(ProgramRun& run, size_t operation, const LayerValue& x,
                                             OperationSaved& saved);
absl::StatusOr<LayerValue> ForwardBias(ProgramRun& run, size_t operation, const LayerValue& x);
absl::StatusOr<LayerValue> ForwardQuantize(ProgramRun& run, size_t operation, const LayerValue& x);
absl::StatusOr<LayerValue> ForwardAdd(ProgramRun& run, size_t operation, const LayerValue& x,
                                      const LayerValue& addend);
absl::StatusOr<LayerValue> ForwardScale(ProgramRun& run, size_t operation, const LayerValue& x);

/// Gradients of parameters by their names.
using ParameterGradients = std::map<std::string, Tensor>;

/// dx, with `residual`, another gradient of x, in its sum before the rounding where that is there.
absl::StatusOr<ValueGradient> BackwardNorm(ProgramRun& run, size_t operation,
                                           const OperationSaved& saved, const ValueGradient& dz,
                                           const Tensor& residual, ParameterGradients& gradients);
absl::StatusOr<ValueGradient> BackwardActivation(ProgramRun& run, size_t operation,
                                                 const OperationSaved& saved,
                                                 const ValueGradient& dy);
absl::StatusOr<ValueGradient> BackwardBias(ProgramRun& run, size_t operation,
                                           const ValueGradient& dy, ParameterGradients& gradients);
absl::StatusOr<ValueGradient> BackwardQuantize(ProgramRun& run, size_t operation,
                                               const ValueGradient& dy);
absl::StatusOr<ValueGradient> BackwardScale(ProgramRun& run, size_t operation,
                                            const ValueGradient& dy);

/// In the activation dtype; none for none. Stage "OPERATION.cast WHAT".
absl::StatusOr<Tensor> InActivationDType(ProgramRun& run, const PlannedOperation& operation,
                                         const char* what, const Tensor& tensor);

/// x + row in every row: [..., columns] and [columns], rounded to `out`.
absl::StatusOr<Tensor> AddToEveryRow(StepRecorder& recorder, const Tensor& x, const Tensor& row,
                                     DType out);

/// The parts of a grouped_linear one after the other, in the shape of x's rows; of other layers
/// their one part.
absl::StatusOr<Tensor> JoinExpertRows(StepRecorder& recorder, const char* stage,
                                      const LayerPlan& plan, const std::vector<Tensor>& parts);

/// The other way round: each expert's rows.
absl::StatusOr<std::vector<Tensor>> SplitExpertRows(const LayerPlan& plan, const Tensor& tensor);

/// Rows [begin, begin + count) of [..., columns], in the same memory: [count][columns].
absl::StatusOr<Tensor> RowSlice(const Tensor& tensor, int64_t begin, int64_t count);

}  // namespace quantgate
