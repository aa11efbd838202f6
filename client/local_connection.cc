#include "client/local_connection.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/blob_transfer.h"
#include "client/execute.h"
#include "client/status.h"
#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/comm/nccl/communicator_cache.h"
#include "server/device/device.h"
#include "server/device/hardware_checks.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/runs/call_context.h"
#include "server/runs/engine_calls.h"
#include "server/runs/info_calls.h"
#include "server/runs/memory_guard.h"
#include "server/runs/run_execution.h"
#include "server/runs/scenario_run.h"
#include "server/runs/tensor_calls.h"
#include "server/sessions/session_calls.h"
#include "server/sessions/session_store.h"
#include "server/sessions/trace_execution.h"
#include "server/wire/convert_layer.h"
#include "server/wire/convert_scenario.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/error_detail.h"
#include "server/wire/layer_run.h"

namespace quantgate {
namespace {

using google::protobuf::MessageLite;

/// An error as a client receives it from a server.
absl::Status AsClient(const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status result(status.code(),
                      CutText(std::string(status.message()), kStatusMessageBytesMax));
  SetErrorDetail(ErrorDetailToProto(error::DetailOf(status)), result);
  return result;
}

/// Checks a request and gives the work for a device; without any, the response is there already.
using Prepare = std::function<absl::StatusOr<DeviceWork>(
    CallContext& context, const MessageLite& request, MessageLite& response)>;

template <typename Request, typename Response>
Prepare OnDevice(absl::StatusOr<DeviceWork> (*prepare)(CallContext&, const Request&, Response&)) {
  return [prepare](CallContext& context, const MessageLite& request, MessageLite& response) {
    return prepare(context, static_cast<const Request&>(request), static_cast<Response&>(response));
  };
}

template <typename Request, typename Response>
Prepare AtOnce(absl::Status (*answer)(CallContext&, const Request&, Response&)) {
  return [answer](CallContext& context, const MessageLite& request,
                  MessageLite& response) -> absl::StatusOr<DeviceWork> {
    QG_RETURN_IF_ERROR(
        answer(context, static_cast<const Request&>(request), static_cast<Response&>(response)));
    return DeviceWork();
  };
}

absl::Status GetCapabilities(CallContext& context, const v1::GetCapabilitiesRequest&,
                             v1::Capabilities& response) {
  response = CapabilitiesOf(context, kBlobBytesMaxDefault, kQueueCapacityDefault, SessionLimits());
  return absl::OkStatus();
}

absl::Status ListRecipes(CallContext&, const v1::ListRecipesRequest&,
                         v1::ListRecipesResponse& response) {
  response = DescribeRecipes();
  return absl::OkStatus();
}

absl::Status ListArithmetics(CallContext&, const v1::ListArithmeticsRequest&,
                             v1::ListArithmeticsResponse& response) {
  response = DescribeArithmetics();
  return absl::OkStatus();
}

absl::Status ListScenarios(CallContext&, const v1::ListScenariosRequest&,
                           v1::ListScenariosResponse& response) {
  response = ScenariosToProto(BuiltInScenarios());
  return absl::OkStatus();
}

absl::Status FindMissing(CallContext& context, const v1::FindMissingRequest& request,
                         v1::FindMissingResponse& response) {
  for (int i = 0; i < request.digests_size(); ++i) {
    QG_ASSIGN_OR_RETURN(const Digest digest,
                        DigestFromProto(request.digests(i), absl::StrCat("digests[", i, "]")));
    if (!context.blobs.Contains(digest)) *response.add_missing() = request.digests(i);
  }
  return absl::OkStatus();
}

/// Runs are not kept.
absl::Status GetRun(CallContext&, const v1::GetRunRequest& request, v1::Run&) {
  return error::RunNotFound(request.run_id());
}
absl::Status ListRuns(CallContext&, const v1::ListRunsRequest&, v1::ListRunsResponse&) {
  return absl::OkStatus();
}

const std::map<std::string, Prepare>& Methods() {
  static const auto* const methods = new std::map<std::string, Prepare>{
      {"Info/GetCapabilities", AtOnce(GetCapabilities)},
      {"Info/ListRecipes", AtOnce(ListRecipes)},
      {"Info/ListArithmetics", AtOnce(ListArithmetics)},
      {"Info/CheckHardware", OnDevice(PrepareCheckHardware)},
      {"Blobs/FindMissing", AtOnce(FindMissing)},
      {"Tensors/Put", OnDevice(PreparePutTensor)},
      {"Tensors/Generate", OnDevice(PrepareGenerateTensor)},
      {"Tensors/Describe", OnDevice(PrepareDescribeTensor)},
      {"Tensors/List", AtOnce(ListTensors)},
#define QG_ENGINE_CALL(Name) {"Engine/" #Name, OnDevice(Prepare##Name)},
      QG_ENGINE_CALLS(QG_ENGINE_CALL)
#undef QG_ENGINE_CALL
          {"Engine/GetRun", AtOnce(GetRun)},
      {"Engine/ListRuns", AtOnce(ListRuns)},
      {"Scenarios/List", AtOnce(ListScenarios)},
      {"Sessions/Open", OnDevice(PrepareOpenSession)},
      {"Sessions/Step", OnDevice(PrepareSessionStep)},
      {"Sessions/Get", OnDevice(PrepareGetSession)},
      {"Sessions/List", AtOnce(ListSessions)},
      {"Sessions/Checkpoint", OnDevice(PrepareCheckpoint)},
      {"Sessions/Restore", OnDevice(PrepareRestoreSession)},
      {"Sessions/Close", AtOnce(CloseSession)},
  };
  return *methods;
}

/// How a piece of work ended: by itself, or by a rank that is stuck in it.
struct Outcome {
  std::mutex mutex;
  std::condition_variable is_there;
  std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);

