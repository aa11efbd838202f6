// docs/scenarios.md, and what README.md says of it, as the library of scenarios says it.
#pragma once

#include <string>

namespace quantgate {

std::string ScenarioDocument();

/// README.md's table of Transformer Engine's pull requests and the scenarios of their bugs.
std::string PullRequestTable();

}  // namespace quantgate
