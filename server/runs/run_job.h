// RunJob: one run on its way through the queue and the engine. Every step becomes an event. Used by
// one thread at a time, but for Stored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/throttle.h"
#include "kernels/validate/run.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/layer_run.h"
#include "server/runs/live_runs.h"
#include "server/runs/output_writer.h"
#include "server/runs/run_events.h"
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
  absl::StatusOr<v1::RunReport> ExecutePlan(const Plan& plan);
  absl::Status DescribeInputs(v1::RunReport& report);
  /// Where the input came from, and its digest.
  absl::Status DescribeSource(const TensorReference& reference, v1::InputTensor& proto);
  /// Those that came with the request, so that the command in `reproduce` works.
  absl::Status KeepBytes(const TensorReference& reference);
  void OnProgress(const RunProgress& progress);
  /// `body()` (absl::Status) unless the run stops; with its time among what is stored.
  template <typename Body>
  void Store(Body body);
  absl::Status PublishOutput(int index, const OutputReport& report);
  /// Makes begun_.
  absl::Status BeginVariant(const VariantReport& report);
  absl::Status PublishVariant(int index, const VariantReport& report);
  /// Stops the run: there is no use in going on when its events cannot be kept.
  void Stop(const absl::Status& status);
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
  const LayerRun run_;
  const Plan outline_;
  const std::shared_ptr<Cancellation> cancellation_;
  const absl::Time enqueued_;
  const std::shared_ptr<RunEvents> events_;
  absl::Status stopped_;                             // Why Stop was called.
  std::optional<OutputWriter> writer_;               // Of the variant that is coming.
  std::vector<v1::OutputReport> outputs_;            // Those of its report, or their names.
  std::optional<v1::VariantFinished> last_variant_;  // That the end has with it.
  std::optional<v1::VariantReport> begun_;           // Its report, as far as it is known.
  size_t stages_counted_ = 0;                        // Of its stages, in metrics.
  v1::Environment environment_;                      // As read last.
  size_t variants_published_ = 0;
  RankSetting ranks_;  ///< The server's, but for whom a stuck rank is told to.
  bool is_given_up_ = false;
  /// Each event is sent and stored; nobody's eye can follow more.
  Throttle progress_throttle_{std::chrono::milliseconds(20)};
  absl::Duration store_time_;
  RunReport result_;       // Its tensors are dropped with the job, when the end has been told.
};

/// A serialized RunAccepted event, a run's first.
std::string AcceptedEvent(const std::string& run_id, int queue_position);
/// A serialized RunFinished event.
std::string FinishedEvent(const std::string& run_id, int64_t sequence, RunState state,
                          const absl::Status& status, v1::RunReport report,
                          std::optional<v1::VariantFinished> last_variant = {});

}  // namespace quantgate
