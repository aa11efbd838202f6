// Results of scenarios as JUnit XML: a test case for every scenario and for every fault.
#pragma once

#include <string>
#include <vector>

#include "quantgate/v1/scenarios_service.pb.h"
#include "server/report/junit.h"

namespace quantgate {

/// "dw (0, 7)" and "is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string PlaceText(const v1::ScenarioDifference& difference);
std::string ValuesText(const v1::ScenarioDifference& difference);

/// "fp8_current, step 3: dw (0, 7) is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string DifferenceText(const v1::ScenarioDifference& difference);

/// The suite. Its properties are digests and the environment; its system-out has the scenarios'
/// notes and the differences by which faults were caught.
std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events, const JunitRun& run);

}  // namespace quantgate
