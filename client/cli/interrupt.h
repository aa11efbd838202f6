// Signals. Ctrl-C and SIGTERM: the first ends the command in order (the server is told), the second
// at once.
#pragma once

#include <functional>

namespace quantgate {

/// Takes both signals away from every thread; call before any other thread starts.
void StartInterruptThread();

/// Runs `on_interrupt` when a signal comes (at once if one came already), until replaced. Empty:
/// nothing.
void SetInterruptAction(std::function<void()> on_interrupt);

bool WasInterrupted();

/// Tensor files are mapped, and a mapped file that another process makes shorter ends whoever reads
/// it. From now on that ends the program with a sentence and the exit code of lost data.
void ExitWhenMappedFilesShrink();

}  // namespace quantgate
