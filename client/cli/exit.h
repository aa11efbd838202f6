// How the command ends: its exit codes, documented and stable (docs/cli.md section 3), and
// what signals do. The first Ctrl-C or SIGTERM ends it in order (the server is told), the second
// one at once.
#pragma once

#include <functional>

#include "absl/status/status.h"

namespace quantgate {

enum ExitCode : int {
  kExitOk = 0,
  kExitCriterionFailed = 1,  ///< A stated criterion failed: bits differ, a bound is exceeded.
  kExitUsage = 2,            ///< The request is wrong, or names something that does not exist.
  kExitService = 4,          ///< The service is unavailable or failed.
  kExitPermission = 6,
  kExitExhausted = 7,    ///< A limit, a quota, the disk, memory.
  kExitDeadline = 124,   ///< As timeout(1).
  kExitCancelled = 130,  ///< As a shell after Ctrl-C.
};

/// The exit code of a command that ends with this status.
ExitCode ExitCodeOf(const absl::Status& status);

/// Handles Ctrl-C and SIGTERM on a thread of their own; call it before any other thread starts.
void StartInterruptThread();

/// Runs `on_interrupt` when a signal comes (at once if one came already), until replaced. Empty:
/// nothing.
void SetInterruptAction(std::function<void()> on_interrupt);

/// Whether one of the signals has come.
bool WasInterrupted();

/// Tensor files are mapped, and reading a mapped file that another process has shortened kills the
/// reader. From now on that ends the program with a message and kExitService.
void ExitWhenMappedFilesShrink();

}  // namespace quantgate
