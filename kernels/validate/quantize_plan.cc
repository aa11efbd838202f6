#include "kernels/validate/quantize_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_state.h"
#include "kernels/quantize/recipe/delayed_scaling.h"
#include "kernels/validate/quantized_plan.h"

namespace quantgate {
namespace {

constexpr Usage kUsages[] = {Usage::kRowwise, Usage::kColumnwise};

bool Wants(Usages usages, Usage usage) {
  return usage == Usage::kRowwise ? usages.rowwise : usages.columnwise;
}

bool IsDelayed(const QuantizeRequest& request) {
  return !request.recipe.QuantizerFor(request.role).delayed_directions().empty();
}

absl::Status CheckSeed(const QuantizeRequest& request) {
  if (request.seed == 0 || request.recipe.RoundsStochastically(request.role)) {
    return absl::OkStatus();
  }
  return Refuse("seed", absl::StrCat(request.seed),
                absl::StrCat("recipe ", request.recipe.name(), " does not round ",
                             std::string(TensorRoleName(request.role)), " stochastically"));
}

/// The request has one state, so the tensor may have one delayed scale: that of rowwise codes, or
/// of both directions.
absl::Status CheckOneState(const QuantizeRequest& request) {
  for (const Usage usage : request.recipe.QuantizerFor(request.role).delayed_directions()) {
    if (usage == Usage::kRowwise) continue;
    return Refuse("recipe", request.recipe.ShortText(),
                  "a columnwise direction with a delayed scale of its own is quantized within a "
                  "layer");
  }
  return absl::OkStatus();
}

absl::Status CheckState(const QuantizeRequest& request) {
  const DelayedScalingState& state = request.state;
  if (!state.scale.has_value() && !state.amax_history.has_value()) return absl::OkStatus();
  if (!IsDelayed(request)) {
    return Refuse(state.scale.has_value() ? "scale" : "amax_history", "given",
                  absl::StrCat("only fp8_delayed takes it; the recipe is ", request.recipe.name()));
  }
  return CheckDelayedScaling(state, "");
}

absl::Status CheckSource(const QuantizeRequest& request) {
  const Tensor& source = request.source;
  if (!source.has_value()) return RefuseAbsent("tensor", "it must be given");
  if (!IsHighPrecision(source.dtype())) {
    return Refuse("tensor", TensorText(source), "tensors of f32, bf16 and f16 are quantized");
  }
  if (source.shape().empty()) {
    return Refuse("tensor", TensorText(source), "the rank is at least 1");
  }
  QG_RETURN_IF_ERROR(AsField("recipe", request.recipe.CheckRole(request.role)));
  const absl::Status status = CheckQuantization(
      source.dtype(), source.shape(), request.recipe.QuantizerFor(request.role), request.usages);
  if (status.ok()) return status;
  return Refuse("tensor", TensorText(source), std::string(status.message()));
}

/// Whether the scales of every direction that is asked for have the layout.
absl::Status CheckScaleLayout(const QuantizeRequest& request) {
  if (request.scale_layout == ScaleLayout::kLogical) return absl::OkStatus();
  for (const Usage usage : kUsages) {
    if (!Wants(request.usages, usage)) continue;
    const QuantizerSpec& spec = request.recipe.QuantizerFor(request.role).spec(usage);
    const auto type =
        ScaleArrayTypeOf(ScaleArrayOf(spec.format, spec.block_dim, usage, request.source.shape()),
                         request.scale_layout);
    if (!type.ok()) return AsField("scale_layout", type.status());
    const bool is_e8m0 = HoldsE8m0(request.scale_layout);
    if (is_e8m0 && spec.traits().scales == ScaleKind::kF32 && !spec.power_2_scale) {
      return Refuse("scale_layout", ScaleLayoutName(request.scale_layout),
                    "it holds powers of two: power_2_scales=true makes such scales");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizePlan> QuantizePlan::Create(QuantizeRequest request) {
  if (!request.usages.rowwise && !request.usages.columnwise) {
    return RefuseAbsent("rowwise", "ask for rowwise, columnwise or both");
  }
  QG_RETURN_IF_ERROR(CheckSeed(request));
  QG_RETURN_IF_ERROR(CheckOneState(request));
  QG_RETURN_IF_ERROR(CheckState(request));
  QG_RETURN_IF_ERROR(CheckSource(request));
  QG_RETURN_IF_ERROR(CheckScaleLayout(request));
  return QuantizePlan(std::move(request));
}

absl::StatusOr<QuantizePlan> QuantizePlan::WithTensors(SlotLoader load) const {
  QuantizeRequest request = request_;
  QG_RETURN_IF_ERROR(LoadSlot("tensor", load, request.source));
  QG_RETURN_IF_ERROR(LoadSlot("scale", load, request.state.scale));
  QG_RETURN_IF_ERROR(LoadSlot("amax_history", load, request.state.amax_history));
  QG_RETURN_IF_ERROR(CheckState(request));
  return QuantizePlan(std::move(request));
}

absl::StatusOr<QuantizeResult> QuantizePlan::Run(Engine& engine,
                                                 const Cancellation* cancellation) const {
  const Quantizer& quantizer = request_.recipe.QuantizerFor(request_.role);
  QuantizeArguments arguments;
  arguments.seed = request_.seed;
  arguments.call_id = CallIdOf(request_.role);
  DelayedScalingState state;
  if (IsDelayed(request_)) {
    const int length = request_.recipe.delayed_scaling().amax_history_len;
    QG_ASSIGN_OR_RETURN(state, request_.state.scale.has_value()
                                   ? WithHistoryLength(request_.state, length)
                                   : FreshDelayedScaling(length));
    arguments.scale = state.scale;
  }
  QuantizeResult result;
  QG_ASSIGN_OR_RETURN(result.quantized, engine.Quantize(request_.source, quantizer, request_.usages,
                                                        arguments, cancellation));
  // The record is made before scales are padded, since padding is not part of it.
  result.record.role = request_.role;
  result.record.usages = request_.usages;
  SetRule(quantizer, arguments, result.record);
  QG_ASSIGN_OR_RETURN(const std::vector<QuantizationSummary> summaries,
                      engine.Summarize({&result.quantized, 1}));
  static_cast<QuantizationSummary&>(result.record) = summaries[0];
  QG_RETURN_IF_ERROR(
      ConvertAllScales(engine, ScaleLayout::kLogical, request_.scale_layout, result.quantized));
  if (IsDelayed(request_)) {
    QG_ASSIGN_OR_RETURN(state, WithCast(state, result.record.amax.value_or(0.0f)));
    result.amax_history = state.amax_history;
  }
  return result;
}

absl::StatusOr<DequantizePlan> DequantizePlan::Create(DequantizeRequest request) {
  if (!IsHighPrecision(request.out_dtype)) {
    return Refuse("out_dtype", DTypeName(request.out_dtype), "must be f32, bf16 or f16");
  }
  if (!request.parts.data.has_value()) {
    return RefuseAbsent(PartField(request.usage, "data"), "it must be given");
  }
  QG_ASSIGN_OR_RETURN(DescribedCopy described,
                      DescribeCopy(request.description, request.usage, std::move(request.parts)));
  if (TraitsOf(described.copy.format).scales == ScaleKind::kTwoLevel &&
      request.usage == Usage::kColumnwise) {
    return StatusOf({.code = absl::StatusCode::kUnimplemented,
                     .field = "usage",
                     .value = "columnwise",
                     .rule = "columnwise nvfp4 codes are not dequantized, as in Transformer "
                             "Engine; read rowwise"});
  }
  return DequantizePlan(std::move(described), request.usage, request.out_dtype);
}

absl::StatusOr<DequantizePlan> DequantizePlan::WithTensors(SlotLoader load) const {
  DequantizePlan plan = *this;
  QuantizedCopy& copy = plan.described_.copy;
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "data"), load, copy.data));
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "scale_inv"), load, copy.scale_inv));
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "amax"), load, copy.amax));
  return plan;
}

absl::StatusOr<Tensor> DequantizePlan::Run(Engine& engine, const Cancellation* cancellation) const {
  QuantizedTensor quantized;
  quantized.shape = described_.shape;
  QuantizedCopy& copy = quantized.copy(usage_).emplace(described_.copy);
  if (described_.scale_layout != ScaleLayout::kLogical && BlockLength(copy.format) > 1) {
    QG_ASSIGN_OR_RETURN(
        copy.scale_inv,
        engine.ConvertScales(copy.scale_inv,
                             ScaleArrayOf(copy.format, copy.block_dim, usage_, quantized.shape),
                             described_.scale_layout, ScaleLayout::kLogical));
  }
  return engine.Dequantize(quantized, usage_, out_dtype_, cancellation);
}

}  // namespace quantgate
