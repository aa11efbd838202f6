// The library of scenarios as Markdown: docs/scenarios.md.
#pragma once

#include <string>

#include "quantgate/v1/scenarios_service.pb.h"

namespace quantgate {

/// Scenarios, faults, bug classes, subjects of ranks and pull requests, a numbered section each.
std::string ScenarioMarkdown(const v1::ListScenariosResponse& library);

}  // namespace quantgate
