#include "kernels/layer/layer_values.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {
namespace {

absl::StatusOr<Tensor> AsMatrix(const Tensor& tensor) {
  return tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
}

/// A tensor of this shape with `row` [columns] in every row, made by doubling.
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

/// The values of a quantize operation's rowwise codes, in the shape of their source.
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

/// Prepares the delayed-scaling state of a quantize operation, in a step that updates or notes it.
absl::Status PrepareState(ProgramRun& run, const PlannedOperation& operation, TensorRole role) {
  const LinearDataflow& flow = operation.linear.flow;
  if (!flow.is_delayed && !flow.is_calibration) return absl::OkStatus();
  return PrepareDelayedStates(run.recorder, operation.names, role, operation.RecipeFor(role),
                              run.state.delayed);
}

absl::Status CalibrateState(ProgramRun& run, const PlannedOperation& operation, TensorRole role,
                            const char* what, const Tensor& source) {
  if (!operation.linear.flow.is_calibration) return absl::OkStatus();
  return CalibrateOperand(run.recorder, operation.names,
                          absl::StrCat(operation.name, ".calibrate ", what), role, source,
                          operation.RecipeFor(role), run.state.delayed);
}

absl::StatusOr<Tensor> ParameterOf(ProgramRun& run, const PlannedOperation& operation,
                                   const char* what, const std::string& name) {
  if (name.empty()) return Tensor();
  return InActivationDType(run, operation, what, run.state.parameters.at(name).value);
}

}  // namespace

absl::Status KeepAll(ProgramRun& run, const PlannedOperation& operation,
                     const NamedOperands& operands, OperationSaved& saved) {
  return run.recorder.Timed(
      {StageKind::kCompare, operation.name + ".fingerprint saved operands"}, [&]() -> absl::Status {
        for (const Tensor& tensor : operands.tensors) saved.operands.push_back({tensor, {}, {}});
        const std::vector<Tensor> held = TensorsOfParameter(run.state, operands.parameter);
        std::vector<OperandToKeep> kept;
        for (size_t i = 0; i < operands.tensors.size(); ++i) {
          const Tensor& tensor = operands.tensors[i];
          if (!tensor.has_value()) continue;
          kept.push_back({absl::StrCat(operation.name, " ", operands.names[i]),
                          std::string(DTypeName(tensor.dtype())), &saved.operands[i], held});
        }
        return Keep(run.recorder, kept);
      });
}

absl::Status UseAll(ProgramRun& run, const PlannedOperation& operation,
                    const OperationSaved& saved) {
  return run.recorder.Timed({StageKind::kCompare, operation.name + ".check saved operands"},
                            [&]() -> absl::Status {
                              std::vector<UsedOperand> used;
                              for (const KeptOperand& kept : saved.operands) {
                                if (kept.mark != nullptr)
                                  used.push_back({kept.mark, kept.Parts(), true});
                              }
                              return run.recorder.Use(used);
                            });
}

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

absl::StatusOr<Tensor> JoinExpertRows(StepRecorder& recorder, const char* stage,
                                      const LayerPlan& plan, const std::vector<Tensor>& parts) {
  if (!plan.has_experts) return parts[0];
  QG_ASSIGN_OR_RETURN(const Tensor joined, recorder.Timed({StageKind::kOperation, stage}, [&] {
    return recorder.engine().ConcatenateRows(parts, recorder.cancellation());
  }));
  return joined.Reinterpret(joined.dtype(), plan.ShapeOfRows(joined.columns()));
}

