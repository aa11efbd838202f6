// The scenarios of a server, and their results as they come.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "quantgate/v1/scenarios_service.pb.h"

namespace quantgate {

absl::StatusOr<v1::ListScenariosResponse> ListScenarios(Connection& connection);

/// Called for every event once, in order.
using ScenarioObserverFunction = std::function<void(const v1::ScenarioEvent&)>;

/// Runs scenarios and waits for the end. A stream that breaks is an error: nothing is kept of such
/// a run, start it again.
absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(Connection& connection,
                                                     const v1::RunScenariosRequest& request,
                                                     const ScenarioObserverFunction& observer);

}  // namespace quantgate
