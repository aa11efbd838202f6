// What flows through a layer in one step, values forward and gradients backward, and the operations
// other than linear units in both directions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/layer/layer_plan.h"

namespace quantgate {

/// A value between two operations.
struct LayerValue {
  Tensor tensor;
  QuantizedTensor codes;  ///< Made by a quantize operation, for a linear unit.
  /// The values of the codes, which other operations read in place of `tensor`.
  Tensor dequantized;
  /// Tensors within the operation that gave it, which a report judges apart.
  std::vector<NamedTensor> inside = {};

  const Tensor& plain() const { return dequantized.has_value() ? dequantized : tensor; }
};

/// The gradient of a value.
struct ValueGradient : LinearGradient {
  Tensor dequantized;                    ///< As LayerValue::dequantized.
  std::vector<NamedTensor> inside = {};  ///< As LayerValue::inside.

  bool has_value() const { return value.has_value(); }
  const Tensor& plain() const { return dequantized.has_value() ? dequantized : value; }
};

/// What one operation keeps for backward.
struct OperationSaved {
  std::optional<LinearSaved> linear;
  /// A norm's x, gamma, mean and rstd; an activation's x; attention's heads and probabilities.
  std::vector<KeptOperand> operands;
};

/// One program on its way through one step. References must outlive it.
struct ProgramRun {
  StepRecorder& recorder;
  const LayerPlan& layer;
  const ProgramPlan& program;
  LayerState& state;
  std::shared_ptr<const StepOptions> options;
  ExpertAmaxes* expert_amaxes = nullptr;  ///< Null but in a grouped_linear.
  Tensor whole_norm_out = {};             ///< The returned norm_out, if it was gathered.
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

/// Gradients of parameters, by the names of the parameters.
using ParameterGradients = std::map<std::string, Tensor>;

/// dx. If `residual`, another gradient of x, is there, it is added before dx is rounded.
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

/// Operands that an operation keeps for backward.
struct NamedOperands {
  std::vector<const char*> names;
  std::vector<Tensor> tensors;
  std::string parameter = {};  ///< The parameter that one of the tensors may be.
};
/// Keeps the operands that are not absent, under "norm x", "norm gamma", ...
absl::Status KeepAll(ProgramRun& run, const PlannedOperation& operation,
                     const NamedOperands& operands, OperationSaved& saved);
/// Fingerprints the operands again, where backward reads them.
absl::Status UseAll(ProgramRun& run, const PlannedOperation& operation,
                    const OperationSaved& saved);

/// `tensor` cast to the activation dtype, in stage "OPERATION.cast WHAT". Absent if `tensor` is.
absl::StatusOr<Tensor> InActivationDType(ProgramRun& run, const PlannedOperation& operation,
                                         const char* what, const Tensor& tensor);

/// Adds `row` [columns] to every row of `x` [..., columns]; rounds the sums to `out`.
absl::StatusOr<Tensor> AddToEveryRow(StepRecorder& recorder, const Tensor& x, const Tensor& row,
                                     DType out);

/// Concatenates the parts of a grouped_linear's experts, in x's shape but for the last dim. Other
/// layers have one part, which is returned as it is.
absl::StatusOr<Tensor> JoinExpertRows(StepRecorder& recorder, const char* stage,
                                      const LayerPlan& plan, const std::vector<Tensor>& parts);

/// Each expert's rows of a tensor that has x's rows.
absl::StatusOr<std::vector<Tensor>> SplitExpertRows(const LayerPlan& plan, const Tensor& tensor);

/// Rows [begin, begin + count) of [..., columns], in the same memory: [count][columns].
absl::StatusOr<Tensor> RowSlice(const Tensor& tensor, int64_t begin, int64_t count);

}  // namespace quantgate