absl::StatusOr<std::vector<Tensor>> SplitExpertRows(const LayerPlan& plan, const Tensor& tensor) {
  std::vector<Tensor> parts;
  for (const ProgramPlan& program : plan.programs) {
    QG_ASSIGN_OR_RETURN(parts.emplace_back(), RowSlice(tensor, program.first_row, program.rows));
  }
  return parts;
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
  LinearUnit unit = operation.linear;
  unit.recipe = operation.gradient_recipe;
  QG_ASSIGN_OR_RETURN(dx.codes,
                      QuantizeOperand(run.recorder, unit, TensorRole::kGradOutput,
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
  if (run.recorder.faults().Has(kFaultAddendTwice)) {
    QG_ASSIGN_OR_RETURN(y.tensor, run.recorder.engine().Add(y.tensor, b, run.layer.activation_dtype,
                                                            run.recorder.cancellation()));
  }
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

absl::StatusOr<LayerValue> ForwardNorm(ProgramRun& run, size_t index, const LayerValue& x,
                                       OperationSaved& saved) {
  const PlannedOperation& operation = run.program.operations[index];
  NormForwardDesc desc;
  desc.options = operation.norm;
  desc.out = run.program.values[index + 1].dtype;
  QG_ASSIGN_OR_RETURN(desc.x, InActivationDType(run, operation, "x", x.plain()));
  QG_ASSIGN_OR_RETURN(desc.gamma, ParameterOf(run, operation, "gamma", operation.gamma));
  QG_ASSIGN_OR_RETURN(desc.beta, ParameterOf(run, operation, "beta", operation.beta));
  QG_ASSIGN_OR_RETURN(NormForwardResult norm,
                      run.recorder.Timed({StageKind::kOperation, operation.name}, [&] {
                        return run.recorder.engine().NormForward(desc, run.recorder.cancellation());
                      }));
  if (operation.needs_backward) {
    QG_RETURN_IF_ERROR(KeepAll(run, operation,
                               {{"x", "gamma", "mean", "rstd"},
                                {desc.x, desc.gamma, norm.mean, norm.rstd},
                                operation.gamma},
                               saved));
  }
  return LayerValue{std::move(norm.y), {}, {}};
}

absl::StatusOr<ValueGradient> BackwardNorm(ProgramRun& run, size_t index,
                                           const OperationSaved& saved, const ValueGradient& dz,
                                           const Tensor& residual, ParameterGradients& gradients) {
  const PlannedOperation& operation = run.program.operations[index];
  QG_RETURN_IF_ERROR(UseAll(run, operation, saved));
  NormBackwardDesc desc;
  desc.options = operation.norm;
  desc.dz = dz.plain();
  desc.x = saved.operands[0].original;
  desc.gamma = saved.operands[1].original;
  desc.mean = saved.operands[2].original;
  desc.rstd = saved.operands[3].original;
  desc.residual = residual;
  desc.wanted.dx = run.program.values[operation.input].needs_gradient;
  desc.wanted.dgamma = operation.needs_parameters;
  desc.wanted.dbeta = operation.needs_parameters && !operation.beta.empty();
  QG_ASSIGN_OR_RETURN(
      NormGradients norm,
      run.recorder.Timed({StageKind::kOperation, operation.name + ".backward"}, [&] {
        return run.recorder.engine().NormBackward(desc, run.recorder.cancellation());
      }));
  if (desc.wanted.dgamma) gradients[operation.gamma] = std::move(norm.dgamma);
  if (desc.wanted.dbeta) gradients[operation.beta] = std::move(norm.dbeta);
  ValueGradient dx;
  dx.value = std::move(norm.dx);
  return dx;
}

absl::StatusOr<LayerValue> ForwardActivation(ProgramRun& run, size_t index, const LayerValue& x,
                                             OperationSaved& saved) {
  const PlannedOperation& operation = run.program.operations[index];
  QG_ASSIGN_OR_RETURN(const Tensor h, InActivationDType(run, operation, "x", x.plain()));
  LayerValue y;
  QG_ASSIGN_OR_RETURN(y.tensor, run.recorder.Timed({StageKind::kOperation, operation.name}, [&] {
    return run.recorder.engine().ActivationForward(
        h, operation.activation, run.program.values[index + 1].dtype, run.recorder.cancellation());
  }));
  if (operation.needs_backward) {
    QG_RETURN_IF_ERROR(KeepAll(run, operation, {{"x"}, {h}}, saved));
  }
  return y;
}

absl::StatusOr<ValueGradient> BackwardActivation(ProgramRun& run, size_t index,
                                                 const OperationSaved& saved,
                                                 const ValueGradient& dy) {
  const PlannedOperation& operation = run.program.operations[index];
  QG_RETURN_IF_ERROR(UseAll(run, operation, saved));
  const bool is_rounded = operation.gradient == ActivationGradient::kRounded;
  const DType out = is_rounded ? run.layer.activation_dtype : DType::kF32;
  QG_ASSIGN_OR_RETURN(
      Tensor dh, run.recorder.Timed({StageKind::kOperation, operation.name + ".backward"}, [&] {
        return run.recorder.engine().ActivationBackward(dy.plain(), saved.operands[0].original,
                                                        operation.activation, out,
                                                        run.recorder.cancellation());
      }));
  ValueGradient dx;
  if (operation.gradient == ActivationGradient::kForBiasOnly) {
    QG_ASSIGN_OR_RETURN(dx.value, run.recorder.Cast(operation.name + ".round gradient", dh,
                                                    run.layer.activation_dtype));
    dx.bias_source = std::move(dh);
    return dx;
  }
  dx.is_unrounded = !is_rounded;
  dx.value = std::move(dh);
  return dx;
}

}  // namespace quantgate
