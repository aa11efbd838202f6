// Results of scenarios as JUnit XML: a test case for every scenario and for every fault.
#pragma once

#include <string>
#include <vector>

#include "quantgate/v1/scenarios_service.pb.h"

namespace quantgate {

/// "fp8_current, step 3: dw (0, 7) is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string DifferenceText(const v1::ScenarioDifference& difference);

std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events);

}  // namespace quantgate
