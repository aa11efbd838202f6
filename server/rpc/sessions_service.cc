#include <utility>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/sessions/session_calls.h"

namespace quantgate {
namespace {

class SessionsService : public v1::Sessions::CallbackService {
 public:
  explicit SessionsService(ServiceContext& context) : context_(context) {}

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

 private:
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
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionsService(ServiceContext& context) {
  return std::make_unique<SessionsService>(context);
}

}  // namespace quantgate
