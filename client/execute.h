// Runs: Execute, and WaitRun when the stream breaks, until the run has ended.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "client/connection.h"

namespace quantgate {

/// Called for every event once, in order of their sequence numbers.
using RunObserverFunction = std::function<void(const v1::RunEvent&)>;

/// Starts a run and waits for its report, the variants included. A broken stream is attached to
/// again; the run itself is cancelled when the deadline passes or Connection::Cancel() is called.
/// The status of a failed run is that of its RunFinished event.
absl::StatusOr<v1::RunReport> ExecuteRun(Connection& connection, const v1::RunSpec& spec,
                                         const RunObserverFunction& observer = {});

}  // namespace quantgate
