// quantgate session step.
#pragma once

#include "client/cli/options/invocation.h"

namespace quantgate {

/// A session of a server in this process would end with the command: INVALID_ARGUMENT without
/// --server.
absl::StatusOr<Connection*> ConnectToServer(Invocation& invocation);
void AddSessionStepCommand(CLI::App& group, Command& chosen);

}  // namespace quantgate
