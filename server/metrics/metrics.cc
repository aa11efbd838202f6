#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "server/limits.h"
#include "server/metrics/accuracy_series.h"
#include "server/metrics/process_series.h"
#include "server/metrics/rank_series.h"
#include "server/metrics/series_families.h"

namespace quantgate {
namespace {

// Seconds, from unary calls of less than a millisecond to runs of several minutes.
const Buckets kSecondsBuckets = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                 1,      2.5,   5,      10,    30,   60,    120,  300, 600};
// The 17 codes under the names that other gRPC servers export.
const std::vector<std::string>& CodeNames() {
  static const std::vector<std::string> names = {
      "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
      "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
      "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
      "DataLoss", "Unauthenticated"};
  return names;
}

constexpr std::string_view kStageNames[] = {"queue",     "fetch",       "quantize", "gemm",
                                            "operation", "communicate", "compare",  "store"};
constexpr std::string_view kTransportNames[] = {"tcp", "unix", "in_process"};

template <typename Enum, size_t count>
std::string_view NameOf(const std::string_view (&names)[count], Enum value) {
  return names[static_cast<size_t>(value)];
}

template <size_t count>
LabelAxis Axis(const char* name, const std::string_view (&values)[count]) {
  return {name, std::vector<std::string>(std::begin(values), std::end(values))};
}

LabelAxis OutcomeAxis() {
  return {"outcome", {"ok", "failed", "rejected", "cancelled", "deadline", "internal"}};
}

std::string_view OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    case absl::StatusCode::kInternal:
      return "internal";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return "rejected";
    default:
      return "failed";
  }
}

Stage StageOf(StageKind kind) {
  switch (kind) {
    case StageKind::kGemm:
      return Stage::kGemm;
    case StageKind::kQuantize:
      return Stage::kQuantize;
    case StageKind::kOperation:
      return Stage::kOperation;
    case StageKind::kCommunicate:
      return Stage::kCommunicate;
    case StageKind::kCompare:
      return Stage::kCompare;
  }
  return Stage::kOperation;
}

/// The label "op" of runs: the kinds of layers, and traces.
LabelAxis RunAxis() {
  LabelAxis axis{"op", {"trace"}};
  for (const LayerTraits& traits : AllLayerKinds()) axis.values.emplace_back(traits.name);
  return axis;
}

/// The label "op" of a method's calls: "check_hardware" for CheckHardware, "session" for Sessions.
std::string OperationOf(const RpcMethod& method) {
  if (method.service == "quantgate.v1.Sessions") return "session";
  std::string name;
  for (const char c : method.method) {
    if (absl::ascii_isupper(c) && !name.empty()) name += '_';
    name += absl::ascii_tolower(c);
  }
  return name;
}

std::vector<std::string> OperationsOf(std::span<const RpcMethod> methods) {
  std::vector<std::string> operations;
  for (const RpcMethod& method : methods) operations.push_back(OperationOf(method));
  return operations;
}

/// The label "op". Methods with the same op share a series.
LabelAxis MethodAxis(const std::vector<std::string>& operations) {
  LabelAxis axis{"op", {}};
  for (const std::string& operation : operations) {
    if (absl::c_linear_search(axis.values, operation)) continue;
    axis.values.push_back(operation);
  }
  return axis;
}

LabelAxis OperationAxis(const std::vector<std::string>& operations) {
  LabelAxis axis = RunAxis();
  const LabelAxis calls = MethodAxis(operations);
  axis.values.insert(axis.values.end(), calls.values.begin(), calls.values.end());
  return axis;
}

std::function<prometheus::Labels(size_t)> LabelsOf(std::span<const RpcMethod> methods) {
  return [methods](size_t number) {
    const RpcMethod& method = methods[number];
    return prometheus::Labels{{"grpc_type", std::string(method.type)},
                              {"grpc_service", std::string(method.service)},
                              {"grpc_method", std::string(method.method)}};
  };
}

std::vector<std::string> CudaDevicesOf(const std::vector<DeviceDescription>& devices) {
  std::vector<std::string> ids;
  for (const DeviceDescription& device : devices) {
    if (!device.cuda.empty()) ids.push_back(device.id);
  }
  return ids;
}

