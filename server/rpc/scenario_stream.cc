#include "server/rpc/scenario_stream.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/service_context.h"

namespace quantgate {

ScenarioStream::ScenarioStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                               const v1::RunScenariosRequest* request)
    : call_(context, Rpc("Scenarios.Run"), server_context),
      request_(request),
      connection_(context.send_budget.ConnectionOf(call_.connection())) {
  call_.MessageReceived();
  call_.context().executor.Run([this] {
    const absl::Status status = Begin();
    if (!status.ok()) SetOutcome(status);
  });
}

absl::Status ScenarioStream::Begin() {
  QG_RETURN_IF_ERROR(call_.Admit(Admission::kUnlessDraining));
  QG_ASSIGN_OR_RETURN(run_, ScenarioRun::Create(call_.context(), *request_));
  return Served(run_->device())
      .run_queue
      .Submit(call_.cancellation(), [this](absl::Status admission) { Run(std::move(admission)); })
      .status();
}

void ScenarioStream::Run(absl::Status admission) {
  if (!admission.ok()) return SetOutcome(std::move(admission));
  auto last = run_->Run(call_.cancellation().get(),
                        [this](v1::ScenarioEvent event) { Queue(std::move(event)); });
  absl::Status status = call_.context().watch.Checked(run_->device(), last.status());
  status = Served(run_->device()).run_queue.Reported(*call_.cancellation(), std::move(status));
  if (status.ok()) Queue(*std::move(last));
  run_.reset();  // Destroyed on this thread, since NCCL takes a while to release.
  SetOutcome(std::move(status));
}

void ScenarioStream::Queue(v1::ScenarioEvent event) {
  const auto bytes = static_cast<int64_t>(event.ByteSizeLong());
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back({std::move(event), call_.context().send_budget.Take(connection_, bytes)});
  }
  GoOn();
}

void ScenarioStream::SetOutcome(absl::Status outcome) {
  {
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
  }
  GoOn();
}

// The thread that finds nothing left to do decides under the lock that the stream ends, and ends it
// after the lock's release.
void ScenarioStream::GoOn() {
  std::optional<absl::Status> end;
  {
    const std::lock_guard lock(mutex_);
    if (is_writing_ || is_over_) return;
    if (!ready_.empty()) {
      sending_ = std::move(ready_.front());
      ready_.pop_front();
      is_writing_ = true;
    } else if (outcome_.has_value()) {
      is_over_ = true;
      end = *outcome_;
    } else {
      return;
    }
  }
  if (end.has_value()) {
    Finish(call_.End(*end));
  } else {
    StartWrite(&sending_.event);
  }
}

void ScenarioStream::OnWriteDone(bool ok) noexcept {
  if (ok) call_.MessageSent();
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    sending_.room = {};
    if (!ok) ready_.clear();
  }
  // The client takes no more events, so the work is told to stop. Its outcome then ends the stream.
  if (!ok) call_.cancellation()->Cancel();
  GoOn();
}

void ScenarioStream::OnCancel() noexcept {
  for (const auto& device : call_.context().devices) {
    Served(*device).run_queue.Cancel(call_.cancellation());
  }
}

}  // namespace quantgate
