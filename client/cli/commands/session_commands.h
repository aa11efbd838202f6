// The parts of `quantgate session` that lie in files of their own, and what they share.
#pragma once

#include "client/cli/options/invocation.h"

namespace quantgate {

/// The connection to the server of --server. INVALID_ARGUMENT without one: a session in this
/// process would end with the command.
absl::StatusOr<Connection*> ConnectToServer(Invocation& invocation);

/// Add `step` and `run` to the group of session commands.
void AddSessionStepCommand(CLI::App& group, Command& chosen);
void AddSessionRunCommand(CLI::App& group, Command& chosen);

}  // namespace quantgate
