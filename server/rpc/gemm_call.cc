// Engine.Gemm.
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/rpc/engine_calls.h"
#include "server/rpc/gemm_request.h"
#include "server/rpc/output_writer.h"

namespace quantgate {
namespace {

absl::Status Gemm(ServiceContext& context, Device& device, GemmWork& work,
                  const Cancellation& cancellation, v1::GemmResponse& response) {
  QG_RETURN_IF_ERROR(LoadGemm(context, device, work, cancellation));
  const absl::Time start = absl::Now();
  QG_ASSIGN_OR_RETURN(const GemmResult result, device.engine->Gemm(work.desc, &cancellation));
  response.set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  response.set_arithmetic(result.arithmetic);
  response.set_note(result.note);
  response.set_text(GemmText(work.desc));
  OutputWriter writer(context.blobs, *device.engine, /*keep=*/false);
  QG_ASSIGN_OR_RETURN(Fingerprint fingerprint,
                      device.engine->FingerprintOf(result.d, &cancellation));
  QG_RETURN_IF_ERROR(writer.Write("d", result.d, fingerprint, response.mutable_d()));
  if (!result.amax.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(fingerprint, device.engine->FingerprintOf(result.amax, &cancellation));
  return writer.Write("amax", result.amax, fingerprint, response.mutable_amax());
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareGemm(ServiceContext& context, const v1::GemmRequest& request,
                                       v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(GemmWork work, CheckGemmRequest(context, request));
  const absl::StatusOr<Device*> device =
      LeastLoadedWith(context.devices, std::span(&work.desc.arithmetic, 1));
  if (!device.ok()) return error::AtField(device.status(), "arithmetic");
  return DeviceWork{"",
                    [&context, &response, work = std::move(work)](
                        Device& device, const Cancellation& cancellation) mutable {
                      return Gemm(context, device, work, cancellation, response);
                    },
                    *device};
}

}  // namespace quantgate
