#include "client/channel_connection.h"

#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/live_calls.h"
#include "client/status.h"

namespace quantgate {
namespace {

// A report of 64 variants with their heat maps stays below this; the server caps what it sends.
constexpr int kReceiveBytesMax = 64 << 20;

absl::Status CheckAddress(const std::string& address) {
  if (address.rfind("unix:", 0) == 0 && address.size() > 5) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("server: \"", address, "\" is no address; write host:port or unix:/path"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) SetErrorDetail(status.error_details(), result);
  return result;
}

absl::StatusOr<std::unique_ptr<ChannelConnection>> ChannelConnection::Dial(
    const std::string& address, const ConnectionOptions& options) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
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
    : Connection(std::move(address), options),
      channel_(std::move(channel)),
      live_calls_(std::make_unique<LiveCalls>(options.deadline)) {}

ChannelConnection::~ChannelConnection() = default;

namespace {

using google::protobuf::MessageLite;

/// Calls a method by its name, as the generated stubs do.
absl::Status CallOnce(grpc::Channel& channel, const std::string& method,
                      grpc::ClientContext& context, const MessageLite& request,
                      MessageLite& response) {
  const std::string path = absl::StrCat("/quantgate.v1.", method);
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  return FromGrpcStatus(grpc::internal::BlockingUnaryCall<MessageLite, MessageLite>(
      &channel, rpc, &context, request, &response));
}

}  // namespace

absl::Status ChannelConnection::Call(const std::string& method, const MessageLite& request,
                                     const std::shared_ptr<MessageLite>& response) {
  for (int attempt = 1;; ++attempt) {
    response->Clear();
    LiveCall call(*live_calls_);
    absl::Status status = CallOnce(*channel_, method, *call.context(), request, *response);
    if (status.ok() || !IsWorthRetrying(status) || !PauseBeforeRetry(attempt, status)) {
      return status;
    }
  }
}

absl::StatusOr<v1::Run> ChannelConnection::CancelRun(const v1::CancelRunRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kFarewellTimeout));
  v1::Run run;
  const absl::Status status = CallOnce(*channel_, "Engine/CancelRun", context, request, run);
  if (!status.ok()) return status;
  return run;
}

void ChannelConnection::Cancel() { live_calls_->CancelAll(); }

bool ChannelConnection::PauseBeforeRetry(int attempt, const absl::Status& status) {
  if (attempt >= options().attempts_max) return false;
  thread_local std::minstd_rand random(std::random_device{}());
  const double jitter = std::uniform_real_distribution<double>(0.5, 1.0)(random);
  const absl::Duration backoff = options().backoff * (1 << std::min(attempt - 1, 10)) * jitter;
  return live_calls_->Pause(std::max(backoff, RetryAfterOf(status).value_or(backoff)));
}

}  // namespace quantgate
