// ClientSession: a training session on a server. Knows the session's step, so that another client's
// step in between is noticed, and gives each step a request id, so that one that is sent again
// after a broken connection is done once. Used by one thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "quantgate/v1/sessions_service.pb.h"

namespace quantgate {

class ClientSession {
 public:
  /// `request`'s request id is filled in where it has none. The connection must outlive the
  /// session.
  static absl::StatusOr<ClientSession> Open(Connection& connection, v1::OpenSessionRequest request);
  static absl::StatusOr<ClientSession> Restore(Connection& connection,
                                               v1::RestoreSessionRequest request);
  /// A session that is open.
  static absl::StatusOr<ClientSession> Attach(Connection& connection,
                                              const std::string& session_id);

  const std::string& id() const { return session_.session_id(); }
  /// The session as the server last described it, with its step number after this client's last
  /// step.
  const v1::Session& session() const { return session_; }

  /// One step; the session id, the expected step and the request id are filled in. ABORTED where
  /// another client's step came first.
  absl::StatusOr<v1::SessionStepResponse> Step(v1::SessionStepRequest request);
  absl::StatusOr<v1::CheckpointResponse> Checkpoint();
  absl::StatusOr<v1::Session> Close();

 private:
  ClientSession(Connection& connection, v1::Session session)
      : connection_(&connection), session_(std::move(session)) {}

  Connection* connection_;
  v1::Session session_;
};

}  // namespace quantgate
