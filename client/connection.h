// Connection: a client's way to QuantGate's API, at a server (channel_connection.h) or in its own
// process (in_process.h). Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/tensor/tensor.h"
#include "quantgate/v1/blobs_service.pb.h"
#include "quantgate/v1/engine_service.pb.h"
#include "quantgate/v1/info_service.pb.h"
#include "quantgate/v1/scenarios_service.pb.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "quantgate/v1/tensors_service.pb.h"

namespace quantgate {

struct ConnectionOptions {
  /// Holds for every call of the connection together; a call after it is DEADLINE_EXCEEDED.
  absl::Time deadline = absl::InfiniteFuture();
  /// Tries of one idempotent call; 1: no retry.
  int attempts_max = 4;
  /// Pause before the second try, doubled each time, times a random factor in [0.5, 1].
  absl::Duration backoff = absl::Milliseconds(100);
};

struct SharedBytes;  // client/blob_transfer.h
struct Upload;
using UploadProgress = std::function<void(int64_t done, int64_t size)>;
using DownloadProgress = std::function<void(int64_t done, int64_t size)>;
/// Called for every event once, in order of their sequence numbers.
using RunObserverFunction = std::function<void(const v1::RunEvent&)>;
using ScenarioObserverFunction = std::function<void(const v1::ScenarioEvent&)>;

class Connection {
 public:
  virtual ~Connection() = default;

  /// The name of the server in messages: its address, or "in process".
  const std::string& address() const { return address_; }
  const ConnectionOptions& options() const { return options_; }

  absl::StatusOr<v1::Capabilities> GetCapabilities() {
    return Unary<v1::Capabilities>("Info/GetCapabilities", v1::GetCapabilitiesRequest());
  }
  absl::StatusOr<v1::CheckHardwareResponse> CheckHardware(const v1::CheckHardwareRequest& request) {
    return Unary<v1::CheckHardwareResponse>("Info/CheckHardware", request);
  }
  absl::StatusOr<v1::ListRecipesResponse> ListRecipes() {
    return Unary<v1::ListRecipesResponse>("Info/ListRecipes", v1::ListRecipesRequest());
  }
  absl::StatusOr<v1::ListArithmeticsResponse> ListArithmetics() {
    return Unary<v1::ListArithmeticsResponse>("Info/ListArithmetics", v1::ListArithmeticsRequest());
  }

  absl::StatusOr<v1::FindMissingResponse> FindMissing(const v1::FindMissingRequest& request) {
    return Unary<v1::FindMissingResponse>("Blobs/FindMissing", request);
  }
  absl::StatusOr<v1::QueryWriteResponse> QueryWrite(const v1::QueryWriteRequest& request) {
    return Unary<v1::QueryWriteResponse>("Blobs/QueryWrite", request);
  }

  absl::StatusOr<v1::TensorRecord> PutTensor(const v1::PutTensorRequest& request) {
    return Unary<v1::TensorRecord>("Tensors/Put", request);
  }
  absl::StatusOr<v1::TensorRecord> GenerateTensor(const v1::GenerateTensorRequest& request) {
    return Unary<v1::TensorRecord>("Tensors/Generate", request);
  }
  absl::StatusOr<v1::TensorRecord> DescribeTensor(const v1::DescribeTensorRequest& request) {
    return Unary<v1::TensorRecord>("Tensors/Describe", request);
  }
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(const v1::ListTensorsRequest& request) {
    return Unary<v1::ListTensorsResponse>("Tensors/List", request);
  }

  absl::StatusOr<v1::QuantizeResponse> Quantize(const v1::QuantizeRequest& request) {
    return Unary<v1::QuantizeResponse>("Engine/Quantize", request);
  }
  absl::StatusOr<v1::DequantizeResponse> Dequantize(const v1::DequantizeRequest& request) {
    return Unary<v1::DequantizeResponse>("Engine/Dequantize", request);
  }
  absl::StatusOr<v1::UpdateUsagesResponse> UpdateUsages(const v1::UpdateUsagesRequest& request) {
    return Unary<v1::UpdateUsagesResponse>("Engine/UpdateUsages", request);
  }
  absl::StatusOr<v1::GemmResponse> Gemm(const v1::GemmRequest& request) {
    return Unary<v1::GemmResponse>("Engine/Gemm", request);
  }
  absl::StatusOr<v1::CompareResponse> Compare(const v1::CompareRequest& request) {
    return Unary<v1::CompareResponse>("Engine/Compare", request);
  }
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request) {
    return Unary<v1::ExplainResponse>("Engine/Explain", request);
  }
  absl::StatusOr<v1::DiagnoseResponse> Diagnose(const v1::DiagnoseRequest& request) {
    return Unary<v1::DiagnoseResponse>("Engine/Diagnose", request);
  }
  absl::StatusOr<v1::Run> GetRun(const v1::GetRunRequest& request) {
    return Unary<v1::Run>("Engine/GetRun", request);
  }
  absl::StatusOr<v1::ListRunsResponse> ListRuns(const v1::ListRunsRequest& request) {
    return Unary<v1::ListRunsResponse>("Engine/ListRuns", request);
  }