/// A version that the CUDA devices of a process share; empty without any.
std::string VersionOf(const std::vector<DeviceDescription>& devices,
                      std::string DeviceDescription::*version) {
  for (const DeviceDescription& device : devices) {
    if (!(device.*version).empty()) return device.*version;
  }
  return "";
}

}  // namespace

// Members are in the order in which they are exported.
struct Metrics::Families {
  Families(std::span<const RpcMethod> methods, const BuildLabels& build);
  void Refresh();
  void RefreshDevice(const DeviceGauges& device);

  const std::vector<std::string> operations;  ///< The op of each method's calls.
  prometheus::Registry registry;
  // Numbered by method; rpc_handled by method and code.
  NumberedSeries<prometheus::Counter> rpc_started, rpc_handled;
  NumberedSeries<prometheus::Histogram> rpc_seconds;
  NumberedSeries<prometheus::Counter> messages_received, messages_sent;
  CounterGrid unknown_methods{CounterFamily(registry, "quantgate_unknown_methods_total",
                                            "RPCs of methods that this server does not have."),
                              {}};

  GaugeGrid ready{GaugeFamily(registry, "quantgate_ready", "1 when requests are served."),
                  {{"component", {"engine"}}}};
  GaugeGrid draining{GaugeFamily(registry, "quantgate_draining", "1 while shutting down."),
                     {{"component", {"engine"}}}};
  CounterGrid run_total{
      CounterFamily(registry, "quantgate_run_total", "Variants of runs by how they ended."),
      SeriesStart::kFirstEvent,
      {RunAxis(), RecipeAxis("recipe", {"other"}), ModeAxis(), OutcomeAxis()}};
  CounterGrid call_total{
      CounterFamily(registry, "quantgate_run_total", "Variants of runs by how they ended."),
      SeriesStart::kFirstEvent,
      {MethodAxis(operations), {"recipe", {"none"}}, {"mode", {"none"}}, OutcomeAxis()}};
  HistogramGrid run_stage_seconds{
      HistogramFamily(registry, "quantgate_run_stage_seconds", "Time of each stage of a run."),
      SeriesStart::kFirstEvent,
      {Axis("stage", kStageNames)},
      kSecondsBuckets};
  HistogramGrid run_duration_seconds{
      HistogramFamily(registry, "quantgate_run_duration_seconds", "Time of a run, queue excluded."),
      SeriesStart::kFirstEvent,
      {OperationAxis(operations), RecipeAxis("recipe", {"several", "none"})},
      kSecondsBuckets};
  GaugeGrid queue_depth{GaugeFamily(registry, "quantgate_queue_depth", "Jobs waiting."),
                        {{"queue", {"runs", "calls"}}}};
  GaugeGrid queue_capacity{GaugeFamily(registry, "quantgate_queue_capacity", "Jobs that may wait."),
                           {{"queue", {"runs", "calls"}}}};
  GaugeGrid queue_oldest_age{GaugeFamily(registry, "quantgate_queue_oldest_age_seconds",
                                         "How long the first job has waited."),
                             {{"queue", {"runs", "calls"}}}};
  std::vector<std::string> cuda_devices;
  GaugeGrid gpu_memory{
      GaugeFamily(registry, "quantgate_gpu_memory_bytes", "Device memory by what it is used for."),
      {{"device", cuda_devices},
       {"state", {"used", "used_max", "total", "resident", "resident_limit", "spilled"}}}};
  CounterGrid gpu_evicted{
      CounterFamily(registry, "quantgate_gpu_evicted_bytes_total",
                    "Tensors that left device memory: spilled to the host, or dropped."),
      {{"device", cuda_devices}, {"to", {"host", "dropped"}}}};
  CounterGrid gpu_resident_requests{
      CounterFamily(registry, "quantgate_gpu_resident_requests_total",
                    "Tensors asked of device memory: found there, or brought."),
      {{"device", cuda_devices}, {"result", {"hit", "miss"}}}};
  CounterGrid cuda_errors{
      CounterFamily(registry, "quantgate_cuda_errors_total", "Failures of a device."),
      {{"device", cuda_devices}, {"kind", {"sticky", "oom"}}}};
  GaugeGrid hardware_check{
      GaugeFamily(registry, "quantgate_hardware_check_algorithms",
                  "Algorithms of the last self-check: equal to their model, or drifted from it."),
      {{"device", cuda_devices}, {"result", {"equal", "drifted"}}}};
  CounterGrid scenarios{
      CounterFamily(registry, "quantgate_scenarios_total", "Scenarios run, by outcome."),
      {{"outcome", {"passed", "failed", "error", "left_out"}}}};
  CounterGrid scenario_faults{CounterFamily(registry, "quantgate_scenario_faults_total",
                                            "Faults seeded in scenarios, by outcome."),
                              {{"outcome", {"caught", "missed", "left_out"}}}};
  GaugeGrid sessions_open{GaugeFamily(registry, "quantgate_sessions_open", "Training sessions."),
                          {}};
  GaugeGrid session_bytes{
      GaugeFamily(registry, "quantgate_session_bytes", "Bytes of the tensors that sessions hold."),
      {}};
  GaugeGrid session_bytes_limit{
      GaugeFamily(registry, "quantgate_session_bytes_limit", "Bound on the bytes of sessions."),
      {}};
  CounterGrid session_steps{
      CounterFamily(registry, "quantgate_session_steps_total", "Steps of sessions, by outcome."),
      SeriesStart::kFirstEvent,
      {{"step",
        {"train", "evaluate", "recompute", "backward", "wgrad", "optimize", "change_recipe",
         "offload", "reload"}},
       OutcomeAxis()}};
  CounterGrid sessions_ended{
      CounterFamily(registry, "quantgate_sessions_ended_total", "Sessions that ended, by reason."),
      {{"reason", {"closed", "evicted", "expired"}}}};
  RankSeries ranks{registry};
  GaugeGrid connections{
      GaugeFamily(registry, "quantgate_connections", "Connections of gRPC clients."), {}};
  GaugeGrid connections_limit{GaugeFamily(registry, "quantgate_connections_limit",
                                          "Connections that there may be at once."),
                              {}};
  CounterGrid connections_accepted{CounterFamily(registry, "quantgate_connections_accepted_total",
                                                 "Connections that were accepted."),
                                   {}};
  CounterGrid connections_refused{
      CounterFamily(registry, "quantgate_connections_refused_total",
                    "Connections closed at once, being beyond the limit."),
      {}};
  CounterGrid accept_failures{
      CounterFamily(registry, "quantgate_accept_failures_total",
                    "Attempts to accept for which descriptors or memory were lacking."),
      {}};
  CounterGrid rejected{
      CounterFamily(registry, "quantgate_rejected_total", "Requests refused, by reason."),
      {{"reason",
        {"queue_full", "bytes_budget", "quota", "disk", "memory", "draining", "limit", "sessions",
         "other"}}}};
  CounterGrid calls_unread{
      CounterFamily(registry, "quantgate_calls_unread_total",
                    "Calls ended because their clients did not take what was sent."),
      {}};
  GaugeGrid inflight_bytes{
      GaugeFamily(registry, "quantgate_inflight_bytes", "Bytes held in memory."),
      {{"kind", {"upload", "send"}}}};
  GaugeGrid inflight_limit{
      GaugeFamily(registry, "quantgate_inflight_limit_bytes", "Bound on the bytes in memory."),
      {{"kind", {"upload", "send"}}}};
  CounterGrid upload_bytes{
      CounterFamily(registry, "quantgate_upload_bytes_total", "Bytes received by Blobs.Write."),
      {Axis("transport", kTransportNames)}};
  CounterGrid download_bytes{
      CounterFamily(registry, "quantgate_download_bytes_total", "Bytes sent by Blobs.Read."),
      {Axis("transport", kTransportNames)}};
  CounterGrid upload_resumed{
      CounterFamily(registry, "quantgate_upload_resumed_total", "Uploads that were resumed."), {}};
  CounterGrid upload_dedup_bytes{CounterFamily(registry, "quantgate_upload_dedup_bytes_total",
                                               "Bytes that were stored already."),
                                 {}};
  GaugeGrid blob_bytes{GaugeFamily(registry, "quantgate_blob_store_bytes", "Bytes of blobs."),
                       {{"state", {"committed", "partial"}}}};
  GaugeGrid blob_limit{
      GaugeFamily(registry, "quantgate_blob_store_limit_bytes", "Bytes that all blobs may have."),
      {}};
  GaugeGrid blob_objects{GaugeFamily(registry, "quantgate_blob_store_objects", "Blobs."),
                         {{"state", {"committed", "partial"}}}};
  GaugeGrid data_dir_free_bytes{
      GaugeFamily(registry, "quantgate_data_dir_free_bytes",
                  "Bytes that the file system of the data directory still takes."),
      {}};
  GaugeGrid ends_owed{GaugeFamily(registry, "quantgate_run_ends_owed",
                                  "Runs that have ended and whose end cannot be stored yet."),
                      {}};
  CounterGrid blob_corruption{
      CounterFamily(registry, "quantgate_blob_corruption_total", "Blobs found damaged."),
      {{"where", {"read", "lookup", "startup"}}}};
  CounterGrid store_corruption{
      CounterFamily(registry, "quantgate_store_corruption_total",
                    "Reads of runs and tensors refused because stored bytes are damaged."),
      {{"what", {"database", "event"}}}};
  AccuracySeries accuracy{registry};
  ProcessSeries process{registry};

