#include "server/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/comm/nccl/communicator_cache.h"
#include "server/device/build_description.h"
#include "server/device/hardware_checks.h"
#include "server/disk_watch.h"
#include "server/limits.h"
#include "server/metrics/process_series.h"
#include "server/net/listen_address.h"
#include "server/net/listener.h"
#include "server/net/send_budget.h"
#include "server/process_memory.h"
#include "server/rpc/call.h"
#include "server/rpc/refused_calls.h"
#include "server/rpc/rpc_methods.h"
#include "server/rpc/services.h"
#include "server/runs/runs.h"
#include "server/service_context.h"
#include "server/sessions/session_store.h"
#include "server/store/data_dir.h"
#include "server/store/database.h"
#include "server/store/tensor_store.h"

namespace quantgate {
namespace {

constexpr const char* kHealthServices[] = {"live",
                                           "quantgate.v1.Info",
                                           "quantgate.v1.Blobs",
                                           "quantgate.v1.Tensors",
                                           "quantgate.v1.Engine",
                                           "quantgate.v1.Sessions",
                                           "quantgate.v1.Scenarios"};

/// The period in which a server that waits for its queues checks whether a rank is stuck.
constexpr absl::Duration kStuckPeriod = absl::Milliseconds(100);

/// How long a stream waits for room to send, because its own connection or many others do not take
/// what they were sent. A stream may wait several times, for one message after another.
constexpr absl::Duration kRoomWaitMax = absl::Seconds(15);

void SetChannelArguments(grpc::ServerBuilder& builder, const ServerOptions& options) {
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Compression is off: a mebibyte of compressed zeros would grow to a gibibyte before gRPC checks
  // its size.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // A client that vanished without closing its connection is detected within 80 seconds, also
  // between its calls.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTimeout)));
  builder.AddChannelArgument(
      GRPC_ARG_MAX_CONNECTION_IDLE_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.connection_idle_max)));
  grpc::ResourceQuota quota("quantgate");
  quota.Resize(static_cast<size_t>(options.grpc_buffer_bytes_max));
  quota.SetMaxThreads(kReflectionThreadsMax);
  builder.SetResourceQuota(quota);
}

void AddQueue(const DeviceQueue& queue, GaugeReadings::Queue& sum) {
  sum.depth += queue.depth();
  sum.capacity += queue.capacity();
  sum.oldest_age_seconds =
      std::max(sum.oldest_age_seconds, absl::ToDoubleSeconds(queue.oldest_age()));
}

DeviceGauges GaugesOf(const Device& device) {
  const DeviceMemory memory = device.engine->Memory();
  const ResidentUsage usage = device.resident.usage();
  DeviceGauges gauges;
  gauges.id = device.id;
  gauges.used_bytes = memory.bytes_in_use;
  gauges.used_bytes_max = memory.bytes_in_use_max;
  gauges.total_bytes = memory.bytes_total;
  gauges.resident_bytes = usage.resident_bytes;
  gauges.resident_bytes_max = usage.bytes_max;
  gauges.spilled_bytes = usage.spilled_bytes;
  gauges.spilled_bytes_total = usage.spilled_bytes_total;
  gauges.dropped_bytes_total = usage.dropped_bytes_total;
  gauges.hits = usage.hits;
  gauges.misses = usage.misses;
  return gauges;
}

/// Members are in the order in which they are needed; they are destroyed in the reverse order.
class RunningServer : public Server {
 public:
  RunningServer(ServerOptions options, DataDir data_dir)
      : options_(std::move(options)),
        data_dir_(std::move(data_dir)),
        watch_([this](const Device& device, const absl::Status& why) { DeviceLost(device, why); },
               [this](const Device& device) {
                 metrics_->CudaFailed(device.id, CudaError::kOutOfMemory);
               }),
        hardware_checks_(data_dir_.hardware_checks_path()) {}

  /// Waits for a stuck rank, since the rank uses members of this object.
  ~RunningServer() override {
    is_ending_ = true;
    Shutdown(absl::ZeroDuration());
  }

  absl::Status Open();
  absl::Status Listen();

  std::shared_ptr<grpc::Channel> InProcessChannel() override {
    return server_->InProcessChannel(grpc::ChannelArguments());
  }
  std::vector<int> ports() const override {
    return listener_ == nullptr ? std::vector<int>() : listener_->ports();
  }
  int metrics_port() const override { return http_ == nullptr ? 0 : http_->port(); }
  bool Shutdown(absl::Duration grace) override;
  void Hurry() override;

