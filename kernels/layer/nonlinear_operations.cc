// Norms and activations of a layer: what they keep for backward is fingerprinted like operands of
// GEMMs.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_values.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {
namespace {

struct NamedOperands {
  std::vector<const char*> names;
  std::vector<Tensor> tensors;
};

/// Keeps what is there of `operands`, under "norm x", "norm gamma", ...
absl::Status KeepAll(ProgramRun& run, const PlannedOperation& operation,
                     const NamedOperands& operands, OperationSaved& saved) {
  return run.recorder.Timed(
      {StageKind::kCompare, operation.name + ".fingerprint saved operands"}, [&]() -> absl::Status {
        for (const Tensor& tensor : operands.tensors) saved.operands.push_back({tensor, {}, {}});
        std::vector<OperandToKeep> kept;
        for (size_t i = 0; i < operands.tensors.size(); ++i) {
          const Tensor& tensor = operands.tensors[i];
          if (!tensor.has_value()) continue;
          kept.push_back({absl::StrCat(operation.name, " ", operands.names[i]),
                          std::string(DTypeName(tensor.dtype())), &saved.operands[i]});
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

absl::StatusOr<Tensor> ParameterOf(ProgramRun& run, const PlannedOperation& operation,
                                   const char* what, const std::string& name) {
  if (name.empty()) return Tensor();
  return InActivationDType(run, operation, what, run.state.parameters.at(name).value);
}

}  // namespace

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
    QG_RETURN_IF_ERROR(KeepAll(
        run, operation,
        {{"x", "gamma", "mean", "rstd"}, {desc.x, desc.gamma, norm.mean, norm.rstd}}, saved));
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
