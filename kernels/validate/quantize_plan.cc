#include "kernels/validate/quantize_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_state.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/quantize/recipe/delayed_scaling.h"
#include "kernels/validate/quantized_plan.h"
#include "kernels/validate/quantized_stack.h"

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

/// The shape that is quantized at once: of a stack that of a matrix.
Shape QuantizedShape(const QuantizeRequest& request) {
  const Shape& shape = request.source.shape();
  if (!IsStack(request.role, shape)) return shape;
  return {shape[1], shape[2]};
}

/// What a stack of experts' weights cannot be asked for.
absl::Status CheckStack(const QuantizeRequest& request) {
  if (!IsStack(request.role, request.source.shape())) return absl::OkStatus();
  if (request.source.shape()[0] == 0) {
    return Refuse("tensor", TensorText(request.source),
                  "a weight [E][N][K] has at least one expert");
  }
  if (IsDelayed(request)) {
    return Refuse(
        "recipe", request.recipe.ShortText(),
        "the experts of a weight [E][N][K] have a delayed scale each; quantize them one by "
        "one");
  }
  if (request.recipe.QuantizerFor(request.role).rounds_stochastically()) {
    return Refuse(
        "recipe", request.recipe.ShortText(),
        "the experts of a weight [E][N][K] draw random bytes of their own calls; quantize "
        "them one by one");
  }
  return absl::OkStatus();
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
  QG_RETURN_IF_ERROR(CheckStack(request));
  const absl::Status status =
      CheckQuantization(source.dtype(), QuantizedShape(request),
                        request.recipe.QuantizerFor(request.role), request.usages);
  if (status.ok()) return status;
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (refusal.has_value() && refusal->field == "usages") {  // Not for want of another tensor.
    return Refuse(refusal->value, "true", refusal->rule);
  }
  return Refuse("tensor", TensorText(source), std::string(status.message()));
}

