#include "server/rpc/scenario_stream.h"

#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/comm/parallel_spec.h"
#include "kernels/validate/scenarios/run_scenarios.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_scenario.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/parsed_name.h"

namespace quantgate {
namespace {

absl::StatusOr<Device*> DeviceOf(const Devices& devices, const std::string& id) {
  if (id.empty()) return &LeastLoaded(devices);
  for (const auto& device : devices) {
    if (device->id == id) return device.get();
  }
  return Refuse("device", Printable(id), "the server has no such device");
}

std::vector<std::string> NamesOf(const v1::RunScenariosRequest& request) {
  return {request.names().begin(), request.names().end()};
}

}  // namespace

ScenarioStream::ScenarioStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                               const v1::RunScenariosRequest* request)
    : call_(context, Rpc::kRunScenarios, server_context),
      request_(request),
      start_(SteadyNow()),
      connection_(context.send_budget.ConnectionOf(call_.connection())) {
  call_.MessageReceived();
  call_.context().executor.Run([this] {
    const absl::Status status = Begin();
    if (!status.ok()) SetOutcome(status);
  });
}

absl::Status ScenarioStream::Begin() {
  QG_RETURN_IF_ERROR(call_.Admit(Admission::kUnlessDraining));
  QG_RETURN_IF_ERROR(
      WithinField("", FindScenarios(BuiltInScenarios(), NamesOf(*request_)).status()));
  QG_ASSIGN_OR_RETURN(const CollectiveBackend backend,
                      ParsedName(ParseCollectiveBackend, request_->parallel_backend(),
                                 "parallel_backend", CollectiveBackend::kLocal));
  QG_ASSIGN_OR_RETURN(Device * device, DeviceOf(call_.context().devices, request_->device()));
  absl::StatusOr<std::unique_ptr<RankPlaces>> places =
      RankPlaces::Create(backend, *device->engine, call_.context().ranks.communicators);
  if (!places.ok()) return WithinField("", places.status());
  places_ = *std::move(places);
  return device->run_queue
      .Submit(call_.cancellation(),
              [this, device](absl::Status admission) { Run(*device, std::move(admission)); })
      .status();
}

void ScenarioStream::Run(Device& device, absl::Status admission) {
  if (!admission.ok()) return SetOutcome(std::move(admission));
  Metrics& metrics = call_.context().metrics;
  const ScenarioLibrary library = BuiltInScenarios();
  const auto scenarios = FindScenarios(library, NamesOf(*request_));
  ScenarioTally tally;
  absl::Status status = scenarios.status();
  if (status.ok()) {
    status = RunScenarios(*device.engine, library, *scenarios, request_->with_faults(),
                          call_.cancellation().get(),
                          {[&](const ScenarioResult& result) {
                             tally.Add(result);
                             metrics.ScenarioRan(ScenarioOutcomeName(result.outcome));
                             v1::ScenarioEvent event;
                             *event.mutable_scenario() = ScenarioResultToProto(result);
                             Queue(std::move(event));
                           },
                           [&](const FaultResult& result) {
                             tally.Add(result);
                             metrics.FaultRan(FaultOutcomeName(result.outcome));
                             v1::ScenarioEvent event;
                             *event.mutable_fault() = FaultResultToProto(result);
                             Queue(std::move(event));
                           }},
                          places_.get());
  }
  status = call_.context().watch.Checked(device, std::move(status));
  if (status.ok()) {
    v1::ScenarioEvent event;
    v1::ScenarioRunFinished& finished = *event.mutable_finished();
    finished.set_good(tally.is_good());
    finished.set_scenarios_left_out(tally.scenarios_left_out);
    finished.set_faults_left_out(tally.faults_left_out);
    *finished.mutable_environment() = EnvironmentToProto(DevicesOf(device));
    finished.set_seconds(absl::ToDoubleSeconds(SteadyNow() - start_));
    Queue(std::move(event));
  }
  places_.reset();  // By this thread: NCCL takes a moment.
  SetOutcome(std::move(status));
}

std::vector<DeviceDescription> ScenarioStream::DevicesOf(const Device& device) const {
  std::vector<DeviceDescription> devices = {device.engine->Describe()};
  for (DeviceDescription& gpu : places_->DescribeGpus()) {
    if (gpu.id != device.id) devices.push_back(std::move(gpu));
  }
  return devices;
}

void ScenarioStream::Queue(v1::ScenarioEvent event) {
  const auto bytes = static_cast<int64_t>(event.ByteSizeLong());
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back({std::move(event), call_.context().send_budget.Take(connection_, bytes)});
  }
  GoOn();
}

void ScenarioStream::SetOutcome(absl::Status outcome) {
  {
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
  }
  GoOn();
}

// The end is decided under the lock, by whoever finds nothing left to do; it is done outside.
void ScenarioStream::GoOn() {
  std::optional<absl::Status> end;
  {
    const std::lock_guard lock(mutex_);
    if (is_writing_ || is_over_) return;
    if (!ready_.empty()) {
      sending_ = std::move(ready_.front());
      ready_.pop_front();
      is_writing_ = true;
    } else if (outcome_.has_value()) {
      is_over_ = true;
      end = *outcome_;
    } else {
      return;
    }
  }
  if (end.has_value()) {
    Finish(call_.End(*end));
  } else {
    StartWrite(&sending_.event);
  }
}

void ScenarioStream::OnWriteDone(bool ok) {
  if (ok) call_.MessageSent();
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    sending_.room = {};
    if (!ok) ready_.clear();
  }
  // Nobody reads any more: the work is told to stop, and its outcome ends the stream.
  if (!ok) call_.cancellation()->Cancel();
  GoOn();
}

void ScenarioStream::OnCancel() {
  for (const auto& device : call_.context().devices) {
    device->run_queue.Cancel(call_.cancellation());
  }
}

}  // namespace quantgate
