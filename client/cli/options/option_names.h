// Puts options in place of the request's fields in a server's refusals, since people know the
// options that they typed. One table says which option sets which field of which command.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"

namespace quantgate {

/// The innermost subcommand that was chosen.
const CLI::App& ChosenCommand(const CLI::App& root);

/// `status` of `command` (as parsed), whose message and detail name options in place of fields:
/// "spec.step.x is bf16[16x31]: ..." becomes "--input is ...". A field that a spec file gave, and
/// no option replaced, keeps its path, which is what the file says.
absl::Status NameOptions(const absl::Status& status, const CLI::App& command);

}  // namespace quantgate