 private:
  absl::Status OpenDevices();
  absl::Status CheckDevices();
  absl::Status StartListener();
  void DeviceLost(const Device& device, const absl::Status& why);
  void RanksStuck(const absl::Status& why);
  void StopServing(const absl::Status& why);
  bool DrainDevices(absl::Time deadline);
  bool AwaitIdle(DeviceQueue& queue, absl::Time deadline) const;
  GaugeReadings ReadGauges();
  std::string WhyNotReady() const;
  void Maintain();
  void EndUnread();

  const ServerOptions options_;
  DataDir data_dir_;
  DeviceWatch watch_;
  std::unique_ptr<DiskWatch> disk_;
  std::unique_ptr<Metrics> metrics_;
  /// Used by every world of ranks; worlds end before it.
  std::unique_ptr<CommunicatorCache> communicators_;
  RankSetting ranks_;
  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<TensorStore> tensors_;
  std::unique_ptr<RunStore> run_store_;
  std::unique_ptr<TensorLoader> loader_;
  HardwareChecks hardware_checks_;
  CallRegistry calls_;
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> is_ready_{false};
  std::atomic<bool> has_stuck_ranks_{false}, is_ending_{false};
  std::atomic<int64_t> upload_bytes_in_flight_{0};
  std::shared_ptr<SendBudget> send_budget_;
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<Runs> runs_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> storing_;  ///< Wakes streams, whose tasks executor_ runs.
  std::unique_ptr<Executor> transfers_;
  Devices devices_;
  std::unique_ptr<SessionStore> sessions_;  ///< Its tensors are in the devices' memory.
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::CallbackGenericService> unknown_methods_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<Listener> listener_;  ///< Its thread uses server_ and acceptor_.
  std::unique_ptr<HttpEndpoint> http_;
  std::mutex maintenance_mutex_;
  std::condition_variable maintenance_ends_;
  bool is_maintenance_over_ ABSL_GUARDED_BY(maintenance_mutex_) = false;
  std::thread maintenance_;
  bool is_shut_down_ = false;
};

absl::Status RunningServer::Open() {
  disk_ = std::make_unique<DiskWatch>(data_dir_.path(), options_.disk_reserve_bytes,
                                      options_.read_disk_room, options_.log);
  QG_RETURN_IF_ERROR(OpenDevices());
  const BuildDescription build = DescribeBuild();
  metrics_ = std::make_unique<Metrics>(
      AllRpcMethods(), BuildLabels{build.version, build.revision, DescribeDevices(devices_)});
  ranks_ = {&metrics_->communication(), options_.rank_deadline, options_.make_transport,
            options_.wrap_engine};
  communicators_ = std::make_unique<CommunicatorCache>(&metrics_->communication());
  ranks_.communicators = communicators_.get();
  ranks_.on_stuck = [this](const absl::Status& why) { RanksStuck(why); };
  BlobStoreOptions blob_options;
  blob_options.blobs_path = data_dir_.blobs_path();
  blob_options.partial_path = data_dir_.partial_path();
  blob_options.quarantine_path = data_dir_.quarantine_path();
  blob_options.blob_bytes_max = options_.blob_bytes_max;
  blob_options.store_bytes_max = options_.store_bytes_max;
  blob_options.fsync = options_.fsync;
  blob_options.open_uploads_max =
      ReadProcessStatistics().max_descriptors / kDescriptorsPerOpenUpload;
  blob_options.on_corruption = [this](std::string_view where) { metrics_->BlobCorrupted(where); };
  QG_ASSIGN_OR_RETURN(blobs_, BlobStore::Open(std::move(blob_options)));
  auto opened = Database::Open(data_dir_.database_path(),
                               [this](auto what) { metrics_->StoreCorrupted(what); });
  QG_RETURN_IF_ERROR(RefusedStart(data_dir_.database_path(), opened.status()));
  database_ = *std::move(opened);
  tensors_ = std::make_unique<TensorStore>(*database_);
  run_store_ = std::make_unique<RunStore>(*database_);
  loader_ = std::make_unique<TensorLoader>(*blobs_, *tensors_);
  sessions_ = std::make_unique<SessionStore>(options_.sessions);
  // Conversions are short. Transfers need two threads for the strands of one upload, and more of
  // them while disks are slow.
  const int cpus = AvailableCpus();
  executor_ = std::make_unique<Executor>(std::max(2, cpus / 2));
  storing_ = std::make_unique<Executor>(1);
  transfers_ = std::make_unique<Executor>(std::max(4, cpus));
  send_budget_ = std::make_shared<SendBudget>(
      SendBudget::Limits{options_.send_bytes_max, options_.send_connection_bytes_max},
      options_.now);
  context_.reset(
      new ServiceContext{{options_.tensor_bytes_max, options_.engine, devices_, *blobs_, *tensors_,
                          *loader_, *sessions_, hardware_checks_, ranks_, *metrics_},
                         options_,
                         watch_,
                         *blobs_,
                         *run_store_,
                         *executor_,
                         *storing_,
                         *transfers_,
                         *metrics_,
                         calls_,
                         is_draining_,
                         upload_bytes_in_flight_,
                         *send_budget_});
  runs_ = std::make_unique<Runs>(*context_);
  metrics_->SetGaugeSource([this] { return ReadGauges(); });
  QG_RETURN_IF_ERROR(CheckDevices());
  const auto strays = run_store_->SetStrayFilesAside(data_dir_.quarantine_path());
  QG_RETURN_IF_ERROR(RefusedStart(data_dir_.database_path(), strays.status()));
  if (*strays > 0 && options_.log) {
    options_.log(absl::StrCat("events of ", *strays,
                              " runs that the database does not know were set aside: quarantine/"));
  }
  return RefusedStart(data_dir_.database_path(), runs_->EndInterrupted());
}

