// Results of scenarios, and of the faults that they must catch, as text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quantgate/v1/scenarios_service.pb.h"

namespace quantgate {

/// "fp8_current, step 3: dw (0, 7) is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string DifferenceText(const v1::ScenarioDifference& difference);

/// A row for each scenario, their notes, and a row for each fault.
void PrintScenarios(const std::vector<v1::ScenarioEvent>& events, bool uses_colour,
                    std::ostream& out);

/// "scenarios: 3 passed, 1 left out; faults: 7 caught".
std::string ScenarioSummary(const std::vector<v1::ScenarioEvent>& events);

}  // namespace quantgate