  std::mutex mutex;
  std::function<GaugeReadings()> source ABSL_GUARDED_BY(mutex);
};

Metrics::Families::Families(std::span<const RpcMethod> methods, const BuildLabels& build)
    : operations(OperationsOf(methods)),
      rpc_started(CounterFamily(registry, "grpc_server_started_total", "RPCs started."),
                  SeriesStart::kWithServer, methods.size(), LabelsOf(methods)),
      rpc_handled(CounterFamily(registry, "grpc_server_handled_total", "RPCs ended, by code."),
                  SeriesStart::kFirstEvent, methods.size() * CodeNames().size(),
                  [labels_of = LabelsOf(methods)](size_t number) {
                    prometheus::Labels labels = labels_of(number / CodeNames().size());
                    labels["grpc_code"] = CodeNames()[number % CodeNames().size()];
                    return labels;
                  }),
      rpc_seconds(HistogramFamily(registry, "grpc_server_handling_seconds", "Time of an RPC."),
                  SeriesStart::kFirstEvent, methods.size(), LabelsOf(methods), kSecondsBuckets),
      messages_received(
          CounterFamily(registry, "grpc_server_msg_received_total", "Messages received."),
          SeriesStart::kWithServer, methods.size(), LabelsOf(methods)),
      messages_sent(CounterFamily(registry, "grpc_server_msg_sent_total", "Messages sent."),
                    SeriesStart::kWithServer, methods.size(), LabelsOf(methods)),
      cuda_devices(CudaDevicesOf(build.devices)) {
  GaugeFamily(registry, "quantgate_build_info", "1; its labels say what was built.")
      .Add({{"version", build.version},
            {"git_sha", build.revision},
            {"cuda", VersionOf(build.devices, &DeviceDescription::cuda)},
            {"cublaslt", VersionOf(build.devices, &DeviceDescription::cublaslt)},
            {"nccl", VersionOf(build.devices, &DeviceDescription::nccl)}})
      .Set(1);
  auto& device_info = GaugeFamily(registry, "quantgate_device_info",
                                  "1; its labels describe a device that computes.");
  for (const DeviceDescription& device : build.devices) {
    device_info
        .Add({{"device", device.id},
              {"uuid", ""},
              {"name", device.name},
              {"arch", device.architecture}})
        .Set(1);
  }
  inflight_limit("upload").Set(static_cast<double>(kUploadBytesInFlight));
}

