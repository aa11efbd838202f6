// docs/scenarios.md as the library of scenarios says it.
#pragma once

#include <string>

namespace quantgate {

std::string ScenarioDocument();

}  // namespace quantgate
