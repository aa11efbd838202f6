// Results of scenarios as JUnit XML: a test case for every scenario and for every fault.
#pragma once

#include <string>
#include <vector>

#include "quantgate/v1/scenarios_service.pb.h"
#include "server/report/junit.h"

namespace quantgate {

/// The suite. Its properties are digests and the environment; its system-out has the scenarios'
/// notes and the differences by which faults were caught.
std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events, const JunitRun& run);

}  // namespace quantgate
