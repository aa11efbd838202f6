// quantgate scenario agree: whether runs of scenarios have seen the same.
#pragma once

#include "client/cli/options/invocation.h"

namespace quantgate {

/// Hangs it under `group`; as AddSubcommand.
void AddScenarioAgreeCommand(CLI::App& group, Command& chosen, const char* examples);

}  // namespace quantgate
