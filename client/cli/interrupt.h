// Signals. The first Ctrl-C or SIGTERM ends the command in order (the server is told), the second
// one at once.
#pragma once

#include <functional>

namespace quantgate {

/// Handles both signals on a thread of their own; call it before any other thread starts.
void StartInterruptThread();

/// Runs `on_interrupt` when a signal comes (at once if one came already), until replaced. Empty:
/// nothing.
void SetInterruptAction(std::function<void()> on_interrupt);

bool WasInterrupted();

/// Tensor files are mapped, and reading a mapped file that another process has shortened kills the
/// reader. From now on that ends the program with a message and kExitService.
void ExitWhenMappedFilesShrink();

}  // namespace quantgate
