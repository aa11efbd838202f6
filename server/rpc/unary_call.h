// Unary RPCs: run a body that returns a status on the thread that suits its cost, and finish the
// call exactly once.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/call.h"

namespace quantgate {

/// Runs `body` at once, on gRPC's thread: only for bodies that do no more than read memory.
grpc::ServerUnaryReactor* AnswerInline(ServiceContext& context, Rpc rpc,
                                       grpc::CallbackServerContext* server_context,
                                       absl::FunctionRef<absl::Status()> body);

/// Runs `body` on the executor: for conversion, checks, disk and database. The request and response
/// outlive the body.
grpc::ServerUnaryReactor* AnswerOnExecutor(ServiceContext& context, Rpc rpc, Admission admission,
                                           grpc::CallbackServerContext* server_context,
                                           absl::AnyInvocable<absl::Status() &&> body);

/// Runs `prepare`, which checks the request, on the executor, then queues its work for a device.
grpc::ServerUnaryReactor* AnswerOnDevice(
    ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context,
    absl::AnyInvocable<absl::StatusOr<DeviceWork>() &&> prepare);

}  // namespace quantgate
