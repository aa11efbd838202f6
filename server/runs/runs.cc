#include "server/runs/runs.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "proto/variant_join.h"
#include "server/limits.h"
#include "server/runs/memory_guard.h"
#include "server/runs/run_execution.h"
#include "server/runs/run_job.h"
#include "server/service_context.h"
#include "server/wire/convert_layer.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/layer_run.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

void SetTimestamp(absl::Time time, google::protobuf::Timestamp* proto) {
  const int64_t micros = absl::ToUnixMicros(time);
  proto->set_seconds(micros / 1'000'000);
  proto->set_nanos(static_cast<int>(micros % 1'000'000) * 1000);
}

/// Identifies the content of a request, to tell two requests with the same id apart; zeros for a
/// request without an id.
Sha256 SpecContentOf(const v1::ExecuteRequest& request) {
  return request.request_id().empty() ? Sha256() : ContentDigest(request.spec());
}

/// Sets the state of a run that was running when its record was read.
void SetStateOfRunning(const std::map<std::string, absl::Status>& running, RunRecord& record) {
  const auto found = running.find(record.run_id);
  if (IsFinal(record.state) || found == running.end()) return;
  record.state = RunState::kRunning;
  record.status = found->second;
}

}  // namespace

v1::Run RunRecordToProto(const RunRecord& record) {
  v1::Run run;
  run.set_run_id(record.run_id);
  run.set_state(static_cast<v1::RunState>(record.state));
  SetTimestamp(record.created, run.mutable_created());
  if (record.finished.has_value()) SetTimestamp(*record.finished, run.mutable_finished());
  run.set_last_sequence(record.last_sequence);
  run.set_status_code(static_cast<int>(record.status.code()));
  run.set_status_message(std::string(record.status.message()));
  run.set_summary(record.summary);
  run.set_unverified(record.is_unverified);
  return run;
}

