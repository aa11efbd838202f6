// Operations of a layer that keep nothing for backward: bias, quantize, add, scale.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_values.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {
namespace {

absl::StatusOr<Tensor> AsMatrix(const Tensor& tensor) {
  return tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
}

/// `row` [columns] in every row of a tensor of this shape, by doubling.
absl::StatusOr<Tensor> InEveryRow(StepRecorder& recorder, const Tensor& row, const Shape& shape,
                                  int64_t rows) {
  QG_ASSIGN_OR_RETURN(Tensor all, row.Reinterpret(row.dtype(), {1, row.element_count()}));
  while (all.shape()[0] < rows) {
    const Tensor twice[] = {all, all};
    QG_ASSIGN_OR_RETURN(all, recorder.engine().ConcatenateRows(twice, recorder.cancellation()));
  }
  QG_ASSIGN_OR_RETURN(all, RowSlice(all, 0, rows));
  return all.Reinterpret(all.dtype(), shape);
}

/// What a quantize operation's rowwise codes stand for, in the shape of their source.
absl::StatusOr<Tensor> Dequantized(ProgramRun& run, const PlannedOperation& operation,
                                   const char* what, const QuantizedTensor& codes,
                                   const Shape& shape) {
  QG_ASSIGN_OR_RETURN(
      const Tensor matrix,
      run.recorder.Timed(
          {StageKind::kQuantize, absl::StrCat(operation.name, ".dequantize ", what)}, [&] {
            return run.recorder.engine().Dequantize(
                codes, Usage::kRowwise, run.layer.activation_dtype, run.recorder.cancellation());
          }));
  return matrix.Reinterpret(matrix.dtype(), shape);
}

/// Of what a quantize operation quantizes, in a step that updates or notes them.
absl::Status PrepareState(ProgramRun& run, const PlannedOperation& operation, TensorRole role) {
  const LinearDataflow& flow = operation.linear.flow;
  if (!flow.is_delayed && !flow.is_calibration) return absl::OkStatus();
  return PrepareDelayedState(run.recorder, operation.names.StateOf(role),
                             run.options->recipe.delayed_scaling(), run.state.delayed);
}

absl::Status CalibrateState(ProgramRun& run, const PlannedOperation& operation, TensorRole role,
                            const char* what, const Tensor& source) {
  if (!operation.linear.flow.is_calibration) return absl::OkStatus();
  return Calibrate(run.recorder, absl::StrCat(operation.name, ".calibrate ", what), source,
                   run.options->recipe.QuantizerFor(role).rowwise,
                   run.state.delayed[operation.names.StateOf(role)]);
}

}  // namespace

absl::StatusOr<Tensor> InActivationDType(ProgramRun& run, const PlannedOperation& operation,
                                         const char* what, const Tensor& tensor) {
  if (!tensor.has_value()) return tensor;
  return run.recorder.Cast(absl::StrCat(operation.name, ".cast ", what), tensor,
                           run.layer.activation_dtype);
}

absl::StatusOr<Tensor> RowSlice(const Tensor& tensor, int64_t begin, int64_t count) {
  QG_ASSIGN_OR_RETURN(const Tensor flat,
                      tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()}));
  return flat.RowRange(begin, count);
}

absl::StatusOr<Tensor> AddToEveryRow(StepRecorder& recorder, const Tensor& x, const Tensor& row,
                                     DType out) {
  QG_ASSIGN_OR_RETURN(const Tensor rows, InEveryRow(recorder, row, x.shape(), x.rows()));
  return recorder.engine().Add(x, rows, out, recorder.cancellation());
}

absl::StatusOr<LayerValue> ForwardBias(ProgramRun& run, size_t index, const LayerValue& x) {
  const PlannedOperation& operation = run.program.operations[index];
  QG_ASSIGN_OR_RETURN(const Tensor input, InActivationDType(run, operation, "x", x.plain()));
  QG_ASSIGN_OR_RETURN(
      const Tensor bias,
      InActivationDType(run, operation, "bias", run.state.parameters.at(operation.bias).value));
  LayerValue y;
  QG_ASSIGN_OR_RETURN(
      y.tensor,
      run.recorder.Timed({StageKind::kOperation, operation.name}, [&]() -> absl::StatusOr<Tensor> {
        return AddToEveryRow(run.recorder, input, bias, run.layer.activation_dtype);
      }));
  return y;
}

absl::StatusOr<ValueGradient> BackwardBias(ProgramRun& run, size_t index, const ValueGradient& dy,
                                           ParameterGradients& gradients) {
  const PlannedOperation& operation = run.program.operations[index];
  if (operation.needs_parameters) {
    QG_ASSIGN_OR_RETURN(const Tensor matrix, AsMatrix(dy.plain()));
    QG_ASSIGN_OR_RETURN(
        gradients[operation.bias],
        run.recorder.Timed({StageKind::kOperation, operation.name + ".gradient"}, [&] {
          return run.recorder.engine().ColumnSums(matrix, run.layer.activation_dtype,
                                                  run.recorder.cancellation());
        }));
  }
  return dy;
}