absl::Status RunningServer::OpenDevices() {
  QG_ASSIGN_OR_RETURN(auto engines, options_.make_engines
                                        ? options_.make_engines()
                                        : MakeEngines(options_.devices, options_.engine));
  for (auto& engine : engines) {
    devices_.push_back(std::make_unique<ServedDevice>(std::move(engine), options_));
  }
  return absl::OkStatus();
}

/// Checks before anything is served whether the devices still compute what their models say.
absl::Status RunningServer::CheckDevices() {
  if (!options_.checks_hardware) return absl::OkStatus();
  for (const auto& device : devices_) {
    if (device->engine->Memory().bytes_total == 0) continue;
    QG_ASSIGN_OR_RETURN(const HardwareCheckResult result,
                        hardware_checks_.Check(*device, HardwareCheckSize::kQuick,
                                               /*again=*/false, nullptr));
    metrics_->HardwareChecked(device->id, result.runs, result.drifted_runs);
    if (options_.on_hardware_checked) options_.on_hardware_checked(result.key, result.lines);
  }
  return absl::OkStatus();
}

/// A lost device fails every further operation, and the results of the other devices of the process
/// cannot be trusted either: the process must be replaced.
void RunningServer::DeviceLost(const Device& device, const absl::Status& why) {
  metrics_->CudaFailed(device.id, CudaError::kSticky);
  StopServing(why);
}

/// The queue's worker waits for the rank, perhaps for ever, and so do the jobs behind it.
void RunningServer::RanksStuck(const absl::Status& why) {
  has_stuck_ranks_ = true;
  StopServing(why);
}

void RunningServer::StopServing(const absl::Status& why) {
  is_ready_ = false;
  is_draining_ = true;
  if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(false);
  if (options_.on_device_lost) options_.on_device_lost(why);
}