absl::Status Runs::EndInterrupted() {
  QG_ASSIGN_OR_RETURN(const auto records, context_.run_store.ListUnfinished());
  const absl::Status status =
      absl::AbortedError("the server restarted during the run; start it again");
  for (const RunRecord& record : records) {
    const int64_t sequence = record.last_sequence + 1;
    const auto event = std::make_shared<const std::string>(
        FinishedEvent(record.run_id, sequence, v1::RUN_STATE_FAILED, status, {})
            .SerializeAsString());
    QG_RETURN_IF_ERROR(
        context_.run_store.Finish(record.run_id, sequence, event, RunState::kFailed, status));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Runs::Start(const v1::ExecuteRequest& request, absl::Time deadline) {
  absl::StatusOr<LayerRun> run = LayerRunFromProto(request.spec(), context_.tensor_bytes_max);
  const auto check = [&]() -> absl::StatusOr<CheckedRun> {
    QG_RETURN_IF_ERROR(run.status());
    run->stream_outputs = request.stream_outputs();
    return CheckLayerRun(context_, request.spec(), *std::move(run));
  };
  return Start(request.request_id(), SpecContentOf(request), check, deadline);
}

absl::StatusOr<std::string> Runs::Start(const std::string& request_id, const Sha256& content,
                                        absl::FunctionRef<absl::StatusOr<CheckedRun>()> check,
                                        absl::Time deadline) {
  if (!request_id.empty()) QG_RETURN_IF_ERROR(CheckToken(request_id, "request_id"));
  const std::lock_guard lock(start_mutex_);
  QG_ASSIGN_OR_RETURN(const bool may_be_known, context_.run_store.MayHaveRequest(request_id));
  if (may_be_known) {
    QG_ASSIGN_OR_RETURN(const auto earlier, context_.run_store.FindRequest(request_id, content));
    if (earlier.has_value()) return earlier->run_id;
  }
  QG_ASSIGN_OR_RETURN(CheckedRun run, check());
  return Enqueue(request_id, content, std::move(run), deadline);
}

absl::StatusOr<std::string> Runs::Enqueue(const std::string& request_id, const Sha256& content,
                                          CheckedRun run, absl::Time deadline) {
  DeviceQueue& queue = Served(*run.device).run_queue;
  std::string run_id = RunStore::NewRunId();
  // The first event is published before a worker can publish the second one, so it states the
  // position in the queue at this moment.
  const auto accepted_event = std::make_shared<const std::string>(
      AcceptedEvent(run_id, queue.depth() + queue.running()).SerializeAsString());
  const std::string summary = run.summary;
  auto cancellation = std::make_shared<Cancellation>(deadline);
  live_.Begin(run_id, cancellation);
  std::shared_ptr<RunJob> job;
  const absl::Status accepted = GuardMemory([&] {
    live_.Publish(run_id, 1, accepted_event);
    job = std::make_shared<RunJob>(context_, live_, run_id, std::move(run), cancellation);
    return queue
        .Submit(cancellation, [job](absl::Status admission) { job->Run(std::move(admission)); })
        .status();
  });
  if (!accepted.ok()) {
    live_.End(run_id);
    return accepted;
  }
  // The run is stored after it was queued, so that the device does not wait for the database.
  // Nobody knows of the run before it is stored. The job waits for Stored, which is called whether
  // storing succeeds or not.
  const absl::Status stored = GuardMemory([&] {
    return context_.run_store.Create(run_id, request_id, content, summary, *accepted_event)
        .status();
  });
  job->Stored(stored);
  if (stored.ok()) return run_id;
  CancelLive(run_id);
  return stored;
}

absl::Status Runs::Cancel(const std::string& run_id) {
  return CancelLive(run_id) ? absl::OkStatus() : context_.run_store.Get(run_id).status();
}

bool Runs::CancelLive(const std::string& run_id) {
  const auto cancellation = live_.CancellationOf(run_id);
  if (cancellation == nullptr) return false;
  for (const auto& device : context_.devices) {
    Served(*device).run_queue.Cancel(cancellation);
  }
  return true;
}

absl::StatusOr<v1::Run> Runs::Get(const std::string& run_id) {
  // Read before the record, so that a run that ends in between is reported as ended.
  const std::map<std::string, absl::Status> running = live_.Running();
  QG_ASSIGN_OR_RETURN(RunRecord record, context_.run_store.Get(run_id));
  SetStateOfRunning(running, record);
  v1::Run run = RunRecordToProto(record);
  if (record.state == RunState::kSucceeded) QG_RETURN_IF_ERROR(AddReport(record, run));
  return run;
}

// The report is assembled from the events, the only place where it is stored.
absl::Status Runs::AddReport(const RunRecord& record, v1::Run& run) {
  VariantJoin join;
  for (int64_t sequence = 1; sequence <= record.last_sequence; ++sequence) {
    QG_ASSIGN_OR_RETURN(const auto stored, context_.run_store.ReadEvent(record.run_id, sequence));
    v1::RunEvent event;
    if (!stored.has_value() || !event.ParseFromString(stored->bytes)) {
      return absl::DataLossError("the database holds a damaged run event");
    }
    if (event.has_finished()) *run.mutable_report() = event.finished().report();
    join.Take(std::move(event));
  }
  size_t bytes = run.ByteSizeLong();
  for (const auto& [index, variant] : join.variants()) bytes += variant.ByteSizeLong() + 16;
  if (bytes > kMessageBytesMax) return absl::OkStatus();
  for (auto& [index, variant] : join.variants())
    *run.mutable_report()->add_variants() = std::move(variant);
  return absl::OkStatus();
}

absl::StatusOr<v1::ListRunsResponse> Runs::List(const v1::ListRunsRequest& request) {
  QG_ASSIGN_OR_RETURN(const Page page, PageFromProto(request.page_size(), request.page_token()));
  const std::map<std::string, absl::Status> running = live_.Running();
  QG_ASSIGN_OR_RETURN(RunPage found, context_.run_store.List(page.before_id, page.size));
  v1::ListRunsResponse response;
  for (RunRecord& record : found.records) {
    SetStateOfRunning(running, record);
    *response.add_runs() = RunRecordToProto(record);
  }
  response.set_next_page_token(PageToken(found.next_before_id));
  return response;
}

}  // namespace quantgate
