#include "kernels/layer/linear/linear_weight.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {

LinearWeight::LinearWeight(StepRecorder& recorder, const LinearUnit& unit, LayerState& state,
                           const StepOptions& options, ExpertAmaxes* expert_amaxes)
    : recorder_(recorder),
      unit_(unit),
      state_(state),
      options_(options),
      parameter_(state.parameters.at(unit.names.weight)),
      expert_amaxes_(expert_amaxes) {}

/// The weight in the parameter's dtype, or in the activation dtype if it is dequantized.
absl::StatusOr<Tensor> LinearWeight::HighPrecision() {
  if (!parameter_.is_quantized()) return parameter_.value;
  if (dequantized_.has_value()) return dequantized_;
  QG_ASSIGN_OR_RETURN(dequantized_,
                      DequantizeAny(recorder_, unit_.names.Stage("dequantize weight"),
                                    parameter_.quantized, unit_.flow.activation_dtype));
  return dequantized_;
}

absl::Status LinearWeight::Calibrate() {
  QG_ASSIGN_OR_RETURN(const Tensor source, HighPrecision());
  return CalibrateOperand(recorder_, unit_.names, unit_.names.Stage("calibrate weight"),
                          TensorRole::kWeight, source, *unit_.recipe, state_.delayed);
}

absl::StatusOr<QuantizedTensor> LinearWeight::Quantize(Usages usages) {
  QG_ASSIGN_OR_RETURN(QuantizeArguments arguments,
                      GroupAmaxesOf(recorder_, unit_, TensorRole::kWeight, usages, expert_amaxes_));
  return QuantizeOperand(recorder_, unit_, TensorRole::kWeight, kStageQuantizeWeight,
                         unit_.names.weight, parameter_.value, usages, options_, state_.delayed,
                         std::move(arguments));
}

absl::StatusOr<QuantizedTensor> LinearWeight::CodesOfParameter() {
  const Usages needed = unit_.flow.weight_usages;
  const std::string field = absl::StrCat("parameters[", unit_.names.weight, "]");
  if (parameter_.quantizer != quantizer()) {
    return RefusePrecondition(
        field, "quantized as " + QuantizerText(parameter_.quantizer),
        absl::StrCat("recipe ", unit_.recipe->ShortText(), " reads weights as ",
                     QuantizerText(quantizer()), ", so it must be quantized anew"));
  }
  const Usages held = parameter_.quantized.usages();
  if (!Covers(held, needed)) {
    const absl::Status status = recorder_.engine().UpdateUsages(
        parameter_.quantized, Union(held, needed), recorder_.cancellation());
    if (!status.ok()) {
      const Usage missing = needed.rowwise && !held.rowwise ? Usage::kRowwise : Usage::kColumnwise;
      return StatusOf({.code = status.code(),
                       .field = field,
                       .value = absl::StrCat("without ", std::string(UsageName(missing)), " codes"),
                       .rule = absl::StrCat("this step reads them; ", status.message())});
    }
    recorder_.AddNote(DerivedNote(unit_.names.weight, held));
  }
  return OnlyUsages(parameter_.quantized, needed);
}

/// Row 57: leaves the codes and writes what else the cast would.
absl::Status LinearWeight::SeedSkippedCastInPart(QuantizedTensor& kept) {
  if (!recorder_.faults().Has(kFaultSkippedCastInPart)) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const QuantizedTensor anew, Quantize(kept.usages()));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!kept.copy(usage).has_value()) continue;
    kept.copy(usage)->scale_inv = anew.copy(usage)->scale_inv;
    kept.copy(usage)->amax = anew.copy(usage)->amax;
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizedTensor> LinearWeight::Codes() {
  if (parameter_.is_quantized()) return CodesOfParameter();
  Usages usages = unit_.flow.weight_usages;
  if (options_.microbatch == Microbatch::kUnset) return Quantize(usages);
  WeightWorkspace& workspace = state_.workspaces[unit_.names.weight];
  const AmaxGroup amax_group =
      options_.parallel == nullptr
          ? AmaxGroup()
          : AmaxGroupOf(options_.parallel->amax_groups, TensorRole::kWeight);
  const bool is_made_so = workspace.quantizer == quantizer() && workspace.amax_group == amax_group;
  const bool is_cast_anyway = recorder_.faults().Has(kFaultSkippedCastDone);
  if (options_.microbatch == Microbatch::kLater && is_made_so && !is_cast_anyway) {
    QG_RETURN_IF_ERROR(SeedSkippedCastInPart(workspace.quantized));
    const Usages held = workspace.quantized.usages();
    if (Covers(held, usages)) return OnlyUsages(workspace.quantized, usages);
    // Both directions are quantized anew, since delayed scaling's scale may have changed.
    usages = Union(held, usages);
  }
  QG_ASSIGN_OR_RETURN(workspace.quantized, Quantize(usages));
  workspace.quantizer = quantizer();
  workspace.amax_group = amax_group;
  return OnlyUsages(workspace.quantized, unit_.flow.weight_usages);
}

absl::StatusOr<KeptOperand> LinearWeight::Prepare() {
  const LinearDataflow& flow = unit_.flow;
  KeptOperand weight;
  if (flow.reads_weight_codes()) {
    QG_ASSIGN_OR_RETURN(weight.codes, Codes());
  }
  if (flow.reads_weight) {
    QG_ASSIGN_OR_RETURN(const Tensor source, HighPrecision());
    QG_ASSIGN_OR_RETURN(weight.original, recorder_.Cast(unit_.names.Stage("cast weight"), source,
                                                        flow.activation_dtype));
  }
  if (!flow.has_weight_copy() || quantizer().columnwise.casts()) return weight;
  QuantizedCopy& copy = *weight.codes.columnwise;
  QG_ASSIGN_OR_RETURN(copy.data, recorder_.Cast(unit_.names.Stage("cast dequantized weight"),
                                                copy.data, flow.activation_dtype));
  copy.element = copy.data.dtype();
  return weight;
}

}  // namespace quantgate
