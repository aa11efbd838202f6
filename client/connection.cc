#include "client/connection.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "quantgate/v1/engine_service.grpc.pb.h"
#include "quantgate/v1/info_service.grpc.pb.h"
#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "quantgate/v1/tensors_service.grpc.pb.h"

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

struct Connection::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : info(channel), blobs(channel), tensors(channel), engine(channel), sessions(channel) {}
  v1::Info::Stub info;
  v1::Blobs::Stub blobs;
  v1::Tensors::Stub tensors;
  v1::Engine::Stub engine;
  v1::Sessions::Stub sessions;

  template <typename Stub, typename Request, typename Response>
  static absl::StatusOr<Response> Call(Connection& connection, Stub& stub,
                                       grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Response*),
                                       const Request& request) {
    for (int attempt = 1;; ++attempt) {
      Response response;
      LiveCall call(connection.live_calls());
      const absl::Status status =
          FromGrpcStatus((stub.*method)(call.context(), request, &response));
      if (status.ok()) return response;
      const absl::StatusOr<bool> supplied = connection.SupplyMissing(status);
      if (!supplied.ok()) return supplied.status();
      if (*supplied) continue;
      if (!IsWorthRetrying(status) || !connection.PauseBeforeRetry(attempt, status)) return status;
    }
  }
};

absl::StatusOr<std::unique_ptr<Connection>> Connection::Dial(const std::string& address,
                                                             const ConnectionOptions& options) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
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
  return std::make_unique<Connection>(std::move(channel), address, options);
}

Connection::Connection(std::shared_ptr<grpc::Channel> channel, std::string address,
                       const ConnectionOptions& options)
    : address_(std::move(address)),
      options_(options),
      channel_(std::move(channel)),
      live_calls_(std::make_unique<LiveCalls>(options.deadline)),
      stubs_(std::make_unique<Stubs>(channel_)) {}

Connection::~Connection() = default;

absl::StatusOr<v1::CheckHardwareResponse> Connection::CheckHardware(
    const v1::CheckHardwareRequest& request) {
  return Stubs::Call(*this, stubs_->info, &v1::Info::Stub::CheckHardware, request);
}

absl::StatusOr<v1::Capabilities> Connection::GetCapabilities() {
  return Stubs::Call(*this, stubs_->info, &v1::Info::Stub::GetCapabilities,
                     v1::GetCapabilitiesRequest());
}
absl::StatusOr<v1::ListRecipesResponse> Connection::ListRecipes() {
  return Stubs::Call(*this, stubs_->info, &v1::Info::Stub::ListRecipes, v1::ListRecipesRequest());
}
absl::StatusOr<v1::ListArithmeticsResponse> Connection::ListArithmetics() {
  return Stubs::Call(*this, stubs_->info, &v1::Info::Stub::ListArithmetics,
                     v1::ListArithmeticsRequest());
}
absl::StatusOr<v1::FindMissingResponse> Connection::FindMissing(
    const v1::FindMissingRequest& request) {
  return Stubs::Call(*this, stubs_->blobs, &v1::Blobs::Stub::FindMissing, request);
}
absl::StatusOr<v1::QueryWriteResponse> Connection::QueryWrite(
    const v1::QueryWriteRequest& request) {
  return Stubs::Call(*this, stubs_->blobs, &v1::Blobs::Stub::QueryWrite, request);
}
absl::StatusOr<v1::TensorRecord> Connection::PutTensor(const v1::PutTensorRequest& request) {
  return Stubs::Call(*this, stubs_->tensors, &v1::Tensors::Stub::Put, request);
}
absl::StatusOr<v1::TensorRecord> Connection::GenerateTensor(
    const v1::GenerateTensorRequest& request) {
  return Stubs::Call(*this, stubs_->tensors, &v1::Tensors::Stub::Generate, request);
}
absl::StatusOr<v1::TensorRecord> Connection::DescribeTensor(
    const v1::DescribeTensorRequest& request) {
  return Stubs::Call(*this, stubs_->tensors, &v1::Tensors::Stub::Describe, request);
}
absl::StatusOr<v1::ListTensorsResponse> Connection::ListTensors(
    const v1::ListTensorsRequest& request) {
  return Stubs::Call(*this, stubs_->tensors, &v1::Tensors::Stub::List, request);
}
absl::StatusOr<v1::QuantizeResponse> Connection::Quantize(const v1::QuantizeRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::Quantize, request);
}
absl::StatusOr<v1::DequantizeResponse> Connection::Dequantize(
    const v1::DequantizeRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::Dequantize, request);
}
absl::StatusOr<v1::GemmResponse> Connection::Gemm(const v1::GemmRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::Gemm, request);
}
absl::StatusOr<v1::ExplainResponse> Connection::Explain(const v1::ExplainRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::Explain, request);
}

