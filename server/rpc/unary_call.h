// Unary RPCs: a body that returns a status, run where its cost belongs, finished exactly once.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/call.h"

namespace quantgate {

/// Answers at once, on gRPC's thread: for what only reads memory.
grpc::ServerUnaryReactor* AnswerInline(ServiceContext& context, Rpc rpc,
                                       grpc::CallbackServerContext* server_context,
                                       absl::FunctionRef<absl::Status()> body);

/// Runs on the executor: for conversion, checks, disk and database. The request and response
/// outlive the body.
grpc::ServerUnaryReactor* AnswerOnExecutor(ServiceContext& context, Rpc rpc, Admission admission,
                                           grpc::CallbackServerContext* server_context,
                                           absl::AnyInvocable<absl::Status() &&> body);

/// Checks on the executor, then waits for the device.
grpc::ServerUnaryReactor* AnswerOnDevice(
    ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context,
    absl::AnyInvocable<absl::StatusOr<DeviceWork>() &&> prepare);

}  // namespace quantgate
