// ChannelConnection: the API of one server over TCP, a Unix socket or a channel inside the process.
//
// Every unary call of the API is idempotent (mutating ones carry a request id), so all of them are
// repeated with backoff when the server is UNAVAILABLE or names a time to try again. Streams are
// not: uploads, downloads and runs resume by their own means (blob_transfer.h, execute.h).
#pragma once

#include <memory>
#include <string>

#include "client/connection.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace quantgate {

class LiveCalls;

/// Same code and message; the detail (client/status.h), when there is one, as payload.
absl::Status FromGrpcStatus(const grpc::Status& status);

class ChannelConnection : public Connection {
 public:
  /// `address`: "host:port", "unix:/path" or "unix:path". INVALID_ARGUMENT for anything else;
  /// connecting happens with the first call.
  static absl::StatusOr<std::unique_ptr<ChannelConnection>> Dial(const std::string& address,
                                                                 const ConnectionOptions& options);
  /// Over an existing channel; `address` is its name in messages.
  ChannelConnection(std::shared_ptr<grpc::Channel> channel, std::string address,
                    const ConnectionOptions& options);
  ~ChannelConnection() override;

  absl::StatusOr<Upload> UploadBlob(const SharedBytes& bytes, const v1::Digest& digest,
                                    const UploadProgress& progress) override;
  absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(const v1::Digest& digest,
                                                       const DownloadProgress& progress) override;
  absl::StatusOr<v1::RunReport> ExecuteRun(const v1::RunSpec& spec,
                                           const RunObserverFunction& observer) override;
  absl::StatusOr<v1::RunReport> RunTrace(const v1::RunTraceRequest& request,
                                         const RunObserverFunction& observer) override;
  absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(
      const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) override;
  void Cancel() override;

  /// Is sent even after Cancel() or the deadline, and waits kFarewellTimeout at most.
  absl::StatusOr<v1::Run> CancelRun(const v1::CancelRunRequest& request);

  // For the streams of this library.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  LiveCalls& live_calls() { return *live_calls_; }
  /// Waits before try number `attempt` (1: the second). False: the deadline or Cancel() came first,
  /// or tries are used up.
  bool PauseBeforeRetry(int attempt, const absl::Status& status);

 private:
  absl::Status Call(const std::string& method, const google::protobuf::MessageLite& request,
                    const std::shared_ptr<google::protobuf::MessageLite>& response) override;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<LiveCalls> live_calls_;
};

}  // namespace quantgate
