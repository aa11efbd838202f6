// RunJob: one run in a server's queue: its work, and the storing and publishing of its events.
// Used by one thread at a time, except Stored.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/live_runs.h"
#include "server/runs/run_events.h"
#include "server/runs/run_work.h"
#include "server/service_context.h"

namespace quantgate {

class RunJob {
 public:
  /// For a run whose first event is published.
  RunJob(ServiceContext& context, LiveRuns& live, std::string run_id, CheckedRun run,
         std::shared_ptr<Cancellation> cancellation);

  /// Executes the run and ends it. `admission` is the status that the queue calls the job with.
  void Run(absl::Status admission);
  /// As RunEvents::Created.
  void Stored(absl::Status status);

 private:
  absl::StatusOr<v1::RunReport> Execute();
  /// Ends the run once all its events are published. `report` is used where `status` is OK.
  void Conclude(const absl::Status& status, v1::RunReport report, absl::Time start);
  /// Ends the run as Conclude does, where all events are published.
  void End(absl::Status status, v1::RunReport report, absl::Time start);
  void CountEnd(const absl::Status& status, absl::Time start);
  /// Ends the run for those who follow it although a rank does not return from its engine. Its
  /// work does not return then either, so this is called from within it, and the worker goes on
  /// waiting.
  void GiveUp(const absl::Status& status, absl::Time start);

  ServiceContext& context_;
  Device& device_;
  LiveRuns& live_;
  const std::string run_id_;
  const std::shared_ptr<Cancellation> cancellation_;
  const absl::Time enqueued_;
  const std::shared_ptr<RunEvents> events_;
  RankSetting ranks_;                    ///< The server's, except that on_stuck is GiveUp.
  const std::unique_ptr<RunWork> work_;  ///< After ranks_, which it may refer to.
  bool is_given_up_ = false;
};

}  // namespace quantgate
