#include "kernels/training/parameter_update.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/delayed_reduction.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/linear_parallel.h"
#include "kernels/training/session_faults.h"

namespace quantgate {
namespace {

/// The quantizer of a seeded fault, which rounds weights as gradients are rounded.
Quantizer RoundedStochastically(Quantizer quantizer) {
  quantizer.rowwise.element_rounding = ElementRounding::kStochastic;
  quantizer.columnwise.element_rounding = ElementRounding::kStochastic;
  return quantizer;
}

}  // namespace

absl::StatusOr<Tensor> ParameterUpdate::Cast(const Tensor& source, DType dtype) {
  if (source.dtype() == dtype) return source;
  return engine_.Cast(source, dtype, cancellation_);
}

absl::Status ParameterUpdate::Begin(SessionLayerState& layer) {
  for (auto& [name, parameter] : layer.state.parameters) {
    TrainedParameter& trained = layer.trained[name];
    const Tensor given = parameter.value;
    QG_ASSIGN_OR_RETURN(const Tensor master, Cast(given, DType::kF32));
    if (spec_.masters == Masters::kF32) trained.master = master;
    if (spec_.masters == Masters::kBf16Remainder) {
      if (given.dtype() == DType::kF16) {
        return Refuse("masters", "bf16_remainder",
                      absl::StrCat(name, " is ", TensorText(given), ", and must be bf16 or f32"));
      }
      QG_ASSIGN_OR_RETURN(trained.split, engine_.SplitMaster(master, cancellation_));
      parameter.value = trained.split.parameter;
    }
    if (spec_.weights != WeightStorage::kQuantized || !IsWeight(name)) continue;
    parameter.quantized.source_dtype = parameter.value.dtype();
    parameter.value = Tensor();
    // The first quantization is like every later update (docs/sessions.md section 2).
    QG_RETURN_IF_ERROR(Quantize(name, master, {true, !spec_.built_without_grad}, layer));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ParameterUpdate::MasterOf(const Parameter& parameter,
                                                 const TrainedParameter& trained) {
  const bool reads_master = !faults_.Has(kFaultMasterIgnored);
  if (spec_.masters == Masters::kF32 && reads_master) return trained.master;
  if (spec_.masters == Masters::kBf16Remainder && reads_master) {
    return engine_.JoinMaster(trained.split, cancellation_);
  }
  if (!parameter.is_quantized()) return Cast(parameter.value, DType::kF32);
  const QuantizedTensor& quantized = parameter.quantized;
  const Usage usage = quantized.rowwise.has_value() ? Usage::kRowwise : Usage::kColumnwise;
  return engine_.Dequantize(quantized, usage, DType::kF32, cancellation_);
}

absl::StatusOr<Tensor> ParameterUpdate::Updated(const Tensor& master, const Tensor& gradient,
                                                const OptimizerSpec& optimizer, int64_t step,
                                                TrainedParameter& trained) {
  if (optimizer.kind == OptimizerSpec::Kind::kAdam) {
    const AdamDesc desc{master,         gradient, trained.exp_avg, trained.exp_avg_sq,
                        optimizer.adam, step};
    QG_ASSIGN_OR_RETURN(AdamResult adam, engine_.AdamStep(desc, cancellation_));
    trained.exp_avg = std::move(adam.m);
    trained.exp_avg_sq = std::move(adam.v);
    return std::move(adam.master);
  }
  const SgdDesc desc{master, gradient, trained.momentum, optimizer.sgd};
  QG_ASSIGN_OR_RETURN(SgdResult sgd, engine_.SgdStep(desc, cancellation_));
  trained.momentum = std::move(sgd.momentum);
  return std::move(sgd.master);
}

absl::Status ParameterUpdate::Optimize(SessionLayerState& layer, const OptimizerSpec& optimizer,
                                       int64_t step) {
  for (auto& [name, parameter] : layer.state.parameters) {
    TrainedParameter& trained = layer.trained[name];
    const Tensor gradient =
        trained.has_main_gradient ? layer.state.main_grads.at(name) : trained.gradient;
    if (!gradient.has_value()) continue;
    QG_ASSIGN_OR_RETURN(const Tensor master, MasterOf(parameter, trained));
    QG_ASSIGN_OR_RETURN(const Tensor updated, Updated(master, gradient, optimizer, step, trained));
    QG_RETURN_IF_ERROR(Store(name, updated, layer));
    trained.gradient = Tensor();
    if (!trained.has_main_gradient) continue;
    trained.has_main_gradient = false;
    const auto divided = layer.divided.find(name);
    const Shape whole =
        divided == layer.divided.end() ? gradient.shape() : divided->second.weight.shape;
    QG_ASSIGN_OR_RETURN(layer.state.main_grads[name], Zeros(engine_, whole, cancellation_));
  }
  return absl::OkStatus();
}

absl::Status ParameterUpdate::Store(const std::string& name, const Tensor& master,
                                    SessionLayerState& layer) {
  Parameter& parameter = layer.state.parameters.at(name);
  TrainedParameter& trained = layer.trained[name];
  if (spec_.masters == Masters::kF32) trained.master = master;
  if (spec_.masters == Masters::kBf16Remainder) {
    QG_ASSIGN_OR_RETURN(trained.split, engine_.SplitMaster(master, cancellation_));
  }
  if (parameter.is_quantized()) {
    return Quantize(name, master, parameter.quantized.usages(), layer);
  }
  QG_ASSIGN_OR_RETURN(parameter.value, ValueOf(name, master, parameter.value.dtype(), layer));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ParameterUpdate::ValueOf(const std::string& name, const Tensor& master,
                                                DType dtype, const SessionLayerState& layer) {
  if (spec_.masters == Masters::kBf16Remainder) return layer.trained.at(name).split.parameter;
  QG_ASSIGN_OR_RETURN(const Tensor value, Cast(master, dtype));
  const auto divided = layer.divided.find(name);
  if (divided == layer.divided.end() || divided->second.by_rows()) return value;
  return division_.Whole(layer_, divided->second, value);
}

absl::StatusOr<Tensor> ParameterUpdate::SourceOf(const Tensor& master,
                                                 const TrainedParameter& trained) {
  const bool through_bf16 = (spec_.requantization == Requantization::kThroughBf16) !=
                            faults_.Has(kFaultRequantizationTheOtherWay);
  if (!through_bf16) return master;
  // The parameter is the bf16 part of bf16_remainder, which rounds ties differently than a cast.
  if (spec_.masters == Masters::kBf16Remainder) return trained.split.parameter;
  return Cast(master, DType::kBF16);
}

ProcessGroup* ParameterUpdate::AmaxGroupOfHeld(const SessionSpec& spec, size_t layer,
                                               const SessionRank* rank) {
  if (rank == nullptr) return nullptr;
  // Ranks have different experts, and different numbers of them; each expert is whole on its rank,
  // or its copies divide its elements. So a maximum over ranks is the expert's own amax.
  const bool is_whole_elsewhere =
      spec.layers[layer].spec.traits().has_experts && spec.parallel->expert_parallel > 1;
  return is_whole_elsewhere ? nullptr : rank->held_weights;
}

ProcessGroup* ParameterUpdate::DelayedGroupOf(const SessionSpec& spec, size_t layer,
                                              const Recipe& recipe, const SessionRank* rank) {
  if (rank == nullptr || !ReducesDelayedAmaxes(recipe, spec.parallel->size())) return nullptr;
  const AmaxGroup& group = AmaxGroupOf(spec.parallel->amax_groups, TensorRole::kWeight);
  if (group.is_named()) return AmaxGroupOfHeld(spec, layer, rank);
  // Copies have the same weights, except for experts that only some of them have.
  return spec.parallel->tensor_parallel > 1 ? rank->step->tp : nullptr;
}

ProcessGroup* ParameterUpdate::AmaxGroupFor(const Parameter& parameter) const {
  const bool is_forgotten = faults_.Has(kFaultUpdateForgetsGroup) && parameter.is_quantized();
  return is_forgotten ? nullptr : amax_group_;
}

absl::Status ParameterUpdate::ReduceAmax(const Parameter& parameter, const Tensor& source,
                                         const Quantizer& quantizer, Usages usages,
                                         QuantizeArguments& arguments) {
  ProcessGroup* const group = AmaxGroupFor(parameter);
  if (group == nullptr || !ReducesAmax(quantizer, usages)) return absl::OkStatus();
  const GatherContext context{engine_, *group, faults_, cancellation_};
  return ReduceAmaxes(context, source, quantizer, usages, arguments);
}

absl::Status ParameterUpdate::QuantizeOf(const std::string& name, const Tensor& source,
                                         const Quantizer& quantizer, Usages usages,
                                         DelayedScalingState* delayed, SessionLayerState& layer) {
  Parameter& parameter = layer.state.parameters.at(name);
  QuantizeArguments arguments;
  arguments.seed = spec_.seed;
  if (delayed != nullptr) arguments.scale = delayed->scale;
  Tensor amax;
  const auto divided = layer.divided.find(name);
  if (divided != layer.divided.end()) {
    QG_ASSIGN_OR_RETURN(amax,
                        division_.Quantize(layer_, name, source, quantizer, arguments,
                                           AmaxGroupFor(parameter), divided->second, parameter));
  } else {
    QG_RETURN_IF_ERROR(ReduceAmax(parameter, source, quantizer, usages, arguments));
    QG_ASSIGN_OR_RETURN(parameter.quantized,
                        engine_.Quantize(source, quantizer, usages, arguments, cancellation_));
  }
  if (delayed == nullptr) return absl::OkStatus();
  if (!amax.has_value()) {
    amax = (usages.rowwise ? parameter.quantized.rowwise : parameter.quantized.columnwise)->amax;
  }
  if (delayed_group_ != nullptr) {
    // The next forward would reduce it too; this way every rank has the whole weight's amax now.
    Tensor* const amaxes[] = {&amax};
    QG_RETURN_IF_ERROR(ReduceMaxima({engine_, *delayed_group_, faults_, cancellation_}, amaxes));
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      std::optional<QuantizedCopy>& copy = parameter.quantized.copy(usage);
      if (copy.has_value()) copy->amax = amax;
    }
  }
  QG_ASSIGN_OR_RETURN(*delayed, engine_.NoteCast(*delayed, amax));
  return absl::OkStatus();
}

absl::Status ParameterUpdate::KeepUnquantized(const std::string& name, const Tensor& master,
                                              const Quantizer& quantizer,
                                              SessionLayerState& layer) {
  QuantizedTensor& quantized = layer.state.parameters.at(name).quantized;
  const DType dtype = quantized.source_dtype;
  QuantizedCopy copy;
  copy.element = dtype;
  if (quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized) {
    QG_ASSIGN_OR_RETURN(copy.data, Cast(quantized.columnwise->data, dtype));
  } else {
    QG_ASSIGN_OR_RETURN(copy.data, ValueOf(name, master, dtype, layer));
  }
  quantized.columnwise = std::move(copy);
  return absl::OkStatus();
}

absl::Status ParameterUpdate::Quantize(const std::string& name, const Tensor& master, Usages usages,
                                       SessionLayerState& layer) {
  Parameter& parameter = layer.state.parameters.at(name);
  const QuantizedTensor before = parameter.quantized;
  Quantizer quantizer =
      RecipeOfParameter(spec_.layers[layer_].spec, recipe_, name).QuantizerFor(TensorRole::kWeight);
  parameter.quantizer = quantizer;
  if (faults_.Has(kFaultWeightsRoundedStochastically)) quantizer = RoundedStochastically(quantizer);

  DelayedScalingState* const delayed =
      quantizer.delayed_directions().empty() ? nullptr : &layer.state.delayed[name];
  if (delayed != nullptr && !delayed->has_value()) {
    QG_ASSIGN_OR_RETURN(*delayed, FreshDelayedScaling(recipe_.delayed_scaling().amax_history_len));
  }
  QG_ASSIGN_OR_RETURN(const Tensor source, SourceOf(master, layer.trained[name]));
  QG_RETURN_IF_ERROR(QuantizeOf(name, source, quantizer, usages, delayed, layer));
  // The parameter's dtype stays the same, whatever dtype the update came through.
  parameter.quantized.source_dtype = before.source_dtype;
  if (usages.columnwise && !quantizer.columnwise.is_quantized()) {
    QG_RETURN_IF_ERROR(KeepUnquantized(name, master, quantizer, layer));
  }
  const bool forgets_experts =
      faults_.Has(kFaultLaterExpertsLeftStale) ||
      (faults_.Has(kFaultRestoredExpertsStale) && layer.state.seeded_memory != nullptr);
  const bool is_left_stale = faults_.Has(kFaultColumnwiseLeftStale) ||
                             (forgets_experts && ParameterName::Parse(name).expert > 0);
  if (is_left_stale && before.columnwise.has_value()) {
    parameter.quantized.columnwise = before.columnwise;
  }
  return absl::OkStatus();
}

absl::Status ParameterUpdate::Requantize(SessionLayerState& layer) {
  for (auto& [name, parameter] : layer.state.parameters) {
    if (!parameter.is_quantized()) continue;
    QG_ASSIGN_OR_RETURN(const Tensor master, MasterOf(parameter, layer.trained[name]));
    QG_RETURN_IF_ERROR(Store(name, master, layer));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
