// What a run through the service takes beyond the work on its device: a linear layer under
// fp8_current, forward and backward, from tensors that the device has, over TCP loopback and over a
// Unix socket, with the client library's connection, the client in a process of its own. Per size,
// medians of
//  - the client's time from the request to the end of the stream, in parts that follow each other;
//  - the engine's calls within it, which on the CPU are the work;
//  - on a GPU the time that it worked: every kernel, copy and fill of the request, those of the
//    references included (CUPTI, in runs of their own, since recording slows the host);
//  - what the service adds: the client's time less the work;
//  - what the report says: its seconds and each stage.
//
//   server_execute_bench [--device=cpu] [--runs=21] [SIZE ...]     default: 512 and 4096
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/engine/forwarding_engine.h"
#include "server/device/device.h"
#include "server/process_memory.h"
#include "tests/server/device/device_activity.h"
#include "tests/server/rpc/client_process.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// What was seen in every run, by name, in the order in which names were first seen.
class Times {
 public:
  void Add(const std::string& name, double seconds) {
    if (!seconds_.contains(name)) names_.push_back(name);
    seconds_[name].push_back(seconds);
  }
  double MedianOf(const std::string& name) const { return Median(seconds_.at(name)); }
  void Print() const {
    for (const std::string& name : names_) {
      const std::vector<double>& seconds = seconds_.at(name);
      std::printf("  %-44s %8.3f ms (at least %.3f)\n", name.c_str(), MedianOf(name) * 1e3,
                  *std::min_element(seconds.begin(), seconds.end()) * 1e3);
    }
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> seconds_;
};

/// What a run asked of the engine, and when.
struct EngineCalls {
  std::optional<Clock::time_point> first_begin;
  std::vector<Clock::time_point> ends;  ///< But of calls that only read what others made.
  int count = 0;
  double seconds = 0;  ///< Inside calls.

  /// Of those that the client had an answer to: what is read afterwards is of the run's end.
  Clock::time_point LastEndBefore(Clock::time_point arrival) const {
    const auto after = std::partition_point(ends.begin(), ends.end(),
                                            [&](Clock::time_point end) { return end < arrival; });
    return after == ends.begin() ? *first_begin : *std::prev(after);
  }
};

/// The engine that it owns, with a clock at every call.
class WatchedEngine : public ForwardingEngine {
 public:
  explicit WatchedEngine(std::unique_ptr<Engine> engine)
      : ForwardingEngine(*engine), engine_(std::move(engine)) {}

  EngineCalls Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }

 private:
  void OnOperation(const std::string&) override {
    const std::lock_guard lock(mutex_);
    begin_ = Clock::now();
    if (!calls_.first_begin.has_value()) calls_.first_begin = begin_;
  }
  void AfterOperation(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    ++calls_.count;
    calls_.seconds += Seconds(now - begin_);
    // Those of the inputs are read behind the variant's report.
    if (name != "ReadFingerprints") calls_.ends.push_back(now);
  }

  const std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  EngineCalls calls_;
  Clock::time_point begin_;
};

constexpr char kClient[] = "until the client has it";
constexpr char kInCalls[] = "inside the engine's calls";
constexpr char kBusy[] = "the device worked";

void AddTimes(const Arrivals& arrivals, const EngineCalls& calls, Times& times) {
  const auto last_end = calls.LastEndBefore(arrivals.finished);
  times.Add(kClient, Seconds(arrivals.end - arrivals.begin));
  times.Add("  until it has the run's id", Seconds(arrivals.accepted - arrivals.begin));
  times.Add("  from there to the engine's first call",
            Seconds(*calls.first_begin - arrivals.accepted));
  times.Add("  from there to the end of its last call", Seconds(last_end - *calls.first_begin));
  times.Add("  from there until it has the run's end", Seconds(arrivals.finished - last_end));
  times.Add("  from there to the end of the stream", Seconds(arrivals.end - arrivals.finished));
  times.Add(kInCalls, calls.seconds);
  times.Add("the report's seconds", arrivals.seconds_of_report);
  double stages = 0;
  for (const v1::StageTime& stage : arrivals.report.stages()) stages += stage.seconds();
  times.Add("the variant's stages together", stages);
  for (const v1::StageTime& stage : arrivals.report.stages()) {
    times.Add("  " + stage.stage(), stage.seconds());
  }
}

struct ByTransport {
  Times tcp, socket;  ///< Loopback, and a Unix socket.
};