absl::StatusOr<v1::CompareResponse> Connection::Compare(const v1::CompareRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::Compare, request);
}
absl::StatusOr<v1::Run> Connection::GetRun(const v1::GetRunRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::GetRun, request);
}
absl::StatusOr<v1::ListRunsResponse> Connection::ListRuns(const v1::ListRunsRequest& request) {
  return Stubs::Call(*this, stubs_->engine, &v1::Engine::Stub::ListRuns, request);
}

absl::StatusOr<v1::Session> Connection::OpenSession(const v1::OpenSessionRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::Open, request);
}
absl::StatusOr<v1::SessionStepResponse> Connection::StepSession(
    const v1::SessionStepRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::Step, request);
}
absl::StatusOr<v1::Session> Connection::GetSession(const v1::GetSessionRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::Get, request);
}
absl::StatusOr<v1::ListSessionsResponse> Connection::ListSessions(
    const v1::ListSessionsRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::List, request);
}
absl::StatusOr<v1::CheckpointResponse> Connection::Checkpoint(
    const v1::CheckpointRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::Checkpoint, request);
}
absl::StatusOr<v1::Session> Connection::RestoreSession(const v1::RestoreSessionRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::Restore, request);
}
absl::StatusOr<v1::Session> Connection::CloseSession(const v1::CloseSessionRequest& request) {
  return Stubs::Call(*this, stubs_->sessions, &v1::Sessions::Stub::Close, request);
}

absl::StatusOr<v1::Run> Connection::CancelRun(const v1::CancelRunRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kFarewellTimeout));
  v1::Run run;
  const absl::Status status = FromGrpcStatus(stubs_->engine.CancelRun(&context, request, &run));
  if (!status.ok()) return status;
  return run;
}

namespace {

/// The blobs that a call was refused for.
std::vector<v1::Digest> MissingIn(const absl::Status& status) {
  const std::optional<v1::ErrorDetail> detail = ErrorDetailOf(status);
  if (!detail) return {};
  std::vector<v1::Digest> missing(detail->missing().begin(), detail->missing().end());
  // Where one alone is looked up, it is the field at fault.
  const std::vector<std::string> parts = absl::StrSplit(detail->value(), '/');
  int64_t size = 0;
  if (absl::IsNotFound(status) && detail->field() == "digest" && parts.size() == 2 &&
      absl::SimpleAtoi(parts[1], &size)) {
    v1::Digest& digest = missing.emplace_back();
    digest.set_sha256(absl::HexStringToBytes(parts[0]));
    digest.set_size(size);
  }
  return missing;
}

}  // namespace

absl::StatusOr<bool> Connection::SupplyMissing(const absl::Status& status) {
  if (!supplier_) return false;
  const std::vector<v1::Digest> missing = MissingIn(status);
  for (const v1::Digest& digest : missing) {
    if (!supplied_.insert(digest.sha256()).second) return false;
    const absl::Status supplied = supplier_(digest);
    if (absl::IsNotFound(supplied)) return false;
    if (!supplied.ok()) return supplied;
  }
  return !missing.empty();
}

void Connection::Cancel() { live_calls_->CancelAll(); }

bool Connection::PauseBeforeRetry(int attempt, const absl::Status& status) {
  if (attempt >= options_.attempts_max) return false;
  thread_local std::minstd_rand random(std::random_device{}());
  const double jitter = std::uniform_real_distribution<double>(0.5, 1.0)(random);
  const absl::Duration backoff = options_.backoff * (1 << std::min(attempt - 1, 10)) * jitter;
  return live_calls_->Pause(std::max(backoff, RetryAfterOf(status).value_or(backoff)));
}

std::string NewRequestId() {
  std::random_device device;
  std::string id;
  for (int word = 0; word < 4; ++word) absl::StrAppendFormat(&id, "%08x", device());
  return id;
}

}  // namespace quantgate
