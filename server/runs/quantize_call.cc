// Engine.Quantize.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/linear_unit.h"
#include "server/runs/engine_calls.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"

namespace quantgate {
namespace {

struct QuantizeWork {
  TensorReference tensor, scale, amax_history;
  Recipe recipe;
  TensorRole role;
  Usages usages;
  uint64_t seed = 0;
  ScaleLayout scale_layout = ScaleLayout::kLogical;
};

absl::Status CheckSeed(const QuantizeWork& work) {
  if (work.seed == 0 || work.recipe.RoundsStochastically(work.role)) return absl::OkStatus();
  return Refuse("seed", absl::StrCat(work.seed),
                absl::StrCat("recipe ", work.recipe.name(), " does not round ",
                             std::string(TensorRoleName(work.role)), " stochastically"));
}

absl::Status CheckState(const QuantizeWork& work) {
  if (!work.scale.has_value() && !work.amax_history.has_value()) return absl::OkStatus();
  if (!work.recipe.is_delayed()) {
    return Refuse(
        work.scale.has_value() ? "scale" : "amax_history", "given",
        absl::StrCat("fp8_delayed alone takes it, and the recipe is ", work.recipe.name()));
  }
  const DelayedScalingState outline{TensorLoader::Outline(work.scale),
                                    TensorLoader::Outline(work.amax_history)};
  return CheckDelayedScaling(outline, "");
}

/// What the quantizer itself does not take, before anything is loaded.
absl::Status CheckSource(const QuantizeWork& work) {
  const TensorType& type = *work.tensor.type;
  if (!IsHighPrecision(type.dtype)) {
    return Refuse("tensor", TensorTypeText(type), "tensors of f32, bf16 and f16 are quantized");
  }
  if (type.shape.empty()) {
    return Refuse("tensor", TensorTypeText(type), "the rank is at least 1");
  }
  const absl::Status status =
      CheckQuantization(type.dtype, type.shape, work.recipe.QuantizerFor(work.role), work.usages);
  if (status.ok()) return status;
  return Refuse("tensor", TensorTypeText(type), std::string(status.message()));
}

/// Whether the scales of every direction that is asked for have the layout.
absl::Status CheckScaleLayout(const QuantizeWork& work) {
  if (work.scale_layout == ScaleLayout::kLogical) return absl::OkStatus();
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!(usage == Usage::kRowwise ? work.usages.rowwise : work.usages.columnwise)) continue;
    const QuantizerSpec& spec = work.recipe.QuantizerFor(work.role).spec(usage);
    const auto type =
        ScaleArrayTypeOf(ScaleArrayOf(spec.format, spec.block_dim, usage, work.tensor.type->shape),
                         work.scale_layout);
    if (type.ok()) continue;
    return AsField("scale_layout", type.status());
  }
  return absl::OkStatus();
}

