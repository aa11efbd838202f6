#include "client/channel_connection.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/live_calls.h"
#include "client/status.h"

namespace quantgate {
namespace {

// A report of 64 variants with their heat maps stays below this; the server caps what it sends.
constexpr int kReceiveBytesMax = 64 << 20;

// Wire type 2 of protobuf, a length and so many bytes (protobuf.dev, "Encoding").
constexpr uint32_t kDataTag = v1::WriteRequest::kDataFieldNumber << 3 | 2;

/// `message`, which has no data, and then the caller's bytes as its data. The buffer shares
/// ownership of them.
grpc::ByteBuffer WithData(const v1::WriteRequest& message, std::span<const std::byte> data,
                          const std::shared_ptr<const void>& owner) {
  std::string prefix;
  {
    google::protobuf::io::StringOutputStream stream(&prefix);
    google::protobuf::io::CodedOutputStream out(&stream);
    message.SerializeToCodedStream(&out);
    out.WriteTag(kDataTag);
    out.WriteVarint64(data.size());
  }
  const auto let_go = [](void* user_data) {
    delete static_cast<std::shared_ptr<const void>*>(user_data);
  };
  const grpc::Slice slices[2] = {
      grpc::Slice(prefix), grpc::Slice(const_cast<std::byte*>(data.data()), data.size(), let_go,
                                       new std::shared_ptr<const void>(owner))};
  return grpc::ByteBuffer(slices, 2);
}

/// The path of a method, as the generated stubs have it: they know its types, this its name only.
std::string PathOf(const std::string& method) { return absl::StrCat("/quantgate.v1.", method); }

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) SetErrorDetail(status.error_details(), result);
  return result;
}

absl::StatusOr<std::unique_ptr<ChannelConnection>> ChannelConnection::Dial(
    const std::string& address, const ConnectionOptions& options) {
  if (!IsServerAddress(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("server: \"", address, "\" is no address; write host:port or unix:/path"));
  }
  // Held until the process ends: when the last user of gRPC's library goes, it joins a thread that
  // may sleep in a poll for 10 s.
  [[maybe_unused]] static const bool holds_grpc = (grpc_init(), true);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  // A server that has just been started should be found within a retry, not after gRPC's default
  // second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  // Finds out that a server vanished during a long run. A server takes pings more often than every
  // 5 minutes without data for abuse.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 330'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetUserAgentPrefix("quantgate");
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  return std::make_unique<ChannelConnection>(std::move(channel), address, options);
}

ChannelConnection::ChannelConnection(std::shared_ptr<grpc::Channel> channel, std::string address,
                                     const ConnectionOptions& options)
    : RemoteConnection(std::move(address), options),
      channel_(std::move(channel)),
      live_calls_(std::make_unique<LiveCalls>(options.deadline)) {}

ChannelConnection::~ChannelConnection() = default;

using google::protobuf::MessageLite;

absl::Status ChannelConnection::CallOnce(const std::string& method, Purpose purpose,
                                         const MessageLite& request, MessageLite& response) {
  const std::string path = PathOf(method);
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  LiveCall call(*live_calls_, purpose == Purpose::kFarewell);
  return FromGrpcStatus(grpc::internal::BlockingUnaryCall<MessageLite, MessageLite>(
      channel_.get(), rpc, call.context(), request, &response));
}

absl::Status ChannelConnection::ReadStream(const std::string& method, Purpose purpose,
                                           const MessageLite& request, MessageLite& message,
                                           absl::FunctionRef<bool()> on_message) {
  const std::string path = PathOf(method);
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::SERVER_STREAMING);
  LiveCall call(*live_calls_, purpose == Purpose::kFarewell);
  const std::unique_ptr<grpc::ClientReader<MessageLite>> reader(
      grpc::internal::ClientReaderFactory<MessageLite>::Create(channel_.get(), rpc, call.context(),
                                                               request));
  while (reader->Read(&message)) {
    if (on_message()) continue;
    call.context()->TryCancel();
    while (reader->Read(&message)) continue;
    reader->Finish();
    return absl::OkStatus();
  }
  return FromGrpcStatus(reader->Finish());
}

absl::Status ChannelConnection::WriteStream(UploadMessages& messages, v1::WriteResponse& response) {
  const std::string path = PathOf("Blobs/Write");
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::CLIENT_STREAMING);
  LiveCall call(*live_calls_, /*is_farewell=*/false);
  const std::unique_ptr<grpc::ClientWriter<grpc::ByteBuffer>> writer(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(channel_.get(), rpc,
                                                                    call.context(), &response));
  v1::WriteRequest request;
  std::span<const std::byte> data;
  // The peer is known once the first message is through.
  bool is_on_this_machine = false;
  while (messages.Next(is_on_this_machine, request, data)) {
    if (!writer->Write(WithData(request, data, messages.owner()))) break;
    messages.NoteSent();
    is_on_this_machine = IsOnThisMachine(call.context()->peer());
  }
  writer->WritesDone();
  return FromGrpcStatus(writer->Finish());
}

void ChannelConnection::CancelCalls() { live_calls_->CancelAll(); }

}  // namespace quantgate
