// Runs of scenarios.
#pragma once

#include "absl/status/statusor.h"
#include "client/connection.h"

namespace quantgate {

/// Runs scenarios and waits for the end. A stream that breaks is an error: nothing is kept of such
/// a run, start it again.
absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(Connection& connection,
                                                     const v1::RunScenariosRequest& request,
                                                     const ScenarioObserverFunction& observer);

}  // namespace quantgate
