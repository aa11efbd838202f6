// ScenarioRun: one run of scenarios on a device, from the request to its events.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/validate/scenarios/ranks/rank_places.h"
#include "quantgate/v1/scenarios_service.pb.h"
#include "server/runs/call_context.h"

namespace quantgate {

class ScenarioRun {
 public:
  /// `request` outlives the run.
  static absl::StatusOr<std::unique_ptr<ScenarioRun>> Create(
      CallContext& context, const v1::RunScenariosRequest& request);
  Device& device() const { return device_; }
  /// Passes an event to `tell` for every scenario and fault that ends, and returns the last event.
  absl::StatusOr<v1::ScenarioEvent> Run(const Cancellation* cancellation,
                                        const std::function<void(v1::ScenarioEvent)>& tell);

 private:
  ScenarioRun(CallContext& context, const v1::RunScenariosRequest& request, Device& device,
              std::unique_ptr<RankPlaces> places);
  /// The descriptions of device() and of the GPUs that ranks are placed on.
  std::vector<DeviceDescription> Devices() const;

  RunStatistics& statistics_;
  const v1::RunScenariosRequest& request_;
  Device& device_;
  const absl::Time start_;
  std::unique_ptr<RankPlaces> places_;
};

}  // namespace quantgate