absl::Status RunningServer::Listen() {
  if (!options_.listen.empty()) {
    QG_ASSIGN_OR_RETURN(listener_, Listener::Open(options_.listen));
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  services_.push_back(MakeInfoService(*context_));
  services_.push_back(MakeBlobsService(*context_));
  services_.push_back(MakeTensorsService(*context_));
  services_.push_back(MakeEngineService(*context_, *runs_));
  services_.push_back(MakeScenariosService(*context_));
  services_.push_back(MakeSessionsService(*context_, *runs_));
  grpc::ServerBuilder builder;
  SetChannelArguments(builder, options_);
  for (const auto& service : services_) builder.RegisterService(service.get());
  unknown_methods_ = MakeUnknownMethods(*metrics_);
  builder.RegisterCallbackGenericService(unknown_methods_.get());
  InterceptorFactories interceptors = MakeMalformedCallAnswers(*metrics_);
  interceptors.push_back(MakeSendWatch(calls_));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  // gRPC does not bind the addresses; the listener hands it the connections that it has accepted.
  if (listener_ != nullptr) {
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        Type::FROM_FD, grpc::InsecureServerCredentials());
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC did not start");
  if (!options_.metrics_listen.empty()) {
    // HTTP connections take at most half of the descriptors that ConnectionsMax leaves for calls.
    HttpEndpoint::Bounds bounds;
    bounds.connections_max = static_cast<int>(
        std::min<int64_t>(bounds.connections_max, ReadProcessStatistics().max_descriptors / 8));
    QG_ASSIGN_OR_RETURN(http_, options_.start_http(options_.metrics_listen,
                                                   {[this] { return metrics_->Text(); },
                                                    [this] { return WhyNotReady(); }},
                                                   bounds));
  }
  auto* health = server_->GetHealthCheckService();
  health->SetServingStatus(true);
  for (const char* service : kHealthServices) health->SetServingStatus(service, true);
  if (listener_ != nullptr) QG_RETURN_IF_ERROR(StartListener());
  is_ready_ = true;
  maintenance_ = std::thread([this] { Maintain(); });
  return absl::OkStatus();
}

/// Starts the listener last, when everything else that keeps descriptors open exists.
absl::Status RunningServer::StartListener() {
  const ProcessStatistics process = ReadProcessStatistics();
  QG_ASSIGN_OR_RETURN(const int64_t connections_max,
                      ConnectionsMax(process.max_descriptors, process.open_descriptors));
  listener_->Start(
      connections_max,
      [this](int descriptor) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.fd = descriptor;
        acceptor_->HandleNewConnection(&connection);
      },
      [this](const std::string& line) {
        if (options_.log) options_.log(line);
      });
  return absl::OkStatus();
}

/// Why the server is not ready; empty when it is.
std::string RunningServer::WhyNotReady() const {
  if (!is_ready_) return is_draining_ ? "shutting down" : "starting";
  if (listener_ != nullptr && !listener_->is_accepting()) return "no connection can be accepted";
  return disk_->why_full();
}

GaugeReadings RunningServer::ReadGauges() {
  GaugeReadings readings;
  readings.ready = WhyNotReady().empty();
  readings.draining = is_draining_;
  readings.queues = {{"runs"}, {"calls"}};
  for (const auto& device : devices_) {
    AddQueue(Served(*device).run_queue, readings.queues[0]);
    AddQueue(Served(*device).call_queue, readings.queues[1]);
    if (device->engine->Memory().bytes_total != 0) readings.devices.push_back(GaugesOf(*device));
  }
  if (listener_ != nullptr) {
    const ListenerUsage usage = listener_->usage();
    readings.connections = {usage.connections, usage.connections_max, usage.accepted, usage.refused,
                            usage.failures};
  }
  readings.upload_bytes_in_flight = upload_bytes_in_flight_;
  readings.send_bytes_in_flight = send_budget_->bytes();
  readings.send_bytes_max = send_budget_->bytes_max();
  const BlobStoreUsage usage = blobs_->usage();
  readings.blob_committed_bytes = usage.committed_bytes;
  readings.blob_committed_objects = usage.committed_objects;
  readings.blob_partial_bytes = usage.partial_bytes;
  readings.blob_partial_objects = usage.partial_objects;
  readings.blob_bytes_max = blobs_->bytes_max();
  readings.data_dir_free_bytes = disk_->free_bytes();
  readings.ends_owed = runs_->live().owed();
  const SessionUsage sessions = sessions_->usage();
  readings.sessions = {sessions.open,   sessions.bytes,   sessions.bytes_max,
                       sessions.closed, sessions.evicted, sessions.expired};
  return readings;
}

void RunningServer::Maintain() {
  HeapTrimmer trimmer;
  // Waits by a steady clock: if the wall clock were set back by a day, a deadline of it would be a
  // day away.
  std::unique_lock lock(maintenance_mutex_);
  while (!maintenance_ends_.wait_for(lock, options_.maintenance_period,
                                     [this] { return is_maintenance_over_; })) {
    EndUnread();
    sessions_->ExpireLeases();
    blobs_->ExpirePartials();
    disk_->Look();
    runs_->live().StoreOwed();
    // Each call in progress needs roughly this much memory, most of it in gRPC.
    constexpr int64_t kCallBytes = 32 << 10;
    trimmer.Observe(upload_bytes_in_flight_ + send_budget_->bytes() + calls_.size() * kCallBytes);
  }
}