  absl::StatusOr<v1::Session> OpenSession(const v1::OpenSessionRequest& request) {
    return Unary<v1::Session>("Sessions/Open", request);
  }
  absl::StatusOr<v1::SessionStepResponse> StepSession(const v1::SessionStepRequest& request) {
    return Unary<v1::SessionStepResponse>("Sessions/Step", request);
  }
  absl::StatusOr<v1::Session> GetSession(const v1::GetSessionRequest& request) {
    return Unary<v1::Session>("Sessions/Get", request);
  }
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(const v1::ListSessionsRequest& request) {
    return Unary<v1::ListSessionsResponse>("Sessions/List", request);
  }
  absl::StatusOr<v1::CheckpointResponse> Checkpoint(const v1::CheckpointRequest& request) {
    return Unary<v1::CheckpointResponse>("Sessions/Checkpoint", request);
  }
  absl::StatusOr<v1::Session> RestoreSession(const v1::RestoreSessionRequest& request) {
    return Unary<v1::Session>("Sessions/Restore", request);
  }
  absl::StatusOr<v1::Session> CloseSession(const v1::CloseSessionRequest& request) {
    return Unary<v1::Session>("Sessions/Close", request);
  }

  absl::StatusOr<v1::ListScenariosResponse> ListScenarios() {
    return Unary<v1::ListScenariosResponse>("Scenarios/List", v1::ListScenariosRequest());
  }

  /// Documented with the functions of the same names in client/blob_transfer.h and
  /// client/execute.h.
  virtual absl::StatusOr<Upload> UploadBlob(const SharedBytes& bytes, const v1::Digest& digest,
                                            const UploadProgress& progress) = 0;
  virtual absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(
      const v1::Digest& digest, const DownloadProgress& progress) = 0;
  virtual absl::StatusOr<v1::RunReport> ExecuteRun(const v1::RunSpec& spec,
                                                   const RunObserverFunction& observer) = 0;
  virtual absl::StatusOr<v1::RunReport> RunTrace(const v1::RunTraceRequest& request,
                                                 const RunObserverFunction& observer) = 0;
  virtual absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(
      const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) = 0;

  /// Ends every call under way with CANCELLED, and later ones at once.
  virtual void Cancel() = 0;

  /// Any of the unary calls above, "Engine/Quantize", with messages of its types. Fills `response`,
  /// which nobody may read after a failure.
  absl::Status CallByName(const std::string& method, const google::protobuf::MessageLite& request,
                          const std::shared_ptr<google::protobuf::MessageLite>& response) {
    return Call(method, request, response);
  }

 protected:
  Connection(std::string address, const ConnectionOptions& options)
      : address_(std::move(address)), options_(options) {}

 private:
  /// `method`: "Engine/Quantize", of package quantgate.v1. Fills `response`, which nobody reads
  /// after a failure: the call may go on writing to it then.
  virtual absl::Status Call(const std::string& method, const google::protobuf::MessageLite& request,
                            const std::shared_ptr<google::protobuf::MessageLite>& response) = 0;
  template <typename Response, typename Request>
  absl::StatusOr<Response> Unary(const char* method, const Request& request) {
    const auto response = std::make_shared<Response>();
    if (absl::Status status = Call(method, request, response); !status.ok()) return status;
    return std::move(*response);
  }

  const std::string address_;
  const ConnectionOptions options_;
};

/// How long a client that gives up waits while it tells the server.
inline constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);

/// A token that is new with every call: 32 hex digits from the system's random source.
std::string NewRequestId();

}  // namespace quantgate