  void Set(absl::Status value) {
    const std::lock_guard lock(mutex);
    if (!status.has_value()) status = std::move(value);
    is_there.notify_all();
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex);
    is_there.wait(lock, [this] { return status.has_value(); });
    return *status;
  }
};

}  // namespace

struct LocalConnection::Workplace : std::enable_shared_from_this<LocalConnection::Workplace> {
  Workplace(std::unique_ptr<ConnectionStore> store_in, std::string hardware_checks_path,
            absl::Time deadline)
      : store(std::move(store_in)),
        loader(store->blobs(), store->tensors()),
        hardware_checks(std::move(hardware_checks_path)),
        watch([](const Device&, const absl::Status&) {}, [](const Device&) {}),
        cancellation(std::make_shared<Cancellation>(deadline)) {}

  /// Runs `body` on a thread of its own and returns its status; or, where a rank is stuck in it,
  /// why: then this workplace takes no more calls.
  absl::Status Run(std::function<absl::Status()> body) {
    const auto outcome = std::make_shared<Outcome>();
    ranks.on_stuck = [this, outcome](const absl::Status& why) {
      is_stuck = true;
      outcome->Set(why);
    };
    std::thread thread([self = shared_from_this(), outcome, body = std::move(body)] {
      outcome->Set(GuardMemory(body));
    });
    const absl::Status status = outcome->Wait();
    if (is_stuck) {
      thread.detach();
    } else {
      thread.join();
    }
    return status;
  }
  /// OK where a call may begin.
  absl::Status Admit() const {
    if (is_stuck) return absl::FailedPreconditionError("a rank is stuck in an earlier call");
    return cancellation->Check();
  }

  const std::unique_ptr<ConnectionStore> store;
  TensorLoader loader;
  HardwareChecks hardware_checks;
  DeviceWatch watch;
  std::unique_ptr<CommunicatorCache> communicators;
  RankSetting ranks;
  RunStatistics statistics;
  Devices devices;
  std::unique_ptr<SessionStore> sessions;  ///< Of tensors in the devices' memory.
  std::unique_ptr<CallContext> context;
  const std::shared_ptr<Cancellation> cancellation;
  std::mutex calls;  ///< One at a time.
  std::atomic<bool> is_stuck = false;
};