void RunningServer::EndUnread() {
  const auto now = options_.now();
  const absl::Duration patience =
      send_budget_->is_short() ? options_.send_idle_when_short : options_.send_idle_max;
  const int unread = calls_.CancelIdle(now, kUploadIdleMax, patience);
  send_budget_->Expire(now -
                       absl::ToChronoNanoseconds(std::min(options_.send_idle_max, kRoomWaitMax)));
  if (unread == 0) return;
  metrics_->CallsUnread(unread);
  if (options_.log) {
    options_.log(absl::StrCat(unread, " calls ended: their clients took nothing for ",
                              absl::FormatDuration(patience)));
  }
}

// In order: no new work is accepted; running work may finish; remaining work is cancelled; then
// gRPC is shut down, which waits until every call is finished. The threads that finish calls end
// with the members.
bool RunningServer::Shutdown(absl::Duration grace) {
  if (is_shut_down_) return true;
  const absl::Time deadline = SteadyNow() + grace;
  is_ready_ = false;
  is_draining_ = true;
  if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(false);
  if (!DrainDevices(deadline)) return false;
  is_shut_down_ = true;
  if (listener_ != nullptr) listener_->Stop();
  if (server_ != nullptr) {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + (deadline - SteadyNow())));
  }
  if (maintenance_.joinable()) {
    {
      const std::lock_guard lock(maintenance_mutex_);
      is_maintenance_over_ = true;
    }
    maintenance_ends_.notify_all();
    maintenance_.join();
    runs_->live().StoreOwed();
  }
  http_ = nullptr;
  return true;
}

/// Drains the queues and waits for their jobs; false where a stuck rank keeps a queue's worker.
bool RunningServer::DrainDevices(absl::Time deadline) {
  std::vector<DeviceQueue*> queues;
  for (const auto& device : devices_) {
    queues.insert(queues.end(), {&Served(*device).run_queue, &Served(*device).call_queue});
  }
  for (DeviceQueue* queue : queues) queue->Drain();
  for (DeviceQueue* queue : queues) {
    if (!queue->WaitIdle(deadline)) queue->CancelAll();
  }
  return std::all_of(queues.begin(), queues.end(),
                     [&](DeviceQueue* queue) { return AwaitIdle(*queue, deadline); });
}

/// Waits until the queue is idle; false after `deadline` where a rank is stuck. A rank may turn out
/// to be stuck while this waits.
bool RunningServer::AwaitIdle(DeviceQueue& queue, absl::Time deadline) const {
  while (!queue.WaitIdle(SteadyNow() + kStuckPeriod)) {
    if (has_stuck_ranks_ && !is_ending_ && SteadyNow() >= deadline) return false;
  }
  return true;
}

void RunningServer::Hurry() {
  for (const auto& device : devices_) {
    Served(*device).run_queue.CancelAll();
    Served(*device).call_queue.CancelAll();
  }
  calls_.CancelAll();
}

absl::Status OfOption(const char* option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(option, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  // Addresses are checked before anything is created.
  for (const std::string& address : options.listen) {
    QG_RETURN_IF_ERROR(OfOption("--listen", CheckListenAddress(address)));
    QG_RETURN_IF_ERROR(OfOption("--listen", CheckReach(address, options.insecure)));
  }
  if (!options.metrics_listen.empty()) {
    QG_RETURN_IF_ERROR(
        OfOption("--metrics-listen", CheckReach(options.metrics_listen, options.insecure)));
    if (options.start_http == nullptr) {
      return absl::UnimplementedError("this program does not serve HTTP");
    }
  }
  // Held until the process ends: when the last user of gRPC's library goes, it joins a thread that
  // may sleep in a poll for 10 s, and the end of a server would wait for it.
  [[maybe_unused]] static const bool holds_grpc = (grpc_init(), true);
  // Protobuf would write a line for every malformed message that a client sends.
  google::protobuf::SetLogHandler(nullptr);
  QG_ASSIGN_OR_RETURN(DataDir data_dir, DataDir::Open(options.data_dir));
  QG_RETURN_IF_ERROR(options.begins_anew ? data_dir.BeginAnew() : data_dir.CheckHistory());
  auto server = std::make_unique<RunningServer>(std::move(options), std::move(data_dir));
  QG_RETURN_IF_ERROR(server->Open());
  QG_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace quantgate