void Metrics::Families::RefreshDevice(const DeviceGauges& device) {
  const std::pair<const char*, int64_t> memory[] = {{"used", device.used_bytes},
                                                    {"used_max", device.used_bytes_max},
                                                    {"total", device.total_bytes},
                                                    {"resident", device.resident_bytes},
                                                    {"resident_limit", device.resident_bytes_max},
                                                    {"spilled", device.spilled_bytes}};
  for (const auto& [state, bytes] : memory) {
    gpu_memory(device.id, state).Set(static_cast<double>(bytes));
  }
  RaiseTo(gpu_evicted(device.id, "host"), device.spilled_bytes_total);
  RaiseTo(gpu_evicted(device.id, "dropped"), device.dropped_bytes_total);
  RaiseTo(gpu_resident_requests(device.id, "hit"), device.hits);
  RaiseTo(gpu_resident_requests(device.id, "miss"), device.misses);
}

void Metrics::Families::Refresh() {
  const std::lock_guard lock(mutex);
  process.Refresh();
  ranks.Refresh();
  if (!source) return;
  const GaugeReadings readings = source();
  ready("engine").Set(readings.ready ? 1 : 0);
  draining("engine").Set(readings.draining ? 1 : 0);
  for (const DeviceGauges& device : readings.devices) RefreshDevice(device);
  for (const auto& queue : readings.queues) {
    queue_depth(queue.name).Set(static_cast<double>(queue.depth));
    queue_capacity(queue.name).Set(static_cast<double>(queue.capacity));
    queue_oldest_age(queue.name).Set(queue.oldest_age_seconds);
  }
  connections().Set(static_cast<double>(readings.connections.open));
  connections_limit().Set(static_cast<double>(readings.connections.open_max));
  RaiseTo(connections_accepted(), readings.connections.accepted);
  RaiseTo(connections_refused(), readings.connections.refused);
  RaiseTo(accept_failures(), readings.connections.failures);
  inflight_bytes("upload").Set(static_cast<double>(readings.upload_bytes_in_flight));
  inflight_bytes("send").Set(static_cast<double>(readings.send_bytes_in_flight));
  inflight_limit("send").Set(static_cast<double>(readings.send_bytes_max));
  blob_bytes("committed").Set(static_cast<double>(readings.blob_committed_bytes));
  blob_bytes("partial").Set(static_cast<double>(readings.blob_partial_bytes));
  blob_objects("committed").Set(static_cast<double>(readings.blob_committed_objects));
  blob_objects("partial").Set(static_cast<double>(readings.blob_partial_objects));
  blob_limit().Set(static_cast<double>(readings.blob_bytes_max));
  data_dir_free_bytes().Set(static_cast<double>(readings.data_dir_free_bytes));
  ends_owed().Set(static_cast<double>(readings.ends_owed));
  const GaugeReadings::Sessions& sessions = readings.sessions;
  sessions_open().Set(static_cast<double>(sessions.open));
  session_bytes().Set(static_cast<double>(sessions.bytes));
  session_bytes_limit().Set(static_cast<double>(sessions.bytes_max));
  RaiseTo(sessions_ended("closed"), sessions.closed);
  RaiseTo(sessions_ended("evicted"), sessions.evicted);
  RaiseTo(sessions_ended("expired"), sessions.expired);
}

