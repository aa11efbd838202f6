// Runs: accepts them, executes them on the device queue, and turns what happens into stored events.
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/live_runs.h"
#include "server/runs/run_work.h"
#include "server/service_context.h"

namespace quantgate {

class Runs {
 public:
  explicit Runs(ServiceContext& context) : context_(context) {}

  /// Ends the runs that an earlier process left behind as FAILED. Before any other call.
  absl::Status EndInterrupted();

  /// Does every check that needs no tensor's bytes, then queues and stores the run. Returns the
  /// run's id, the same one again for the same request id. `deadline` holds for waiting and
  /// running.
  absl::StatusOr<std::string> Start(const v1::ExecuteRequest& request, absl::Time deadline);
  /// Starts the run that `check` gives, unless a request with this id has started one: then
  /// `content` must be that request's. An empty id is not remembered.
  absl::StatusOr<std::string> Start(const std::string& request_id, const Sha256& content,
                                    absl::FunctionRef<absl::StatusOr<CheckedRun>()> check,
                                    absl::Time deadline);
  /// Cancels a run. Takes effect between operations, and has no effect on a finished run. NOT_FOUND
  /// for an unknown run.
  absl::Status Cancel(const std::string& run_id);
  /// Cancels a live run; returns false for a run that is not live. Does not touch the disk.
  bool CancelLive(const std::string& run_id);

  absl::StatusOr<v1::Run> Get(const std::string& run_id);
  absl::StatusOr<v1::ListRunsResponse> List(const v1::ListRunsRequest& request);

  LiveRuns& live() { return live_; }

 private:
  absl::StatusOr<std::string> Enqueue(const std::string& request_id, const Sha256& content,
                                      CheckedRun run, absl::Time deadline);
  absl::Status AddReport(const RunRecord& record, v1::Run& run);

  ServiceContext& context_;
  LiveRuns live_{context_.options.live_event_bytes_max};
  // Ensures that one request id starts one run, however many streams ask at once.
  std::mutex start_mutex_;
};

v1::Run RunRecordToProto(const RunRecord& record);

}  // namespace quantgate
