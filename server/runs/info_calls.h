// The calls of the service Info: what this build and its devices can do, recipes and arithmetics.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "quantgate/v1/info_service.pb.h"
#include "server/limits.h"
#include "server/runs/call_context.h"

namespace quantgate {

v1::Capabilities CapabilitiesOf(const CallContext& context, int64_t blob_bytes_max,
                                int queue_capacity, const SessionLimits& sessions);
v1::ListRecipesResponse DescribeRecipes();
v1::ListArithmeticsResponse DescribeArithmetics();
absl::StatusOr<DeviceWork> PrepareCheckHardware(CallContext& context,
                                                const v1::CheckHardwareRequest& request,
                                                v1::CheckHardwareResponse& response);

}  // namespace quantgate
