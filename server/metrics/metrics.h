// Metrics: every number that operators scrape. Only this folder uses the Prometheus library.
// Gauges, counters without labels, and counters of refusals, errors and corruption exist from the
// start; a series with a recipe, mode, pair, stage or code is added at its first event. Each label
// has a fixed set of values: an unknown value counts as "other". Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/validate/run/run.h"
#include "server/runs/run_statistics.h"

namespace quantgate {

/// What identifies an RPC in the grpc_server_* families.
struct RpcMethod {
  std::string_view type;  ///< "unary", "client_stream", "server_stream".
  std::string_view service;
  std::string_view method;
};

/// The labels of quantgate_build_info and quantgate_device_info.
struct BuildLabels {
  std::string version;
  std::string revision;
  std::vector<DeviceDescription> devices;
};

/// Memory of one CUDA device.
struct DeviceGauges {
  std::string id;
  int64_t used_bytes = 0;      ///< Used by tensors of all kinds.
  int64_t used_bytes_max = 0;  ///< The largest used_bytes so far.
  int64_t total_bytes = 0;
  int64_t resident_bytes = 0;  ///< Used by tensors that stay between calls.
  int64_t resident_bytes_max = 0;
  int64_t spilled_bytes = 0;  ///< Bytes of resident tensors that are in host memory for now.
  int64_t spilled_bytes_total = 0;
  int64_t dropped_bytes_total = 0;
  int64_t hits = 0;
  int64_t misses = 0;
};

/// Values that are read at each scrape.
struct GaugeReadings {
  bool ready = false;
  bool draining = false;
  /// A queue, over all devices together; the age is that of the oldest job that waits.
  struct Queue {
    std::string name;
    int64_t depth = 0;
    int64_t capacity = 0;
    double oldest_age_seconds = 0;
  };
  std::vector<Queue> queues;
  struct Connections {
    int64_t open = 0;
    int64_t open_max = 0;
    // Totals since the server's start.
    int64_t accepted = 0;
    int64_t refused = 0;
    int64_t failures = 0;
  } connections;
  int64_t upload_bytes_in_flight = 0;
  int64_t send_bytes_in_flight = 0;
  int64_t send_bytes_max = 0;
  int64_t blob_committed_bytes = 0;
  int64_t blob_committed_objects = 0;
  int64_t blob_partial_bytes = 0;
  int64_t blob_partial_objects = 0;
  int64_t blob_bytes_max = 0;
  int64_t data_dir_free_bytes = 0;
  int64_t ends_owed = 0;
  struct Sessions {
    int64_t open = 0;
    int64_t bytes = 0;
    int64_t bytes_max = 0;
    // Totals since the server's start.
    int64_t closed = 0;
    int64_t evicted = 0;
    int64_t expired = 0;
  } sessions;
  std::vector<DeviceGauges> devices;  ///< CUDA devices only.
};

enum class PeerTransport { kTcp, kUnix, kInProcess };
enum class CudaError { kSticky, kOutOfMemory };

class Metrics : public RunStatistics {
 public:
  /// `methods` must outlive this object; the functions below name a method by its index in them.
  Metrics(std::span<const RpcMethod> methods, const BuildLabels& build);
  ~Metrics() override;

  void RpcStarted(int method);
  void RpcHandled(int method, absl::StatusCode code, absl::Duration duration);
  void MessageReceived(int method);
  void MessageSent(int method);
  void UnknownMethodCalled();
  /// `reason` as in v1.ErrorDetail, or "draining".
  void Rejected(std::string_view reason);
  /// Counts calls that were ended because their clients did not take what was sent.
  void CallsUnread(int64_t calls);

  /// How a variant of a run ended, and how long a run took. `operation` is the name of the layer's
  /// kind, or "trace". `recipe` is the base name of the variant's recipe, for RunTook "several"
  /// where variants have several; `mode` is the variant's backward override.
  void RunEnded(std::string_view operation, std::string_view recipe, std::string_view mode,
                const absl::Status& status);
  void RunTook(std::string_view operation, std::string_view recipe, absl::Duration duration);
  /// How a unary call that computes on a device ended, and how long it took. Its op label is the
  /// method's name, or "session" for all methods of Sessions. `recipe` is empty for a call without.
  void CallEnded(int method, const absl::Status& status);
  void CallTook(int method, std::string_view recipe, absl::Duration duration);
  void StageTook(Stage stage, absl::Duration duration) override;
  void VariantMeasured(const VariantReport& report, std::string_view reference_recipe) override;
  void StagesTook(std::span<const StageTime> stages) override;
  void Quantized(std::string_view recipe, const QuantizationCounts& counts) override;
  void Overlapped(const OverlapTimeline& timeline) override;
  /// The counters for the collective calls of ranks.
  CommStatistics& communication();

  void SessionStepped(std::string_view step, const absl::Status& status) override;

  void Uploaded(PeerTransport transport, int64_t bytes);
  void Downloaded(PeerTransport transport, int64_t bytes);
  void UploadResumed();
  void UploadDeduplicated(int64_t bytes);
  void BlobCorrupted(std::string_view where);
  /// `what`: "database" or "event".
  void StoreCorrupted(std::string_view what);

  void CudaFailed(std::string_view device, CudaError error);
  void HardwareChecked(std::string_view device, int64_t compared, int64_t drifted) override;

  void ScenarioRan(std::string_view outcome) override;
  void FaultRan(std::string_view outcome) override;

  /// `source` is called for each scrape.
  void SetGaugeSource(std::function<GaugeReadings()> source);
  /// The metrics in Prometheus's text format.
  std::string Text();

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace quantgate
