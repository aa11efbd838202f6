// Engine.Gemm.
#include <span>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/runs/engine_calls.h"
#include "server/runs/gemm_algorithms.h"
#include "server/runs/gemm_request.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_recipe.h"

namespace quantgate {
namespace {

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
