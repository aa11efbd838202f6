// Engine.UpdateUsages.
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/quantized_plan.h"
#include "server/runs/engine_calls.h"
#include "server/runs/output_writer.h"
#include "server/wire/quantized_parts.h"

namespace quantgate {
namespace {

struct UsagesWork {
  QuantizedReference reference;
  QuantizedPlan plan;
  std::optional<Usages> wanted;  ///< Absent for a query.
};

/// What one direction of the tensor can become. The outline is enough: it is a matter of formats.
v1::UsageState StateOfUsage(const QuantizedTensor& outline, Usage usage) {
  const bool is_rowwise = usage == Usage::kRowwise;
  v1::UsageState state;
  state.set_present(outline.copy(usage).has_value());
  if (state.present()) {
    const Usages without = {!is_rowwise, is_rowwise};
    // Dropping leaves the other direction, which must be there.
    state.set_droppable(
        outline.copy(is_rowwise ? Usage::kColumnwise : Usage::kRowwise).has_value() &&
        CheckUsages(outline, without).ok());
    return state;
  }
  const absl::Status derived = CheckUsages(outline, {true, true});
  state.set_derivable(derived.ok());
  if (!derived.ok()) {
    const std::optional<Refusal> why = RefusalOf(derived);
    state.set_reason(why.has_value() ? why->rule : std::string(derived.message()));
  }
  return state;
}

absl::StatusOr<UsagesWork> CheckUpdate(CallContext& context, const v1::UpdateUsagesRequest& proto) {
  if (!proto.has_tensor()) {
    return RefuseAbsent("tensor", "give the parts of a quantized tensor by name");
  }
  QG_ASSIGN_OR_RETURN(
      QuantizedReference reference,
      QuantizedReferenceFromProto(proto.tensor(), "tensor", false, context.tensor_bytes_max));
  QG_RETURN_IF_ERROR(context.loader.Resolve(reference.parts));
  QG_ASSIGN_OR_RETURN(QuantizedPlan plan, OutlineOf(reference));
  UsagesWork work{std::move(reference), std::move(plan), std::nullopt};
  if (!proto.has_rowwise() && !proto.has_columnwise()) return work;
  const QuantizedTensor& outline = work.plan.outline();
  Usages wanted = outline.usages();
  if (proto.has_rowwise()) wanted.rowwise = proto.rowwise();
  if (proto.has_columnwise()) wanted.columnwise = proto.columnwise();
  QG_RETURN_IF_ERROR(CheckUsages(outline, wanted));
  work.wanted = wanted;
  return work;
}

absl::Status UpdateOnDevice(CallContext& context, Device& device, const UsagesWork& work,
                            const Cancellation& cancellation, v1::UpdateUsagesResponse& response) {
  const QuantizedTensor& outline = work.plan.outline();
  const ScaleLayout layout = work.plan.scale_layout();
  *response.mutable_rowwise() = StateOfUsage(outline, Usage::kRowwise);
  *response.mutable_columnwise() = StateOfUsage(outline, Usage::kColumnwise);
  if (work.reference.source_dtype.has_value()) {
    response.set_source_dtype(std::string(DTypeName(*work.reference.source_dtype)));
  }
  *response.mutable_description() = QuantizedDescriptionToProto(outline, layout);
  if (!work.wanted.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const QuantizedPlan plan, work.plan.WithTensors([&](const std::string& slot) {
    return context.loader.Load(work.reference.parts.at(slot), device, &cancellation);
  }));
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, plan.Codes(*device.engine));
  QG_RETURN_IF_ERROR(device.engine->UpdateUsages(quantized, *work.wanted, &cancellation));
  *response.mutable_description() = QuantizedDescriptionToProto(quantized, layout);
  QG_RETURN_IF_ERROR(ConvertAllScales(*device.engine, ScaleLayout::kLogical, layout, quantized));
  OutputWriter writer(context.blobs, *device.engine, KeepOutputs::kLarge);
  return writer.WriteAll(PartsOf(quantized), &cancellation, *response.mutable_tensors());
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareUpdateUsages(CallContext& context,
                                               const v1::UpdateUsagesRequest& request,
                                               v1::UpdateUsagesResponse& response) {
  QG_ASSIGN_OR_RETURN(UsagesWork work, CheckUpdate(context, request));
  return DeviceWork{"", [&context, &response, work = std::move(work)](
                            Device& device, const Cancellation& cancellation) {
                      return UpdateOnDevice(context, device, work, cancellation, response);
                    }};
}

}  // namespace quantgate