absl::StatusOr<std::unique_ptr<LocalConnection>> LocalConnection::Open(
    std::unique_ptr<ConnectionStore> store, const LocalOptions& local,
    const ConnectionOptions& options) {
  auto workplace = std::make_shared<Workplace>(std::move(store), local.hardware_checks_path,
                                               SteadyFromWall(options.deadline));
  CpuEngineOptions cpu;
  if (local.threads > 0) cpu.threads = local.threads;
  QG_ASSIGN_OR_RETURN(auto engines, MakeEngines({&local.device, 1}, cpu));
  for (auto& engine : engines) {
    workplace->devices.push_back(std::make_unique<Device>(std::move(engine), 0));
  }
  workplace->communicators = std::make_unique<CommunicatorCache>(nullptr);
  workplace->ranks.deadline = kRankDeadlineDefault;
  workplace->ranks.communicators = workplace->communicators.get();
  workplace->sessions = std::make_unique<SessionStore>(SessionLimits());
  workplace->context.reset(
      new CallContext{kTensorBytesMaxDefault, cpu, workplace->devices, workplace->store->blobs(),
                      workplace->store->tensors(), workplace->loader, *workplace->sessions,
                      workplace->hardware_checks, workplace->ranks, workplace->statistics});
  return std::unique_ptr<LocalConnection>(new LocalConnection(std::move(workplace), options));
}

LocalConnection::LocalConnection(std::shared_ptr<Workplace> workplace,
                                 const ConnectionOptions& options)
    : Connection("in process", options), workplace_(std::move(workplace)) {}

LocalConnection::~LocalConnection() = default;

void LocalConnection::Cancel() { workplace_->cancellation->Cancel(); }

absl::Status LocalConnection::Call(const std::string& method, const MessageLite& request,
                                   const std::shared_ptr<MessageLite>& response) {
  const auto found = Methods().find(method);
  if (found == Methods().end()) {
    return absl::UnimplementedError(absl::StrCat(method, " needs a server"));
  }
  const std::lock_guard lock(workplace_->calls);
  QG_RETURN_IF_ERROR(workplace_->Admit());
  // A thread that is stuck may go on with the request when the caller's is gone.
  const std::shared_ptr<MessageLite> asked(request.New());
  asked->CheckTypeAndMergeFrom(request);
  absl::StatusOr<DeviceWork> prepared =
      GuardMemory([&] { return found->second(*workplace_->context, *asked, *response); });
  if (!prepared.ok()) return AsClient(prepared.status());
  if (prepared->run) {
    const auto work = std::make_shared<DeviceWork>(*std::move(prepared));
    Device& device = work->device != nullptr ? *work->device : LeastLoaded(workplace_->devices);
    const absl::Status ran =
        workplace_->Run([workplace = workplace_.get(), work, &device, asked, response] {
          const absl::Status status = std::move(work->run)(device, *workplace->cancellation);
          return workplace->watch.Checked(device, status);
        });
    if (!ran.ok()) return AsClient(ran);
  }
  return absl::OkStatus();
}

absl::StatusOr<Upload> LocalConnection::UploadBlob(const SharedBytes& bytes,
                                                   const v1::Digest& digest,
                                                   const UploadProgress& progress) {
  const std::lock_guard lock(workplace_->calls);
  QG_RETURN_IF_ERROR(workplace_->Admit());
  const absl::StatusOr<Digest> wanted = DigestFromProto(digest, "digest");
  if (!wanted.ok()) return AsClient(wanted.status());
  const absl::StatusOr<bool> was_there = workplace_->store->Add(bytes, *wanted);
  if (!was_there.ok()) return AsClient(was_there.status());
  Upload upload;
  upload.already_present = *was_there;
  if (!upload.already_present) upload.bytes_sent = digest.size();
  if (progress) progress(digest.size(), digest.size());
  return upload;
}

absl::StatusOr<std::shared_ptr<Buffer>> LocalConnection::DownloadBlob(
    const v1::Digest& digest, const DownloadProgress& progress) {
  const std::lock_guard lock(workplace_->calls);
  QG_RETURN_IF_ERROR(workplace_->Admit());
  const absl::StatusOr<Digest> wanted = DigestFromProto(digest, "digest");
  if (!wanted.ok()) return AsClient(wanted.status());
  auto buffer = workplace_->store->blobs().Load(*wanted);
  if (!buffer.ok()) return AsClient(buffer.status());
  if (progress) progress(digest.size(), digest.size());
  return buffer;
}

