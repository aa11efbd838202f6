// Runs of layers and of scenarios, from the request to the report.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "proto/variant_join.h"

namespace quantgate {

/// The state of a run as its events tell it, over several streams of them.
class RunFollower {
 public:
  explicit RunFollower(std::string request_id = "") : request_id_(std::move(request_id)) {}

  const std::string& request_id() const { return request_id_; }
  const std::string& run_id() const { return run_id_; }  ///< Empty before the first event.
  int64_t last_sequence() const { return last_sequence_; }
  bool has_finished() const { return has_finished_; }
  /// Takes an event and passes it to `observer`; ignores one that was taken before.
  void Take(const v1::RunEvent& event, const RunObserverFunction& observer);
  /// The report of a finished run, or why the run failed. Called once.
  absl::StatusOr<v1::RunReport> Report();

 private:
  const std::string request_id_;
  std::string run_id_;
  int64_t last_sequence_ = 0;
  VariantJoin join_;
  bool has_finished_ = false;
  v1::RunFinished finished_;
};

/// Starts a run and waits for its report, the variants included. A broken stream is attached to
/// again; the run itself is cancelled when the deadline passes or Connection::Cancel() is called.
/// The status of a failed run is that of its RunFinished event.
absl::StatusOr<v1::RunReport> ExecuteRun(Connection& connection, const v1::RunSpec& spec,
                                         const RunObserverFunction& observer = {});

/// Plays a trace and waits for its report; its steps are in the events that `observer` gets. Broken
/// streams, the deadline and Connection::Cancel() as in ExecuteRun.
absl::StatusOr<v1::RunReport> RunTrace(Connection& connection, const v1::RunTraceRequest& request,
                                       const RunObserverFunction& observer = {});

/// Runs scenarios and waits for the end. A broken stream is an error: the server keeps nothing of
/// such a run, so it has to be started again.
absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(Connection& connection,
                                                     const v1::RunScenariosRequest& request,
                                                     const ScenarioObserverFunction& observer);

}  // namespace quantgate