/// A server with one engine and a request of one size.
class Subject {
 public:
  Subject(ClientProcess& client, const std::string& device, int64_t size)
      : client_(client), server_([&](ServerOptions& options) {
          options.devices = {device};
          socket_ = "unix:" + options.data_dir + ".socket";
          options.listen.push_back(socket_);
          options.make_engines =
              [this, device,
               cpu = options.engine]() -> absl::StatusOr<std::vector<std::unique_ptr<Engine>>> {
            auto engines = MakeEngines({&device, 1}, cpu);
            if (!engines.ok()) return engines.status();
            auto watched = std::make_unique<WatchedEngine>(std::move(engines->front()));
            engine_ = watched.get();
            std::vector<std::unique_ptr<Engine>> all;
            all.push_back(std::move(watched));
            return all;
          };
        }) {
    *request_.mutable_spec() = LinearSpec(size, size, size);
    request_.set_stream_outputs(true);  // As the client library does.
    *request_.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "auto");
  }

  /// False where one failed. Over both transports in turn.
  bool Run(int runs, ByTransport& times) {
    for (int i = 0; i < runs; ++i) {
      if (!RunOnce(server_.address(), times.tcp) || !RunOnce(socket_, times.socket)) return false;
    }
    return true;
  }

  /// The same with the device's records.
  bool RunRecorded(int runs, Times& times) {
    for (int i = 0; i < runs; ++i) {
      if (!client_.Execute(server_.address(), request_).has_value()) return false;
      const absl::StatusOr<DeviceActivity> activity = TakeDeviceActivity();
      if (!activity.ok()) {
        std::fprintf(stderr, "no record of the device: %s\n", activity.status().ToString().c_str());
        return false;
      }
      times.Add(kBusy, activity->busy_seconds);
      times.Add("  from its first work to its last", activity->span_seconds);
      launches_ = activity->count;
    }
    return true;
  }

  int calls() const { return calls_; }
  int launches() const { return launches_; }

 private:
  bool RunOnce(const std::string& address, Times& times) {
    engine_->Take();
    const std::optional<Arrivals> arrivals = client_.Execute(address, request_);
    if (!arrivals.has_value()) return false;
    const EngineCalls calls = engine_->Take();
    calls_ = calls.count;
    AddTimes(*arrivals, calls, times);
    return true;
  }

  ClientProcess& client_;
  std::string socket_;
  WatchedEngine* engine_ = nullptr;
  TestServer server_;
  v1::ExecuteRequest request_;
  int calls_ = 0, launches_ = 0;
};

/// The client's medians.
struct ClientMedians {
  double tcp, socket;
};

/// Nothing where a run failed.
std::optional<ClientMedians> MeasureRuns(ClientProcess& client, const std::string& device,
                                         int64_t size, int runs) {
  Subject subject(client, device, size);
  ByTransport warm_up, times;
  if (!subject.Run(3, warm_up) || !subject.Run(runs, times)) return std::nullopt;
  std::printf("%lld^3 on %s, medians of %d runs, %d calls of the engine each\n",
              static_cast<long long>(size), device.c_str(), runs, subject.calls());
  times.tcp.Print();
  std::printf(" over a Unix socket\n");
  times.socket.Print();
  if (device == "cpu") {
    std::printf("  the service adds %.3f ms to the engine's calls, over a Unix socket %.3f ms\n",
                (times.tcp.MedianOf(kClient) - times.tcp.MedianOf(kInCalls)) * 1e3,
                (times.socket.MedianOf(kClient) - times.socket.MedianOf(kInCalls)) * 1e3);
  }
  return ClientMedians{times.tcp.MedianOf(kClient), times.socket.MedianOf(kClient)};
}

/// Beside the client's medians of runs that were not recorded.
bool MeasureDevice(ClientProcess& client, const std::string& device, int64_t size, int runs,
                   const ClientMedians& medians) {
  Subject subject(client, device, size);
  Times warm_up, recorded;
  if (!subject.RunRecorded(3, warm_up) || !subject.RunRecorded(runs, recorded)) return false;
  std::printf("%lld^3, %d kernels, copies and fills each\n", static_cast<long long>(size),
              subject.launches());
  recorded.Print();
  const double busy = recorded.MedianOf(kBusy);
  std::printf("  the service adds %.3f ms to that: the client had it after %.3f ms\n",
              (medians.tcp - busy) * 1e3, medians.tcp * 1e3);
  std::printf("  over a Unix socket %.3f ms: after %.3f ms\n", (medians.socket - busy) * 1e3,
              medians.socket * 1e3);
  return true;
}

bool Measure(ClientProcess& client, const std::string& device, const std::vector<int64_t>& sizes,
             int runs) {
  std::vector<ClientMedians> medians;
  for (const int64_t size : sizes) {
    const std::optional<ClientMedians> median = MeasureRuns(client, device, size, runs);
    if (!median.has_value()) return false;
    medians.push_back(*median);
  }
  if (device == "cpu") return true;
  if (const absl::Status recording = RecordDeviceActivity(); !recording.ok()) {
    std::printf("no record of the device: %s\n", recording.ToString().c_str());
    return true;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!MeasureDevice(client, device, sizes[i], runs, medians[i])) return false;
  }
  return true;
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  if (quantgate::ClientProcess::Serve(argc, argv)) return 0;
  quantgate::ClientProcess client;
  quantgate::KeepLargeBuffers();  // As quantgated.
  std::string device = "cpu";
  int runs = 21;
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    int64_t size = 0;
    if (option.first == "--device") {
      device = option.second;
    } else if (option.first == "--runs") {
      (void)absl::SimpleAtoi(option.second, &runs);
    } else if (absl::SimpleAtoi(option.first, &size)) {
      sizes.push_back(size);
    }
  }
  if (sizes.empty()) sizes = {512, 4096};
  return quantgate::Measure(client, device, sizes, runs) ? 0 : 1;
}
