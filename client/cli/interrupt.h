// Ctrl-C and SIGTERM: the first ends the command in order (the server is told), the second at once.
#pragma once

#include <functional>

namespace quantgate {

/// Takes both signals away from every thread; call before any other thread starts.
void StartInterruptThread();

/// Runs `on_interrupt` when a signal comes (at once if one came already), until replaced. Empty:
/// nothing.
void SetInterruptAction(std::function<void()> on_interrupt);

bool WasInterrupted();

}  // namespace quantgate
