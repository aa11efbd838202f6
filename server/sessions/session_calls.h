// The calls of the service Sessions. Each checks its request and returns the work for the device.
#pragma once

#include "absl/status/statusor.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "server/runs/call_context.h"

namespace quantgate {

/// RESOURCE_EXHAUSTED for a response that is larger than a message may be: gRPC would drop it, and
/// the client would not learn how its call ended.
absl::Status CheckMessageSize(const google::protobuf::MessageLite& response);

absl::StatusOr<DeviceWork> PrepareOpenSession(CallContext& context,
                                              const v1::OpenSessionRequest& request,
                                              v1::Session& response);
absl::StatusOr<DeviceWork> PrepareRestoreSession(CallContext& context,
                                                 const v1::RestoreSessionRequest& request,
                                                 v1::Session& response);
absl::StatusOr<DeviceWork> PrepareSessionStep(CallContext& context,
                                              const v1::SessionStepRequest& request,
                                              v1::SessionStepResponse& response);
absl::StatusOr<DeviceWork> PrepareGetSession(CallContext& context,
                                             const v1::GetSessionRequest& request,
                                             v1::Session& response);
absl::StatusOr<DeviceWork> PrepareCheckpoint(CallContext& context,
                                             const v1::CheckpointRequest& request,
                                             v1::CheckpointResponse& response);
absl::Status ListSessions(CallContext& context, const v1::ListSessionsRequest& request,
                          v1::ListSessionsResponse& response);
absl::Status CloseSession(CallContext& context, const v1::CloseSessionRequest& request,
                          v1::Session& response);

}  // namespace quantgate
