// The commands of `quantgate`, one file each, in the order in which help lists them.
#pragma once

#include "client/cli/options/invocation.h"

namespace quantgate {

#define QG_COMMANDS(COMMAND) \
  COMMAND(Run)               \
  COMMAND(Compare)           \
  COMMAND(Verify)            \
  COMMAND(Diff)              \
  COMMAND(Quantize)          \
  COMMAND(Dequantize)        \
  COMMAND(UpdateUsage)       \
  COMMAND(Gemm)              \
  COMMAND(Explain)           \
  COMMAND(Tensor)            \
  COMMAND(Session)           \
  COMMAND(Scenario)          \
  COMMAND(Info)              \
  COMMAND(Doctor)            \
  COMMAND(Bench)             \
  COMMAND(Completion)

/// AddRunCommand and so on add a subcommand to `app`, the root of the command tree. When the user
/// picks it, `chosen` becomes the function that runs it.
#define QG_DECLARE_COMMAND(Name) void Add##Name##Command(CLI::App& app, Command& chosen);
QG_COMMANDS(QG_DECLARE_COMMAND)
#undef QG_DECLARE_COMMAND

}  // namespace quantgate
