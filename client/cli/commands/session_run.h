// quantgate session run.
#pragma once

#include "client/cli/options/invocation.h"

namespace quantgate {

/// Adds `run` to the group of session commands.
void AddSessionRunCommand(CLI::App& group, Command& chosen);

}  // namespace quantgate
