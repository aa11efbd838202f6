// ChannelConnection: the API of one server over TCP, a Unix socket or a channel inside the process.
#pragma once

#include <memory>
#include <string>

#include "client/remote_connection.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace quantgate {

class LiveCalls;

/// Same code and message; the detail (client/status.h), when there is one, as payload.
absl::Status FromGrpcStatus(const grpc::Status& status);

class ChannelConnection : public RemoteConnection {
 public:
  /// `address`: "host:port", "unix:/path" or "unix:path". INVALID_ARGUMENT for anything else;
  /// connecting happens with the first call.
  static absl::StatusOr<std::unique_ptr<ChannelConnection>> Dial(const std::string& address,
                                                                 const ConnectionOptions& options);
  /// Over an existing channel; `address` is its name in messages.
  ChannelConnection(std::shared_ptr<grpc::Channel> channel, std::string address,
                    const ConnectionOptions& options);
  ~ChannelConnection() override;

  /// For benchmarks.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  absl::Status CallOnce(const std::string& method, Purpose purpose,
                        const google::protobuf::MessageLite& request,
                        google::protobuf::MessageLite& response) override;
  absl::Status ReadStream(const std::string& method, Purpose purpose,
                          const google::protobuf::MessageLite& request,
                          google::protobuf::MessageLite& message,
                          absl::FunctionRef<bool()> on_message) override;
  absl::Status WriteStream(UploadMessages& messages, v1::WriteResponse& response) override;
  void CancelCalls() override;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<LiveCalls> live_calls_;
};

}  // namespace quantgate
