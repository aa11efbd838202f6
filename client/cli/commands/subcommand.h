// AddSubcommand: what every subcommand of `quantgate` sets up in the same way.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "client/cli/options/invocation.h"

namespace quantgate {

template <class Options>
struct Subcommand {
  CLI::App* command;  ///< The command in its group.
  Options* options;   ///< What its arguments are parsed into; lives as long as `command`.
};

/// Adds the command `name` to `group`. When the user picks it, `chosen` becomes `function` with the
/// parsed options; `chosen` outlives `group`. `examples` follow the command's help.
template <class Options>
Subcommand<Options> AddSubcommand(CLI::App& group, Command& chosen, const char* name,
                                  const char* summary, const char* examples,
                                  absl::StatusOr<int> (*function)(Invocation&, const Options&)) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(name, summary);
  command->footer(examples);
  command->callback([options, function, &chosen] {
    chosen = [options, function](Invocation& invocation) { return function(invocation, *options); };
  });
  return {command, options.get()};
}

}  // namespace quantgate
