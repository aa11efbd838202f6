// The commands of `quantgate`, one file each. Every Add... hangs a subcommand under `app`; when the
// user picks it, `chosen` becomes what it does.
#pragma once

#include "client/cli/invocation.h"

namespace quantgate {

void AddQuantizeCommand(CLI::App& app, Command& chosen);
void AddDequantizeCommand(CLI::App& app, Command& chosen);
void AddGemmCommand(CLI::App& app, Command& chosen);
void AddExplainCommand(CLI::App& app, Command& chosen);
void AddRunCommand(CLI::App& app, Command& chosen);
void AddCompareCommand(CLI::App& app, Command& chosen);
void AddVerifyCommand(CLI::App& app, Command& chosen);
void AddDiffCommand(CLI::App& app, Command& chosen);
void AddTensorCommand(CLI::App& app, Command& chosen);
void AddSessionCommand(CLI::App& app, Command& chosen);
void AddScenarioCommand(CLI::App& app, Command& chosen);
void AddInfoCommand(CLI::App& app, Command& chosen);
void AddDoctorCommand(CLI::App& app, Command& chosen);
void AddBenchCommand(CLI::App& app, Command& chosen);
/// `root` is the whole command tree, which the script is made from.
void AddCompletionCommand(CLI::App& root, Command& chosen);

}  // namespace quantgate
