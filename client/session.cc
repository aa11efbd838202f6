#include "client/session.h"

#include <utility>

namespace quantgate {

absl::StatusOr<ClientSession> ClientSession::Open(Connection& connection,
                                                  v1::OpenSessionRequest request) {
  if (request.request_id().empty()) request.set_request_id(NewRequestId());
  absl::StatusOr<v1::Session> session = connection.OpenSession(request);
  if (!session.ok()) return session.status();
  return ClientSession(connection, *std::move(session));
}

absl::StatusOr<ClientSession> ClientSession::Restore(Connection& connection,
                                                     v1::RestoreSessionRequest request) {
  if (request.request_id().empty()) request.set_request_id(NewRequestId());
  absl::StatusOr<v1::Session> session = connection.RestoreSession(request);
  if (!session.ok()) return session.status();
  return ClientSession(connection, *std::move(session));
}

absl::StatusOr<ClientSession> ClientSession::Attach(Connection& connection,
                                                    const std::string& session_id) {
  v1::GetSessionRequest request;
  request.set_session_id(session_id);
  absl::StatusOr<v1::Session> session = connection.GetSession(request);
  if (!session.ok()) return session.status();
  return ClientSession(connection, *std::move(session));
}

absl::StatusOr<v1::SessionStepResponse> ClientSession::Step(v1::SessionStepRequest request) {
  request.set_session_id(id());
  request.set_expected_step(session_.step());
  request.set_request_id(NewRequestId());
  absl::StatusOr<v1::SessionStepResponse> response = connection_->StepSession(request);
  if (response.ok()) session_.set_step(response->step());
  return response;
}

absl::StatusOr<v1::CheckpointResponse> ClientSession::Checkpoint() {
  v1::CheckpointRequest request;
  request.set_session_id(id());
  return connection_->Checkpoint(request);
}

absl::StatusOr<v1::Session> ClientSession::Close() {
  v1::CloseSessionRequest request;
  request.set_session_id(id());
  return connection_->CloseSession(request);
}

}  // namespace quantgate
