// Engine.Dequantize.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/quantize_plan.h"
#include "server/runs/engine_calls.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

absl::StatusOr<DType> HighPrecisionFromName(const std::string& name, const std::string& field) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && IsHighPrecision(*dtype)) return *dtype;
  return Refuse(field, Printable(name), "must be f32, bf16 or f16");
}

struct DequantizeWork {
  SlotReferences references;
  DequantizePlan plan;
};

absl::StatusOr<DequantizeWork> CheckDequantize(CallContext& context,
                                               const v1::DequantizeRequest& proto) {
  // Dequantization needs only scale_inv.
  QG_ASSIGN_OR_RETURN(SlotReferences references, PartReferencesFromProto(proto.tensors(), "", false,
                                                                         context.tensor_bytes_max));
  DequantizeRequest request;
  const bool has_rowwise = references.contains(PartField(Usage::kRowwise, "data"));
  if (proto.usage() == "columnwise" || (proto.usage().empty() && !has_rowwise)) {
    request.usage = Usage::kColumnwise;
  } else if (!proto.usage().empty() && proto.usage() != "rowwise") {
    return Refuse("usage", Printable(proto.usage()), "must be rowwise or columnwise");
  }
  QG_ASSIGN_OR_RETURN(request.out_dtype, HighPrecisionFromName(proto.out_dtype(), "out_dtype"));
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_RETURN_IF_ERROR(RequireTensors(references, {PartField(request.usage, "data").c_str()}));
  for (const QuantizedPart& part : kQuantizedParts) {
    if (part.usage != request.usage) continue;
    request.parts.*part.member =
        OutlineOf(references, absl::StrCat("tensors[\"", part.name, "\"]"));
  }
  QG_ASSIGN_OR_RETURN(request.description,
                      QuantizedDescriptionFromProto(proto.description(), request.usage));
  QG_ASSIGN_OR_RETURN(DequantizePlan plan, DequantizePlan::Create(std::move(request)));
  QG_RETURN_IF_ERROR(
      CheckResultBytes({plan.out_dtype(), plan.shape()}, "data", context.tensor_bytes_max));
  return DequantizeWork{std::move(references), std::move(plan)};
}

absl::Status Dequantize(CallContext& context, Device& device, const DequantizeWork& work,
                        const Cancellation& cancellation, v1::DequantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(const DequantizePlan plan,
                      work.plan.WithTensors([&](const std::string& slot) {
                        return context.loader.Load(work.references.at(slot), device, &cancellation);
                      }));
  QG_ASSIGN_OR_RETURN(const Tensor result, plan.Run(*device.engine, &cancellation));
  QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                      device.engine->FingerprintOf(result, &cancellation));
  return OutputWriter(context.blobs, *device.engine, KeepOutputs::kLarge)
      .Write("data", result, fingerprint, response.mutable_data());
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareDequantize(CallContext& context,
                                             const v1::DequantizeRequest& request,
                                             v1::DequantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(DequantizeWork work, CheckDequantize(context, request));
  return DeviceWork{"", [&context, &response, work = std::move(work)](
                            Device& device, const Cancellation& cancellation) {
                      return Dequantize(context, device, work, cancellation, response);
                    }};
}

}  // namespace quantgate
