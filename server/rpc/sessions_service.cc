#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "server/rpc/run_stream.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/sessions/session_calls.h"
#include "server/sessions/trace_execution.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

/// RunTrace receives its request and sends events as raw bytes, as Engine.Execute does.
using RawSessions = v1::Sessions::WithRawCallbackMethod_RunTrace<v1::Sessions::CallbackService>;

class SessionsService : public RawSessions {
 public:
  SessionsService(ServiceContext& context, Runs& runs) : context_(context), runs_(runs) {}

  grpc::ServerUnaryReactor* Open(grpc::CallbackServerContext* server_context,
                                 const v1::OpenSessionRequest* request,
                                 v1::Session* response) noexcept override {
    return OnDevice(server_context, Rpc("Sessions.Open"), *request, *response, PrepareOpenSession);
  }
  grpc::ServerUnaryReactor* Step(grpc::CallbackServerContext* server_context,
                                 const v1::SessionStepRequest* request,
                                 v1::SessionStepResponse* response) noexcept override {
    return OnDevice(server_context, Rpc("Sessions.Step"), *request, *response, PrepareSessionStep);
  }
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* server_context,
                                const v1::GetSessionRequest* request,
                                v1::Session* response) noexcept override {
    return OnDevice(server_context, Rpc("Sessions.Get"), *request, *response, PrepareGetSession);
  }
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* server_context,
                                       const v1::CheckpointRequest* request,
                                       v1::CheckpointResponse* response) noexcept override {
    return OnDevice(server_context, Rpc("Sessions.Checkpoint"), *request, *response,
                    PrepareCheckpoint);
  }
  grpc::ServerUnaryReactor* Restore(grpc::CallbackServerContext* server_context,
                                    const v1::RestoreSessionRequest* request,
                                    v1::Session* response) noexcept override {
    return OnDevice(server_context, Rpc("Sessions.Restore"), *request, *response,
                    PrepareRestoreSession);
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* server_context,
                                 const v1::ListSessionsRequest* request,
                                 v1::ListSessionsResponse* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Sessions.List"), Admission::kAlways, server_context,
                            [=, this] { return ListSessions(context_, *request, *response); });
  }
  grpc::ServerUnaryReactor* Close(grpc::CallbackServerContext* server_context,
                                  const v1::CloseSessionRequest* request,
                                  v1::Session* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Sessions.Close"), Admission::kAlways, server_context,
                            [=, this] { return CloseSession(context_, *request, *response); });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* RunTrace(
      grpc::CallbackServerContext* server_context,
      const grpc::ByteBuffer* bytes) noexcept override {
    return new RunStream(context_, runs_, Rpc("Sessions.RunTrace"), Admission::kUnlessDraining,
                         server_context, RunStream::Place::kExecutor,
                         [this, bytes](const Call& call) { return BeginTrace(*bytes, call); });
  }

 private:
  absl::StatusOr<RunStream::Start> BeginTrace(const grpc::ByteBuffer& bytes, const Call& call) {
    QG_ASSIGN_OR_RETURN(v1::RunTraceRequest request, Parsed<v1::RunTraceRequest>(bytes));
    const bool cancel = request.cancel_on_disconnect();
    // A run that outlives its stream is not bound by the stream's deadline.
    const absl::Time deadline = cancel ? call.cancellation()->deadline() : absl::InfiniteFuture();
    const std::string request_id = request.request_id();
    // How the stream is followed is no part of what the request asks for.
    request.clear_request_id();
    request.clear_cancel_on_disconnect();
    const Sha256 content = request_id.empty() ? Sha256() : ContentDigest(request);
    QG_ASSIGN_OR_RETURN(
        std::string run_id,
        runs_.Start(
            request_id, content, [&] { return CheckTraceRun(context_, request); }, deadline));
    return RunStream::Start{std::move(run_id), 1, cancel};
  }

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* OnDevice(grpc::CallbackServerContext* server_context, Rpc rpc,
                                     const Request& request, Response& response,
                                     absl::StatusOr<DeviceWork> (*prepare)(CallContext&,
                                                                           const Request&,
                                                                           Response&)) {
    return AnswerOnDevice(context_, rpc, server_context, [this, &request, &response, prepare] {
      return prepare(context_, request, response);
    });
  }

  ServiceContext& context_;
  Runs& runs_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionsService(ServiceContext& context, Runs& runs) {
  return std::make_unique<SessionsService>(context, runs);
}

}  // namespace quantgate
