// LocalConnection: QuantGate's API computed by the caller's process, without server, sockets or
// database. Calls run one after another, each on its own thread, so that a stuck rank keeps that
// thread and not the caller.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "server/store_interfaces.h"

namespace quantgate {

struct CallContext;  // server/runs/call_context.h
struct CheckedRun;   // server/runs/run_work.h

struct LocalOptions {
  /// "cpu", "cuda" (of several devices the first takes the work) or "cuda:N".
  std::string device = "cpu";
  /// Worker threads of the CPU engine; 0: one per CPU.
  int threads = 0;
  /// Where results of the hardware check are remembered; empty: nowhere.
  std::string hardware_checks_path;
};

/// Where a local connection has its tensors.
struct ConnectionStore {
  virtual ~ConnectionStore() = default;
  virtual Blobs& blobs() = 0;
  virtual Tensors& tensors() = 0;
  /// Keeps the bytes under their digest. Returns whether they were there already.
  virtual absl::StatusOr<bool> Add(const SharedBytes& bytes, const Digest& digest) = 0;
};

class LocalConnection : public Connection {
 public:
  /// Errors as MakeEngines (server/device/device.h).
  static absl::StatusOr<std::unique_ptr<LocalConnection>> Open(
      std::unique_ptr<ConnectionStore> store, const LocalOptions& local,
      const ConnectionOptions& options);
  ~LocalConnection() override;

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

 private:
  struct Workplace;
  /// Checks a run and does it; `observer` gets its events.
  absl::StatusOr<v1::RunReport> RunToEnd(
      absl::FunctionRef<absl::StatusOr<CheckedRun>(CallContext&)> check,
      const RunObserverFunction& observer);
  explicit LocalConnection(std::shared_ptr<Workplace> workplace, const ConnectionOptions& options);
  absl::Status Call(const std::string& method, const google::protobuf::MessageLite& request,
                    const std::shared_ptr<google::protobuf::MessageLite>& response) override;

  const std::shared_ptr<Workplace> workplace_;  ///< Shared with a thread that is stuck.
};

}  // namespace quantgate
