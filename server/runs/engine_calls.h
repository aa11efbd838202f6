// The unary operations of the engine: each checks its request and gives the work for the device.
// Requests and responses are gRPC's and outlive the work.
#pragma once

#include "absl/status/statusor.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/call_context.h"

namespace quantgate {

absl::StatusOr<DeviceWork> PrepareQuantize(CallContext& context, const v1::QuantizeRequest& request,
                                           v1::QuantizeResponse& response);
absl::StatusOr<DeviceWork> PrepareDequantize(CallContext& context,
                                             const v1::DequantizeRequest& request,
                                             v1::DequantizeResponse& response);
absl::StatusOr<DeviceWork> PrepareGemm(CallContext& context, const v1::GemmRequest& request,
                                       v1::GemmResponse& response);
absl::StatusOr<DeviceWork> PrepareCompare(CallContext& context, const v1::CompareRequest& request,
                                          v1::CompareResponse& response);
absl::StatusOr<DeviceWork> PrepareExplain(CallContext& context, const v1::ExplainRequest& request,
                                          v1::ExplainResponse& response);

}  // namespace quantgate
