// Conversions of scenarios and their results to messages.
#pragma once

#include "kernels/validate/scenarios/run_scenarios.h"
#include "quantgate/v1/scenarios_service.pb.h"

namespace quantgate {

v1::ListScenariosResponse ScenariosToProto(const ScenarioLibrary& library);
v1::ScenarioResult ScenarioResultToProto(const ScenarioResult& result);
v1::FaultResult FaultResultToProto(const FaultResult& result);

}  // namespace quantgate
