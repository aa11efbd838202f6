// What runs need of any connection; remote_execute.cc has what servers need for them.
#include "client/execute.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quantgate {

void RunFollower::Take(const v1::RunEvent& event, const RunObserverFunction& observer) {
  run_id_ = event.run_id();
  if (event.sequence() <= last_sequence_) return;  // Seen before the stream broke.
  last_sequence_ = event.sequence();
  join_.Take(event);
  if (event.has_finished()) {
    has_finished_ = true;
    finished_ = event.finished();
  }
  if (observer) observer(event);
}

absl::StatusOr<v1::RunReport> RunFollower::Report() {
  if (finished_.state() != v1::RUN_STATE_SUCCEEDED) {
    const absl::Status status(static_cast<absl::StatusCode>(finished_.status_code()),
                              finished_.status_message());
    if (!status.ok()) return status;
    return absl::InternalError(
        absl::StrCat("run ", run_id_, " ended without success and without a reason"));
  }
  v1::RunReport report = finished_.report();
  report.set_run_id(run_id_);
  report.clear_variants();
  for (auto& [index, variant] : join_.variants()) *report.add_variants() = std::move(variant);
  return report;
}

absl::StatusOr<v1::RunReport> ExecuteRun(Connection& connection, const v1::RunSpec& spec,
                                         const RunObserverFunction& observer) {
  return connection.ExecuteRun(spec, observer);
}

absl::StatusOr<v1::RunReport> RunTrace(Connection& connection, const v1::RunTraceRequest& request,
                                       const RunObserverFunction& observer) {
  return connection.RunTrace(request, observer);
}

absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(Connection& connection,
                                                     const v1::RunScenariosRequest& request,
                                                     const ScenarioObserverFunction& observer) {
  return connection.RunScenarios(request, observer);
}

}  // namespace quantgate
