// Plays a SessionTrace: a session for each variant, all of them taking the same steps side by side,
// and every output held against the reference variant's as soon as both are there.
//
// The client plays the trace with the services Sessions and Engine.Compare, so every server can do
// it, also the one in this process; tensors stay where they were computed, and comparisons are
// those of every other report.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/commands/tensor_comparison.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "quantgate/v1/session_trace.pb.h"
#include "server/report/trace_report.h"

namespace quantgate {

/// Steps of one trace at most, over all rounds.
inline constexpr int kTraceStepsMax = 100000;

/// Checks the trace as far as that needs no server. INVALID_ARGUMENT.
absl::Status CheckTrace(const v1::SessionTrace& trace);

/// Called before each step with the number of steps done and of all.
using TraceProgress = std::function<void(int done, int of)>;

/// Plays the trace; closes its sessions in any case. A step that a variant refuses ends the trace
/// with that error, naming variant and step. `lease_seconds`: as OpenSessionRequest.lease_seconds.
absl::StatusOr<TraceReport> PlayTrace(Connection& connection, const v1::SessionTrace& trace,
                                      TensorSources& sources, int lease_seconds,
                                      const TraceProgress& progress);

/// The verdict: whether all variants have the reference's bits, and the ranks of each variant equal
/// bits.
v1::Verdict JudgeTrace(const TraceReport& report);

}  // namespace quantgate