/// Whether the scales of every direction that is asked for have the layout.
absl::Status CheckScaleLayout(const QuantizeRequest& request) {
  if (request.scale_layout == ScaleLayout::kLogical) return absl::OkStatus();
  for (const Usage usage : kUsages) {
    if (!Wants(request.usages, usage)) continue;
    const QuantizerSpec& spec = request.recipe.QuantizerFor(request.role).spec(usage);
    const auto type =
        ScaleArrayTypeOf(ScaleArrayOf(spec.format, spec.block_dim, usage, QuantizedShape(request)),
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
  const bool is_stack = IsStack(request_.role, request_.source.shape());
  if (!is_stack) {
    arguments.rowwise_codes = request_.rowwise_codes;
    arguments.columnwise_codes = request_.columnwise_codes;
  }
  std::vector<QuantizedTensor> matrices;
  for (int64_t i = 0; i < (is_stack ? request_.source.shape()[0] : 1); ++i) {
    Tensor source = request_.source;
    if (is_stack) {
      QG_ASSIGN_OR_RETURN(source, MatrixOfStack(request_.source, i));
    }
    QG_ASSIGN_OR_RETURN(matrices.emplace_back(), engine.Quantize(source, quantizer, request_.usages,
                                                                 arguments, cancellation));
  }
  // The record is made before scales are padded, since padding is not part of it.
  result.record.role = request_.role;
  result.record.usages = request_.usages;
  SetRule(quantizer, arguments, result.record);
  QG_ASSIGN_OR_RETURN(const std::vector<QuantizationSummary> summaries, engine.Summarize(matrices));
  static_cast<QuantizationSummary&>(result.record) =
      is_stack ? SummaryOfStack(summaries) : summaries[0];
  for (QuantizedTensor& matrix : matrices) {
    QG_RETURN_IF_ERROR(
        ConvertAllScales(engine, ScaleLayout::kLogical, request_.scale_layout, matrix));
  }
  if (is_stack) {
    QG_ASSIGN_OR_RETURN(result.quantized, Stacked(engine, matrices, cancellation));
  } else {
    result.quantized = std::move(matrices[0]);
  }
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
  // Of a stack one matrix is described; all have its shapes.
  const std::optional<int64_t> stack =
      StackSize(request.parts, request.usage, request.description.scale_layout);
  const QuantizedCopy parts = request.parts;
  if (stack.has_value()) {
    if (*stack == 0) {
      return Refuse(PartField(request.usage, "data"), TensorText(parts.data),
                    "codes [E][N][K] are of at least one expert");
    }
    for (const auto& [name, part] :
         {std::pair("zero_point", &parts.zero_point), std::pair("amax", &parts.amax)}) {
      if (!part->has_value() || (part->rank() > 0 && part->shape()[0] == *stack)) continue;
      return Refuse(PartField(request.usage, name), TensorText(*part),
                    absl::StrCat("its first dim must be ", *stack, ", that of the codes"));
    }
    QG_ASSIGN_OR_RETURN(request.parts, MatrixOfStack(parts, 0));
    Shape& shape = request.description.shape;
    if (!shape.empty() && (shape.size() != 3 || shape[0] != *stack)) {
      return Refuse("description.shape", ShapeText(shape),
                    absl::StrCat("the codes are of ", *stack, " matrices, [E][N][K]"));
    }
    if (!shape.empty()) shape.erase(shape.begin());
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
  DequantizePlan plan(std::move(described), request.usage, request.out_dtype);
  if (stack.has_value()) {
    plan.stack_ = parts;
    plan.shape_ = plan.described_.shape;
    plan.shape_.insert(plan.shape_.begin(), *stack);
  }
  return plan;
}

absl::StatusOr<DequantizePlan> DequantizePlan::WithTensors(SlotLoader load) const {
  DequantizePlan plan = *this;
  QuantizedCopy& copy = plan.is_stack() ? plan.stack_ : plan.described_.copy;
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "data"), load, copy.data));
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "scale_inv"), load, copy.scale_inv));
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "zero_point"), load, copy.zero_point));
  // The parts of a stack have no element of their own.
  QuantizedCopy described = plan.described_.copy;
  described.zero_point = copy.zero_point;
  QG_RETURN_IF_ERROR(CheckZeroPointValues(PartField(usage_, "zero_point"), described));
  QG_RETURN_IF_ERROR(LoadSlot(PartField(usage_, "amax"), load, copy.amax));
  return plan;
}

absl::StatusOr<Tensor> DequantizePlan::Run(Engine& engine, const Cancellation* cancellation) const {
  if (!is_stack()) return RunOne(engine, described_.copy, cancellation);
  std::vector<Tensor> matrices;
  for (int64_t i = 0; i < shape_[0]; ++i) {
    QG_ASSIGN_OR_RETURN(const QuantizedCopy parts, MatrixOfStack(stack_, i));
    QuantizedCopy copy = described_.copy;
    // What the description made of the dtypes of outlines holds for every matrix.
    QG_ASSIGN_OR_RETURN(copy.data, parts.data.Reinterpret(copy.data.dtype(), copy.data.shape()));
    QG_ASSIGN_OR_RETURN(copy.scale_inv, parts.scale_inv.Reinterpret(copy.scale_inv.dtype(),
                                                                    copy.scale_inv.shape()));
    if (parts.zero_point.has_value()) {
      QG_ASSIGN_OR_RETURN(copy.zero_point, parts.zero_point.Reinterpret(copy.zero_point.dtype(),
                                                                        copy.zero_point.shape()));
    }
    copy.amax = parts.amax;
    QG_ASSIGN_OR_RETURN(matrices.emplace_back(), RunOne(engine, copy, cancellation));
  }
  return StackedParts(engine, matrices, cancellation);
}

absl::StatusOr<Tensor> DequantizePlan::RunOne(Engine& engine, const QuantizedCopy& matrix,
                                              const Cancellation* cancellation) const {
  QuantizedTensor quantized;
  quantized.shape = described_.shape;
  QuantizedCopy& copy = quantized.copy(usage_).emplace(matrix);
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
