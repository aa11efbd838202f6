// RunJob: one run on its way through a server's queue: its execution, and the storing and telling
// of its events. Used by one thread at a time, but for Stored.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/live_runs.h"
#include "server/runs/run_events.h"
#include "server/runs/run_execution.h"
#include "server/service_context.h"

namespace quantgate {

class RunJob {
 public:
  /// Of a run whose first event is among the live ones; `outline`: of OutlineLayerRun.
  RunJob(ServiceContext& context, Device& device, LiveRuns& live, std::string run_id, LayerRun run,
         Plan outline, std::shared_ptr<Cancellation> cancellation);

  /// Runs to its end, whatever that is; `admission` is what the queue says.
  void Run(absl::Status admission);
  /// That the run and its first event are stored, or why not: then nothing else of it is. By
  /// another thread, once.
  void Stored(absl::Status status);

 private:
  absl::StatusOr<v1::RunReport> Execute();
  /// The run's end, of which `report` tells when `status` is OK.
  void Conclude(const absl::Status& status, v1::RunReport report, absl::Time start);
  /// The same when all its events are told.
  void End(absl::Status status, v1::RunReport report, absl::Time start);
  void CountEnd(const absl::Status& status, absl::Time start);
  /// A rank does not return from its engine, so that RunPlan does not either: those who follow the
  /// run are answered from within it, and the worker goes on waiting.
  void GiveUp(const absl::Status& status, absl::Time start);

  ServiceContext& context_;
  Device& device_;
  LiveRuns& live_;
  const std::string run_id_;
  const std::shared_ptr<Cancellation> cancellation_;
  const absl::Time enqueued_;
  const std::shared_ptr<RunEvents> events_;
  RunExecution execution_;
  RankSetting ranks_;  ///< The server's, but for whom a stuck rank is told to.
  bool is_given_up_ = false;
};

}  // namespace quantgate
