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
  COMMAND(Gemm)              \
  COMMAND(Explain)           \
  COMMAND(Tensor)            \
  COMMAND(Session)           \
  COMMAND(Scenario)          \
  COMMAND(Info)              \
  COMMAND(Doctor)            \
  COMMAND(Bench)             \
  COMMAND(Completion)

/// AddRunCommand and so on hang a subcommand under `app`, the root of the whole command tree; when
/// the user picks it, `chosen` becomes what it does.
#define QG_DECLARE_COMMAND(Name) void Add##Name##Command(CLI::App& app, Command& chosen);
QG_COMMANDS(QG_DECLARE_COMMAND)
#undef QG_DECLARE_COMMAND

}  // namespace quantgate
