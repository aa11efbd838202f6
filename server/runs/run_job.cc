#include "server/runs/run_job.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/runs/memory_guard.h"
#include "server/runs/run_execution.h"

namespace quantgate {

RunJob::RunJob(ServiceContext& context, LiveRuns& live, std::string run_id, CheckedRun run,
               std::shared_ptr<Cancellation> cancellation)
    : context_(context),
      device_(*run.device),
      live_(live),
      run_id_(std::move(run_id)),
      cancellation_(std::move(cancellation)),
      enqueued_(SteadyNow()),
      events_(std::make_shared<RunEvents>(context.run_store, context.storing, live, run_id_,
                                          cancellation_)),
      work_(std::move(run.make)(
          RunPlace{device_, run_id_, cancellation_,
                   [this](v1::RunEvent& event) { return events_->Publish(event); }})) {}

void RunJob::Run(absl::Status admission) {
  const absl::Time start = SteadyNow();
  context_.metrics.StageTook(Stage::kQueue, start - enqueued_);
  absl::Status status = std::move(admission);
  v1::RunReport report;
  if (status.ok()) {
    auto executed = GuardMemory([this] { return Execute(); });
    status = executed.status();
    if (executed.ok()) report = *std::move(executed);
  }
  if (is_given_up_) return;
  work_->Release();
  if (!work_->stop_status().ok()) status = work_->stop_status();
  status = context_.watch.Checked(device_, std::move(status));
  status = Served(device_).run_queue.Reported(*cancellation_, std::move(status));
  report.set_seconds(absl::ToDoubleSeconds(SteadyNow() - start));
  Conclude(status, std::move(report), start);
}

absl::StatusOr<v1::RunReport> RunJob::Execute() {
  live_.SetRunning(run_id_);
  ranks_ = context_.ranks;
  ranks_.on_stuck = [this, start = SteadyNow()](const absl::Status& why) { GiveUp(why, start); };
  QG_ASSIGN_OR_RETURN(v1::RunReport report, work_->Execute(ranks_));
  QG_RETURN_IF_ERROR(events_->AwaitCreated());
  report.set_reproduce(work_->RepeatCommand());
  return report;
}

void RunJob::GiveUp(const absl::Status& status, absl::Time start) {
  is_given_up_ = true;
  Conclude(status, v1::RunReport(), start);
  context_.ranks.on_stuck(status);
}

void RunJob::Conclude(const absl::Status& status, v1::RunReport report, absl::Time start) {
  events_->WhenPublished(
      [&](const absl::Status& kept) { End(kept.ok() ? status : kept, std::move(report), start); });
}

void RunJob::End(absl::Status status, v1::RunReport report, absl::Time start) {
  RunState state = static_cast<RunState>(StateOf(status, *cancellation_));
  const auto event_of = [&](v1::RunReport of, std::optional<v1::VariantFinished> variant) {
    return std::make_shared<const std::string>(
        FinishedEvent(run_id_, events_->next_sequence(), static_cast<v1::RunState>(state), status,
                      std::move(of), std::move(variant))
            .SerializeAsString());
  };
  auto event = event_of(std::move(report), work_->TakeLastVariant());
  absl::Status stored = events_->StoreEnd(event, state, status);
  if (!stored.ok()) {
    // The latest events may not fit on the disk, but an event that says why the run failed may.
    if (status.ok()) {
      status = stored;
      state = RunState::kFailed;
      event = event_of({}, {});
    }
    stored = events_->StoreEnd(event, state, status);
  }
  CountEnd(status, start);
  if (stored.ok()) return events_->PublishEnd(event);
  events_->OweEnd(event, state, status, stored);
}

void RunJob::CountEnd(const absl::Status& status, absl::Time start) {
  if (status.ok()) {
    context_.metrics.StageTook(Stage::kStore, work_->store_time() + events_->storing_time());
  }
  const RunWork::Labels labels = work_->labels();
  for (const RunWork::Labels::Variant& variant : labels.variants) {
    context_.metrics.RunEnded(labels.operation, variant.recipe, variant.mode, status);
  }
  const bool is_one = labels.variants.size() == 1;
  context_.metrics.RunTook(labels.operation, is_one ? labels.variants[0].recipe : "several",
                           SteadyNow() - start);
}

void RunJob::Stored(absl::Status status) { events_->Created(std::move(status)); }

}  // namespace quantgate