absl::StatusOr<LayerValue> ForwardQuantize(ProgramRun& run, size_t index, const LayerValue& x) {
  const PlannedOperation& operation = run.program.operations[index];
  LayerValue y;
  QG_ASSIGN_OR_RETURN(y.tensor, InActivationDType(run, operation, "x", x.plain()));
  if (operation.quantizes_backward) {
    QG_RETURN_IF_ERROR(PrepareState(run, operation, TensorRole::kGradOutput));
  }
  if (!operation.quantizes_forward) return y;
  QG_RETURN_IF_ERROR(PrepareState(run, operation, TensorRole::kInput));
  QG_RETURN_IF_ERROR(CalibrateState(run, operation, TensorRole::kInput, "x", y.tensor));
  if (!IsAny(operation.forward_usages)) return y;
  QG_ASSIGN_OR_RETURN(const Tensor matrix, AsMatrix(y.tensor));
  QG_ASSIGN_OR_RETURN(
      y.codes, QuantizeOperand(run.recorder, operation.linear, TensorRole::kInput, kStageQuantizeX,
                               operation.names.x, matrix, operation.forward_usages, *run.options,
                               run.state.delayed));
  if (operation.dequantizes_forward) {
    QG_ASSIGN_OR_RETURN(y.dequantized, Dequantized(run, operation, "x", y.codes, y.tensor.shape()));
  }
  return y;
}

absl::StatusOr<ValueGradient> BackwardQuantize(ProgramRun& run, size_t index,
                                               const ValueGradient& dy) {
  const PlannedOperation& operation = run.program.operations[index];
  ValueGradient dx;
  dx.value = dy.plain();
  if (operation.quantizes_backward) {
    QG_RETURN_IF_ERROR(
        CalibrateState(run, operation, TensorRole::kGradOutput, "grad_output", dx.value));
  }
  if (!IsAny(operation.backward_usages)) return dx;
  QG_ASSIGN_OR_RETURN(const Tensor matrix, AsMatrix(dx.value));
  QG_ASSIGN_OR_RETURN(dx.codes,
                      QuantizeOperand(run.recorder, operation.linear, TensorRole::kGradOutput,
                                      kStageQuantizeGradOutput, operation.names.grad_output, matrix,
                                      operation.backward_usages, *run.options, run.state.delayed));
  if (operation.dequantizes_backward) {
    QG_ASSIGN_OR_RETURN(dx.dequantized,
                        Dequantized(run, operation, "grad_output", dx.codes, dx.value.shape()));
  }
  return dx;
}

absl::StatusOr<LayerValue> ForwardAdd(ProgramRun& run, size_t index, const LayerValue& x,
                                      const LayerValue& addend) {
  const PlannedOperation& operation = run.program.operations[index];
  QG_ASSIGN_OR_RETURN(const Tensor a, InActivationDType(run, operation, "x", x.plain()));
  QG_ASSIGN_OR_RETURN(const Tensor b, InActivationDType(run, operation, "addend", addend.plain()));
  LayerValue y;
  QG_ASSIGN_OR_RETURN(y.tensor, run.recorder.Timed({StageKind::kOperation, operation.name}, [&] {
    return run.recorder.engine().Add(a, b, run.layer.activation_dtype, run.recorder.cancellation());
  }));
  return y;
}

absl::StatusOr<LayerValue> ForwardScale(ProgramRun& run, size_t index, const LayerValue& x) {
  const PlannedOperation& operation = run.program.operations[index];
  QG_ASSIGN_OR_RETURN(const Tensor input, InActivationDType(run, operation, "x", x.plain()));
  LayerValue y;
  QG_ASSIGN_OR_RETURN(y.tensor, run.recorder.Timed({StageKind::kOperation, operation.name}, [&] {
    return run.recorder.engine().Scale(input, operation.factor, run.layer.activation_dtype,
                                       run.recorder.cancellation());
  }));
  return y;
}

absl::StatusOr<ValueGradient> BackwardScale(ProgramRun& run, size_t index,
                                            const ValueGradient& dy) {
  const PlannedOperation& operation = run.program.operations[index];
  ValueGradient dx;
  QG_ASSIGN_OR_RETURN(
      dx.value, run.recorder.Timed({StageKind::kOperation, operation.name + ".backward"}, [&] {
        return run.recorder.engine().Scale(dy.plain(), operation.factor, run.layer.activation_dtype,
                                           run.recorder.cancellation());
      }));
  return dx;
}

}  // namespace quantgate