Metrics::Metrics(std::span<const RpcMethod> methods, const BuildLabels& build)
    : families_(std::make_unique<Families>(methods, build)) {}

Metrics::~Metrics() = default;

void Metrics::RpcStarted(int method) {
  families_->rpc_started[static_cast<size_t>(method)].Increment();
}

void Metrics::RpcHandled(int method, absl::StatusCode code, absl::Duration duration) {
  const auto number = static_cast<size_t>(method);
  const size_t codes = CodeNames().size();
  families_->rpc_handled[number * codes + std::min(static_cast<size_t>(code), codes - 1)]
      .Increment();
  families_->rpc_seconds[number].Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::MessageReceived(int method) {
  families_->messages_received[static_cast<size_t>(method)].Increment();
}

void Metrics::MessageSent(int method) {
  families_->messages_sent[static_cast<size_t>(method)].Increment();
}

void Metrics::UnknownMethodCalled() { families_->unknown_methods().Increment(); }
void Metrics::Rejected(std::string_view reason) { families_->rejected(reason).Increment(); }

void Metrics::CallsUnread(int64_t calls) {
  families_->calls_unread().Increment(static_cast<double>(calls));
}

void Metrics::RunEnded(std::string_view operation, std::string_view recipe, std::string_view mode,
                       const absl::Status& status) {
  families_->run_total(operation, recipe, mode, OutcomeOf(status)).Increment();
}

void Metrics::RunTook(std::string_view operation, std::string_view recipe,
                      absl::Duration duration) {
  families_->run_duration_seconds(operation, recipe).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CallEnded(int method, const absl::Status& status) {
  const std::string& operation = families_->operations[static_cast<size_t>(method)];
  families_->call_total(operation, "none", "none", OutcomeOf(status)).Increment();
}

void Metrics::CallTook(int method, std::string_view recipe, absl::Duration duration) {
  const std::string& operation = families_->operations[static_cast<size_t>(method)];
  families_->run_duration_seconds(operation, recipe.empty() ? "none" : recipe)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::StageTook(Stage stage, absl::Duration duration) {
  families_->run_stage_seconds(NameOf(kStageNames, stage)).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::Quantized(std::string_view recipe, const QuantizationCounts& counts) {
  families_->accuracy.Quantized(recipe, counts);
}

void Metrics::StagesTook(std::span<const StageTime> stages) {
  for (const StageTime& stage : stages) {
    StageTook(StageOf(stage.kind), absl::Seconds(stage.seconds));
  }
}

void Metrics::VariantMeasured(const VariantReport& report, std::string_view reference_recipe) {
  const std::string_view recipe = report.recipe_name;
  for (const QuantizationRecord& record : report.quantizations) Quantized(recipe, record.counts);
  for (const VariantReport::RankReport& rank : report.ranks) {
    StagesTook(rank.stages);
    for (const QuantizationRecord& record : rank.quantizations) Quantized(recipe, record.counts);
    for (const StageTimeline& stage : rank.timelines) Overlapped(stage.timeline);
  }
  families_->accuracy.Measured(report, reference_recipe);
}

void Metrics::Overlapped(const OverlapTimeline& timeline) { families_->ranks.Overlapped(timeline); }

CommStatistics& Metrics::communication() { return families_->ranks.communication(); }

void Metrics::SessionStepped(std::string_view step, const absl::Status& status) {
  families_->session_steps(step, OutcomeOf(status)).Increment();
}

void Metrics::Uploaded(PeerTransport transport, int64_t bytes) {
  families_->upload_bytes(NameOf(kTransportNames, transport)).Increment(static_cast<double>(bytes));
}

void Metrics::Downloaded(PeerTransport transport, int64_t bytes) {
  families_->download_bytes(NameOf(kTransportNames, transport))
      .Increment(static_cast<double>(bytes));
}

void Metrics::UploadResumed() { families_->upload_resumed().Increment(); }

void Metrics::UploadDeduplicated(int64_t bytes) {
  families_->upload_dedup_bytes().Increment(static_cast<double>(bytes));
}

void Metrics::BlobCorrupted(std::string_view where) {
  families_->blob_corruption(where).Increment();
}

void Metrics::StoreCorrupted(std::string_view what) {
  families_->store_corruption(what).Increment();
}

void Metrics::CudaFailed(std::string_view device, CudaError error) {
  families_->cuda_errors(device, error == CudaError::kSticky ? "sticky" : "oom").Increment();
}

void Metrics::HardwareChecked(std::string_view device, int64_t compared, int64_t drifted) {
  families_->hardware_check(device, "equal").Set(static_cast<double>(compared - drifted));
  families_->hardware_check(device, "drifted").Set(static_cast<double>(drifted));
}

void Metrics::ScenarioRan(std::string_view outcome) { families_->scenarios(outcome).Increment(); }
void Metrics::FaultRan(std::string_view outcome) {
  families_->scenario_faults(outcome).Increment();
}

void Metrics::SetGaugeSource(std::function<GaugeReadings()> source) {
  const std::lock_guard lock(families_->mutex);
  families_->source = std::move(source);
}

std::string Metrics::Text() {
  families_->Refresh();
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

}  // namespace quantgate
