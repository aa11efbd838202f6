// Text that is pasted into a shell.
#pragma once

#include <string>

namespace quantgate {

/// An argument as a shell takes it.
std::string ShellQuoted(const std::string& argument);

}  // namespace quantgate
