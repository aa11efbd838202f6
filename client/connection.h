// Connection: a client's way to one QuantGate server, over TCP, a Unix socket or inside the
// process.
//
// Every unary call of the API is idempotent (mutating ones carry a request id), so all of them are
// repeated with backoff when the server is UNAVAILABLE or names a time to try again. Streams are
// not: uploads, downloads and runs resume by their own means (upload.h, download.h, execute.h).
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "quantgate/v1/blobs_service.pb.h"
#include "quantgate/v1/engine_service.pb.h"
#include "quantgate/v1/info_service.pb.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "quantgate/v1/tensors_service.pb.h"

namespace grpc {
class Channel;
}

namespace quantgate {

class LiveCalls;

struct ConnectionOptions {
  /// Holds for every call of the connection together; a call after it is DEADLINE_EXCEEDED.
  absl::Time deadline = absl::InfiniteFuture();
  /// Tries of one idempotent call; 1: no retry.
  int attempts_max = 4;
  /// Pause before the second try, doubled each time, times a random factor in [0.5, 1].
  absl::Duration backoff = absl::Milliseconds(100);
};

class Connection {
 public:
  /// `address`: "host:port", "unix:/path" or "unix:path". INVALID_ARGUMENT for anything else;
  /// connecting happens with the first call.
  static absl::StatusOr<std::unique_ptr<Connection>> Dial(const std::string& address,
                                                          const ConnectionOptions& options);
  /// Over a channel that somebody made; `address` is what messages call it.
  Connection(std::shared_ptr<grpc::Channel> channel, std::string address,
             const ConnectionOptions& options);
  ~Connection();

  const std::string& address() const { return address_; }
  const ConnectionOptions& options() const { return options_; }

  absl::StatusOr<v1::Capabilities> GetCapabilities();
  absl::StatusOr<v1::CheckHardwareResponse> CheckHardware(const v1::CheckHardwareRequest& request);
  absl::StatusOr<v1::ListRecipesResponse> ListRecipes();
  absl::StatusOr<v1::ListArithmeticsResponse> ListArithmetics();

  absl::StatusOr<v1::FindMissingResponse> FindMissing(const v1::FindMissingRequest& request);
  absl::StatusOr<v1::QueryWriteResponse> QueryWrite(const v1::QueryWriteRequest& request);

  absl::StatusOr<v1::TensorRecord> PutTensor(const v1::PutTensorRequest& request);
  absl::StatusOr<v1::TensorRecord> GenerateTensor(const v1::GenerateTensorRequest& request);
  absl::StatusOr<v1::TensorRecord> DescribeTensor(const v1::DescribeTensorRequest& request);
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(const v1::ListTensorsRequest& request);

  absl::StatusOr<v1::QuantizeResponse> Quantize(const v1::QuantizeRequest& request);
  absl::StatusOr<v1::DequantizeResponse> Dequantize(const v1::DequantizeRequest& request);
  absl::StatusOr<v1::GemmResponse> Gemm(const v1::GemmRequest& request);
  absl::StatusOr<v1::CompareResponse> Compare(const v1::CompareRequest& request);
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request);
  absl::StatusOr<v1::Run> GetRun(const v1::GetRunRequest& request);
  absl::StatusOr<v1::ListRunsResponse> ListRuns(const v1::ListRunsRequest& request);
  /// Goes out even after Cancel() or the deadline, for a moment of its own.
  absl::StatusOr<v1::Run> CancelRun(const v1::CancelRunRequest& request);

  absl::StatusOr<v1::Session> OpenSession(const v1::OpenSessionRequest& request);
  absl::StatusOr<v1::SessionStepResponse> StepSession(const v1::SessionStepRequest& request);
  absl::StatusOr<v1::Session> GetSession(const v1::GetSessionRequest& request);
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(const v1::ListSessionsRequest& request);
  absl::StatusOr<v1::CheckpointResponse> Checkpoint(const v1::CheckpointRequest& request);
  absl::StatusOr<v1::Session> RestoreSession(const v1::RestoreSessionRequest& request);
  absl::StatusOr<v1::Session> CloseSession(const v1::CloseSessionRequest& request);

  /// Where blobs come from that a call needs and the server lacks, so that the call is made again.
  /// NOT_FOUND: not from there.
  using BlobSupplier = std::function<absl::Status(const v1::Digest& digest)>;
  void SetSupplier(BlobSupplier supplier) { supplier_ = std::move(supplier); }
  /// Whether what `status` misses has been supplied. Each blob is supplied once.
  absl::StatusOr<bool> SupplyMissing(const absl::Status& status);

  /// Ends every call under way with CANCELLED, and later ones at once.
  void Cancel();

  // For the streams of this library.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  LiveCalls& live_calls() { return *live_calls_; }
  /// Waits before try number `attempt` (1: the second). False: the deadline or Cancel() came first,
  /// or tries are used up.
  bool PauseBeforeRetry(int attempt, const absl::Status& status);

 private:
  struct Stubs;

  const std::string address_;
  const ConnectionOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<LiveCalls> live_calls_;
  std::unique_ptr<Stubs> stubs_;
  BlobSupplier supplier_;
  std::set<std::string> supplied_;  ///< SHA-256.
};

/// How long a client that gives up takes to tell the server.
inline constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);

/// A token that is new with every call: 32 hex digits from the system's random source.
std::string NewRequestId();

}  // namespace quantgate
