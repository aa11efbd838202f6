#include "server/runs/scenario_run.h"

#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/validate/scenarios/run_scenarios.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_scenario.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

absl::StatusOr<Device*> DeviceOf(const std::vector<std::unique_ptr<Device>>& devices,
                                 const std::string& id) {
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

ScenarioRun::ScenarioRun(CallContext& context, const v1::RunScenariosRequest& request,
                         Device& device, std::unique_ptr<RankPlaces> places)
    : statistics_(context.statistics),
      request_(request),
      device_(device),
      start_(SteadyNow()),
      places_(std::move(places)) {}

absl::StatusOr<std::unique_ptr<ScenarioRun>> ScenarioRun::Create(
    CallContext& context, const v1::RunScenariosRequest& request) {
  QG_RETURN_IF_ERROR(FindScenarios(BuiltInScenarios(), NamesOf(request)).status());
  QG_ASSIGN_OR_RETURN(const CollectiveBackend backend,
                      ParsedName(ParseCollectiveBackend, request.parallel_backend(),
                                 "parallel_backend", CollectiveBackend::kLocal));
  QG_ASSIGN_OR_RETURN(Device * device, DeviceOf(context.devices, request.device()));
  QG_ASSIGN_OR_RETURN(std::unique_ptr<RankPlaces> places,
                      RankPlaces::Create(backend, *device->engine, context.ranks.communicators));
  return std::unique_ptr<ScenarioRun>(
      new ScenarioRun(context, request, *device, std::move(places)));
}

absl::StatusOr<v1::ScenarioEvent> ScenarioRun::Run(
    const Cancellation* cancellation, const std::function<void(v1::ScenarioEvent)>& tell) {
  const ScenarioLibrary library = BuiltInScenarios();
  QG_ASSIGN_OR_RETURN(const auto scenarios, FindScenarios(library, NamesOf(request_)));
  ScenarioTally tally;
  QG_RETURN_IF_ERROR(RunScenarios(*device_.engine, library, scenarios, request_.with_faults(),
                                  cancellation,
                                  {[&](const ScenarioResult& result) {
                                     tally.Add(result);
                                     statistics_.ScenarioRan(ScenarioOutcomeName(result.outcome));
                                     v1::ScenarioEvent event;
                                     *event.mutable_scenario() = ScenarioResultToProto(result);
                                     tell(std::move(event));
                                   },
                                   [&](const FaultResult& result) {
                                     tally.Add(result);
                                     statistics_.FaultRan(FaultOutcomeName(result.outcome));
                                     v1::ScenarioEvent event;
                                     *event.mutable_fault() = FaultResultToProto(result);
                                     tell(std::move(event));
                                   }},
                                  places_.get()));
  v1::ScenarioEvent event;
  v1::ScenarioRunFinished& finished = *event.mutable_finished();
  finished.set_good(tally.is_good());
  finished.set_scenarios_left_out(tally.scenarios_left_out);
  finished.set_faults_left_out(tally.faults_left_out);
  *finished.mutable_environment() = EnvironmentToProto(Devices());
  finished.set_seconds(absl::ToDoubleSeconds(SteadyNow() - start_));
  return event;
}

std::vector<DeviceDescription> ScenarioRun::Devices() const {
  std::vector<DeviceDescription> devices = {device_.engine->Describe()};
  for (DeviceDescription& gpu : places_->DescribeGpus()) {
    if (gpu.id != device_.id) devices.push_back(std::move(gpu));
  }
  return devices;
}

}  // namespace quantgate
