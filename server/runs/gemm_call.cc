#include "server/runs/gemm_call.h"

#include <span>
#include <string>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/runs/engine_calls.h"
#include "server/runs/gemm_algorithms.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/parsed_name.h"

namespace quantgate {
namespace {

absl::StatusOr<GemmLayout> LayoutFromName(const std::string& name) {
  if (name.empty() || name == "tn") return GemmLayout::kTN;
  if (name == "nn") return GemmLayout::kNN;
  if (name == "nt") return GemmLayout::kNT;
  return Refuse("layout", Printable(name), "must be tn, nn or nt");
}

absl::StatusOr<DType> OutDTypeFromName(const std::string& name) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && (IsHighPrecision(*dtype) || IsFp8(*dtype))) return *dtype;
  return Refuse("out_dtype", Printable(name), "must be f32, bf16, f16, f8_e4m3 or f8_e5m2");
}

absl::StatusOr<SlotReferences> GemmReferences(const v1::GemmRequest& request, int64_t bytes_max) {
  const std::pair<const char*, const v1::TensorSource*> sources[] = {
      {"a.tensor", &request.a().tensor()},
      {"b.tensor", &request.b().tensor()},
      {"a.scale_inv", &request.a().scale_inv()},
      {"b.scale_inv", &request.b().scale_inv()},
      {"a.amax", &request.a().amax()},
      {"b.amax", &request.b().amax()},
      {"c", &request.c()},
      {"bias", &request.bias()},
      {"d_scale", &request.d_scale()},
  };
  SlotReferences references;
  for (const auto& [slot, source] : sources) {
    QG_RETURN_IF_ERROR(AddReference(slot, *source, bytes_max, references));
  }
  QG_RETURN_IF_ERROR(RequireTensors(references, {"a.tensor", "b.tensor"}));
  return references;
}

absl::StatusOr<GemmOperandRequest> OperandFromProto(const v1::GemmOperandSpec& proto,
                                                    const std::string& name,
                                                    const SlotReferences& references) {
  GemmOperandRequest operand;
  operand.data = OutlineOf(references, name + ".tensor");
  operand.scale_inv = OutlineOf(references, name + ".scale_inv");
  operand.amax = OutlineOf(references, name + ".amax");
  if (proto.e4m3_max() != 0) operand.e4m3_max = proto.e4m3_max();
  if (proto.scaling().empty()) return operand;
  const auto mode = ParseScaleMode(proto.scaling());
  if (!mode.ok()) {
    return Refuse(name + ".scaling", Printable(proto.scaling()),
                  "must be none, tensor, outer, 1x128, 128x128, mx32 or nv16");
  }
  operand.scaling = *mode;
  return operand;
}

absl::Status Gemm(CallContext& context, Device& device, const GemmWork& work,
                  const Cancellation& cancellation, v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(const GemmPlan plan, work.plan.WithTensors([&](const std::string& slot) {
    return context.loader.Load(work.references.at(slot), device, &cancellation);
  }));
  const GemmDesc& desc = plan.desc();
  QG_ASSIGN_OR_RETURN(const TimedGemm ran, RunTimedGemm(*device.engine, desc, cancellation));
  const GemmResult& result = ran.result;
  response.set_seconds(ran.seconds);
  response.set_arithmetic(result.arithmetic.ToString());
  response.set_note(result.note);
  response.set_text(GemmText(desc));
  const DeviceDescription description = device.description.Get();
  *response.mutable_environment() = EnvironmentToProto(std::span(&description, 1));
  if (plan.every_algorithm()) {
    QG_RETURN_IF_ERROR(CompareAlgorithms(*device.engine, desc, ran, cancellation, response));
  }
  OutputWriter writer(context.blobs, *device.engine, KeepOutputs::kLarge);
  QG_ASSIGN_OR_RETURN(Fingerprint fingerprint,
                      device.engine->FingerprintOf(result.d, &cancellation));
  QG_RETURN_IF_ERROR(writer.Write("d", result.d, fingerprint, response.mutable_d()));
  if (!result.amax.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(fingerprint, device.engine->FingerprintOf(result.amax, &cancellation));
  return writer.Write("amax", result.amax, fingerprint, response.mutable_amax());
}

}  // namespace

absl::StatusOr<GemmWork> CheckGemmRequest(CallContext& context, const v1::GemmRequest& proto) {
  GemmRequest request;
  QG_ASSIGN_OR_RETURN(request.layout, LayoutFromName(proto.layout()));
  if (!proto.arithmetic().empty()) {
    QG_ASSIGN_OR_RETURN(request.arithmetic, ParsedName(Arithmetic::Parse, proto.arithmetic(),
                                                       "arithmetic", Arithmetic()));
  }
  request.every_algorithm = proto.every_algorithm();
  request.alpha = proto.has_alpha() ? proto.alpha() : 1.0f;
  request.beta = proto.beta();
  request.in_place = proto.in_place();
  QG_ASSIGN_OR_RETURN(request.out_dtype, OutDTypeFromName(proto.out_dtype()));
  QG_ASSIGN_OR_RETURN(SlotReferences references, GemmReferences(proto, context.tensor_bytes_max));
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_ASSIGN_OR_RETURN(request.a, OperandFromProto(proto.a(), "a", references));
  QG_ASSIGN_OR_RETURN(request.b, OperandFromProto(proto.b(), "b", references));
  request.c = OutlineOf(references, "c");
  request.bias = OutlineOf(references, "bias");
  request.d_scale = OutlineOf(references, "d_scale");
  QG_ASSIGN_OR_RETURN(GemmPlan plan, GemmPlan::Create(std::move(request)));
  QG_RETURN_IF_ERROR(CheckResultBytes({plan.desc().out_dtype, {plan.shape().m, plan.shape().n}},
                                      "d", context.tensor_bytes_max));
  return GemmWork{std::move(references), std::move(plan)};
}

absl::StatusOr<DeviceWork> PrepareGemm(CallContext& context, const v1::GemmRequest& request,
                                       v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(GemmWork work, CheckGemmRequest(context, request));
  const absl::StatusOr<Device*> device =
      LeastLoadedWith(context.devices, std::span(&work.plan.desc().arithmetic, 1));
  if (!device.ok()) return AsField("arithmetic", device.status());
  return DeviceWork{"",
                    [&context, &response, work = std::move(work)](
                        Device& device, const Cancellation& cancellation) {
                      return Gemm(context, device, work, cancellation, response);
                    },
                    *device};
}

}  // namespace quantgate