/// The scales of both directions in the layout asked for.
absl::Status ConvertAllScales(Engine& engine, ScaleLayout layout, QuantizedTensor& quantized) {
  if (layout == ScaleLayout::kLogical) return absl::OkStatus();
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (!copy.has_value()) continue;
    QG_ASSIGN_OR_RETURN(
        copy->scale_inv,
        engine.ConvertScales(copy->scale_inv,
                             ScaleArrayOf(copy->format, copy->block_dim, usage, quantized.shape),
                             ScaleLayout::kLogical, layout));
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizeWork> CheckQuantize(ServiceContext& context,
                                           const v1::QuantizeRequest& request) {
  const int64_t bytes_max = context.options.tensor_bytes_max;
  QG_ASSIGN_OR_RETURN(TensorReference tensor,
                      TensorReferenceFromProto(request.tensor(), "tensor", bytes_max));
  QG_ASSIGN_OR_RETURN(TensorReference scale,
                      TensorReferenceFromProto(request.scale(), "scale", bytes_max));
  QG_ASSIGN_OR_RETURN(TensorReference amax_history,
                      TensorReferenceFromProto(request.amax_history(), "amax_history", bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(tensor));
  QG_ASSIGN_OR_RETURN(Recipe recipe, RecipeFromProto(request.recipe(), "recipe"));
  const auto role = ParseTensorRole(request.role());
  if (!role.ok()) {
    return Refuse("role", Printable(request.role()), "must be input, weight or grad_output");
  }
  if (!request.rowwise() && !request.columnwise()) {
    return RefuseAbsent("rowwise", "ask for rowwise, columnwise or both");
  }
  QuantizeWork work{std::move(tensor),
                    std::move(scale),
                    std::move(amax_history),
                    std::move(recipe),
                    *role,
                    Usages{request.rowwise(), request.columnwise()},
                    request.seed(),
                    ScaleLayout::kLogical};
  QG_ASSIGN_OR_RETURN(work.scale_layout,
                      ScaleLayoutFromName(request.scale_layout(), "scale_layout"));
  QG_RETURN_IF_ERROR(CheckSeed(work));
  TensorReference* const references[] = {&work.tensor, &work.scale, &work.amax_history};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_RETURN_IF_ERROR(CheckState(work));
  QG_RETURN_IF_ERROR(CheckSource(work));
  QG_RETURN_IF_ERROR(CheckScaleLayout(work));
  return work;
}

/// The state that the cast takes its scale from; fresh where none was given.
absl::StatusOr<DelayedScalingState> LoadState(ServiceContext& context, Device& device,
                                              const QuantizeWork& work,
                                              const Cancellation& cancellation) {
  const int length = work.recipe.delayed_scaling().amax_history_len;
  if (!work.scale.has_value()) return FreshDelayedScaling(length);
  DelayedScalingState state;
  QG_ASSIGN_OR_RETURN(state.scale, context.loader.LoadToHost(work.scale, device, &cancellation));
  QG_ASSIGN_OR_RETURN(state.amax_history,
                      context.loader.LoadToHost(work.amax_history, device, &cancellation));
  QG_RETURN_IF_ERROR(CheckDelayedScaling(state, ""));
  return WithHistoryLength(state, length);
}

/// Writes every part that the tensor has, under its name.
class PartWriter {
 public:
  PartWriter(ServiceContext& context, Device& device, const Cancellation& cancellation,
             v1::QuantizeResponse& response)
      : device_(device),
        cancellation_(cancellation),
        response_(response),
        writer_(context.blobs, *device.engine, KeepOutputs::kLarge) {}

  absl::Status Write(const char* name, const Tensor& tensor) {
    if (!tensor.has_value()) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        device_.engine->FingerprintOf(tensor, &cancellation_));
    return writer_.Write(name, tensor, fingerprint, response_.add_tensors());
  }

  absl::Status WriteAll(const QuantizedTensor& quantized) {
    for (const QuantizedPart& part : kQuantizedParts) {
      const std::optional<QuantizedCopy>& copy = quantized.copy(part.usage);
      if (copy.has_value()) QG_RETURN_IF_ERROR(Write(part.name, (*copy).*part.member));
    }
    return Write(kScalePart, quantized.scale);
  }

 private:
  Device& device_;
  const Cancellation& cancellation_;
  v1::QuantizeResponse& response_;
  OutputWriter writer_;
};

absl::Status Quantize(ServiceContext& context, Device& device, const QuantizeWork& work,
                      const Cancellation& cancellation, v1::QuantizeResponse& response) {
  const Quantizer& quantizer = work.recipe.QuantizerFor(work.role);
  QG_ASSIGN_OR_RETURN(const Tensor source, context.loader.Load(work.tensor, device, &cancellation));
  QuantizeArguments arguments;
  arguments.seed = work.seed;
  arguments.call_id = CallIdOf(work.role);
  DelayedScalingState state;
  if (work.recipe.is_delayed()) {
    QG_ASSIGN_OR_RETURN(state, LoadState(context, device, work, cancellation));
    arguments.scale = state.scale;
  }
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor quantized,
      device.engine->Quantize(source, quantizer, work.usages, arguments, &cancellation));
  // Padding is no scale: the record is made before there is any.
  QuantizationRecord record;
  record.role = work.role;
  record.usages = work.usages;
  record.quantizer = QuantizerText(quantizer);
  QG_ASSIGN_OR_RETURN(const std::vector<QuantizationSummary> summaries,
                      device.engine->Summarize({&quantized, 1}));
  static_cast<QuantizationSummary&>(record) = summaries[0];
  QG_RETURN_IF_ERROR(ConvertAllScales(*device.engine, work.scale_layout, quantized));
  PartWriter writer(context, device, cancellation, response);
  QG_RETURN_IF_ERROR(writer.WriteAll(quantized));
  if (work.recipe.is_delayed()) {
    QG_ASSIGN_OR_RETURN(state, WithCast(state, record.amax.value_or(0.0f)));
    QG_RETURN_IF_ERROR(writer.Write(kAmaxHistoryPart, state.amax_history));
  }
  *response.mutable_record() = QuantizationRecordToProto(record);
  *response.mutable_description() = QuantizedDescriptionToProto(quantized, work.scale_layout);
  response.set_source_dtype(std::string(DTypeName(source.dtype())));
  context.metrics.Quantized(work.recipe.name(), record.counts);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareQuantize(ServiceContext& context,
                                           const v1::QuantizeRequest& request,
                                           v1::QuantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(QuantizeWork work, CheckQuantize(context, request));
  std::string recipe = work.recipe.name();
  return DeviceWork{std::move(recipe), [&context, &response, work = std::move(work)](
                                           Device& device, const Cancellation& cancellation) {
                      return Quantize(context, device, work, cancellation, response);
                    }};
}

}  // namespace quantgate
