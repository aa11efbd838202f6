// The QuantGate service in a process: listeners, services, stores and the device queue. quantgated
// runs one, and `quantgate bench` one to measure the wire.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/transport.h"
#include "kernels/engine/engine.h"
#include "server/disk_watch.h"
#include "server/limits.h"
#include "server/net/http_endpoint.h"

namespace grpc {
class Channel;
}

namespace quantgate {

struct ServerOptions {
  /// "host:port" (port 0 means any) or "unix:/path". If empty, there is no listener but only the
  /// in-process channel.
  std::vector<std::string> listen;
  /// "host:port" for /metrics, /healthz and /readyz over HTTP. If empty, there is no HTTP.
  std::string metrics_listen;
  /// Programs that have a `metrics_listen` set this to &HttpEndpoint::Start. Others leave it null,
  /// and so do not link libmicrohttpd, whose own libraries take a sixth of the time in which a
  /// command starts.
  HttpEndpoint::Starter start_http = nullptr;
  /// Whether listeners may be reached from other machines, though there is neither encryption nor
  /// authentication.
  bool insecure = false;
  /// Blobs, tensors and runs live here; created when absent, locked while the server lives.
  std::string data_dir;
  /// Starts with a new database although blobs or events of an earlier one are there, without the
  /// runs and tensors of the earlier one, which is gone or empty. Refused where there is a
  /// database.
  bool begins_anew = false;
  /// The devices that compute: "cpu", "cuda" (every CUDA device), "cuda:N".
  std::vector<std::string> devices = {"cpu"};
  CpuEngineOptions engine;  ///< Options of device "cpu".
  /// Bytes of uploaded and generated tensors that stay in a CUDA device's memory; 0 means half of
  /// that memory.
  int64_t resident_bytes_max = 0;
  /// Whether CUDA devices are checked against their models before the server is ready: a few
  /// seconds, unless a result is remembered. on_hardware_checked gets the result as lines of text.
  bool checks_hardware = false;
  std::function<void(const std::string& key, const std::vector<std::string>& lines)>
      on_hardware_checked;
  /// Makes the engines in place of those that `devices` names; for tests.
  std::function<absl::StatusOr<std::vector<std::unique_ptr<Engine>>>()> make_engines;
  absl::Duration rank_deadline =
      kRankDeadlineDefault;  ///< For each wait of a rank for other ranks.
  /// As WorldOptions::make_transport, for tests of what a server does when ranks fail.
  TransportFactory make_transport;
  EngineWrapper wrap_engine;  ///< As WorldOptions::wrap_engine, for the same tests.
  /// Called by the thread that finds that a device cannot be trusted any more, or that a rank does
  /// not return from its engine (docs/ranks.md section 1.2). The server is NOT_SERVING then and
  /// takes no new work. The process should call Shutdown and then end with a failure by _Exit.
  std::function<void(const absl::Status& why)> on_device_lost;
  /// Lines for the operator's log, from any thread.
  std::function<void(const std::string& line)> log;
  int queue_capacity = kQueueCapacityDefault;  ///< Runs waiting; one more is RESOURCE_EXHAUSTED.
  int queue_workers = 1;                       ///< Runs at a time.
  /// Bytes of a live run's latest events that stay in memory, so that its streams need not read the
  /// database.
  size_t live_event_bytes_max = kLiveEventBytesMax;
  int64_t blob_bytes_max = kBlobBytesMaxDefault;  ///< Bytes of one blob.
  int64_t store_bytes_max = int64_t{256} << 30;   ///< Bytes of all blobs.
  int64_t tensor_bytes_max =
      kTensorBytesMaxDefault;  ///< Bytes of a tensor that a request makes or names.
  /// Bytes of messages received and not yet taken, over all connections.
  int64_t grpc_buffer_bytes_max = kGrpcBufferBytesMax;
  /// Bytes prepared for clients that have not taken them: of all connections, and of one.
  int64_t send_bytes_max = kSendBytesMax;
  int64_t send_connection_bytes_max = kSendConnectionBytesMax;
  /// How long a client may take nothing of what it is sent, and how long while other connections
  /// wait for room.
  absl::Duration send_idle_max = kSendIdleMax;
  absl::Duration send_idle_when_short = kSendIdleWhenShort;
  /// How long a connection may be without a call.
  absl::Duration connection_idle_max = kConnectionIdleMax;
  /// The clock by which idle clients are found, and the period in which the server looks for them
  /// and does its other maintenance. Tests set others.
  std::chrono::steady_clock::time_point (*now)() = &std::chrono::steady_clock::now;
  std::chrono::milliseconds maintenance_period{1000};
  /// The server is not ready while the file system of `data_dir` has less than this left.
  int64_t disk_reserve_bytes = kDiskReserveBytes;
  DiskRoomReader read_disk_room = &ReadDiskRoom;  ///< Tests set another one.
  SessionLimits sessions;
  bool fsync = true;  ///< Tests set it to false.
};

class Server {
 public:
  /// Starts listening. FAILED_PRECONDITION when the data directory is locked or not writable or a
  /// listener is open to other machines without `insecure`, UNAVAILABLE when a port is taken; the
  /// message names the path or address.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  virtual ~Server() = default;

  /// A channel without sockets, for a client in this process.
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  /// The ports that are bound, in the order of `listen` (0 for Unix sockets).
  virtual std::vector<int> ports() const = 0;
  virtual int metrics_port() const = 0;
  /// Sets health to NOT_SERVING, refuses new work with UNAVAILABLE, gives runs under way `grace` to
  /// finish and then cancels them. False where a rank is stuck at the end of `grace`: the
  /// destructor would wait for it.
  virtual bool Shutdown(absl::Duration grace) = 0;
  /// Cancels the runs that a Shutdown in another thread still waits for.
  virtual void Hurry() = 0;
};

}  // namespace quantgate