namespace {

absl::StatusOr<CheckedRun> CheckedLayerRun(CallContext& context, const v1::RunSpec& spec) {
  QG_ASSIGN_OR_RETURN(LayerRun run, LayerRunFromProto(spec, context.tensor_bytes_max));
  run.stream_outputs = true;
  return CheckLayerRun(context, spec, std::move(run));
}

}  // namespace

absl::StatusOr<v1::RunReport> LocalConnection::RunToEnd(
    absl::FunctionRef<absl::StatusOr<CheckedRun>(CallContext&)> check,
    const RunObserverFunction& observer) {
  const std::lock_guard lock(workplace_->calls);
  QG_RETURN_IF_ERROR(workplace_->Admit());
  auto checked = GuardMemory([&] { return check(*workplace_->context); });
  if (!checked.ok()) return AsClient(checked.status());
  const auto follower = std::make_shared<RunFollower>();
  const absl::Status ran = workplace_->Run([workplace = workplace_.get(), follower, observer,
                                            shared = std::make_shared<CheckedRun>(
                                                *std::move(checked))]() -> absl::Status {
    const absl::Time start = SteadyNow();
    const std::string run_id = absl::StrCat("run-", NewRequestId());
    int64_t sequence = 1;
    follower->Take(AcceptedEvent(run_id, 0), observer);
    const std::unique_ptr<RunWork> work = std::move(shared->make)(
        RunPlace{*shared->device, run_id, workplace->cancellation, [&](v1::RunEvent& event) {
                   event.set_run_id(run_id);
                   event.set_sequence(++sequence);
                   follower->Take(event, observer);
                   return absl::OkStatus();
                 }});
    auto executed = GuardMemory([&] { return work->Execute(workplace->ranks); });
    const absl::Status status = workplace->watch.Checked(*shared->device, executed.status());
    v1::RunReport report;
    if (executed.ok()) report = *std::move(executed);
    report.set_seconds(absl::ToDoubleSeconds(SteadyNow() - start));
    follower->Take(FinishedEvent(run_id, sequence + 1, StateOf(status, *workplace->cancellation),
                                 status, std::move(report), work->TakeLastVariant()),
                   observer);
    return absl::OkStatus();
  });
  if (!ran.ok()) return absl::Status(ran.code(), ran.message());
  return follower->Report();
}

absl::StatusOr<v1::RunReport> LocalConnection::ExecuteRun(const v1::RunSpec& spec,
                                                          const RunObserverFunction& observer) {
  return RunToEnd([&](CallContext& context) { return CheckedLayerRun(context, spec); }, observer);
}

absl::StatusOr<v1::RunReport> LocalConnection::RunTrace(const v1::RunTraceRequest& request,
                                                        const RunObserverFunction& observer) {
  return RunToEnd([&](CallContext& context) { return CheckTraceRun(context, request); }, observer);
}

absl::StatusOr<v1::ScenarioRunFinished> LocalConnection::RunScenarios(
    const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) {
  const std::lock_guard lock(workplace_->calls);
  QG_RETURN_IF_ERROR(workplace_->Admit());
  const auto asked = std::make_shared<const v1::RunScenariosRequest>(request);
  absl::StatusOr<std::unique_ptr<ScenarioRun>> created =
      ScenarioRun::Create(*workplace_->context, *asked);
  if (!created.ok()) return AsClient(created.status());
  const auto last = std::make_shared<v1::ScenarioEvent>();
  const absl::Status ran =
      workplace_->Run([workplace = workplace_.get(), asked, observer, last,
                       run = std::shared_ptr<ScenarioRun>(*std::move(created))]() -> absl::Status {
        auto event = run->Run(workplace->cancellation.get(), observer);
        QG_RETURN_IF_ERROR(workplace->watch.Checked(run->device(), event.status()));
        *last = *std::move(event);
        observer(*last);
        return absl::OkStatus();
      });
  if (!ran.ok()) return AsClient(ran);
  return last->finished();
}

}  // namespace quantgate
