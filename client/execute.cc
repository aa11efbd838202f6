#include "client/execute.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "kernels/base/status_macros.h"
#include "proto/variant_join.h"
#include "quantgate/v1/engine_service.grpc.pb.h"

namespace quantgate {
namespace {

/// What is known of a run between one stream and the next.
struct Attachment {
  std::string request_id;
  std::string run_id;
  int64_t last_sequence = 0;
  VariantJoin join;
  bool has_finished = false;
  v1::RunFinished finished;

  void Take(const v1::RunEvent& event, const RunObserverFunction& observer) {
    run_id = event.run_id();
    if (event.sequence() <= last_sequence) return;  // Seen before the stream broke.
    last_sequence = event.sequence();
    join.Take(event);
    if (event.has_finished()) {
      has_finished = true;
      finished = event.finished();
    }
    if (observer) observer(event);
  }
};

/// One stream, from the start of the run or from where the last one broke.
absl::Status Follow(Connection& connection, const v1::RunSpec& spec, Attachment& attachment,
                    const RunObserverFunction& observer) {
  const std::unique_ptr<v1::Engine::Stub> stub = v1::Engine::NewStub(connection.channel());
  LiveCall call(connection.live_calls());
  std::unique_ptr<grpc::ClientReader<v1::RunEvent>> reader;
  if (attachment.run_id.empty()) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(attachment.request_id);
    request.set_stream_outputs(true);
    reader = stub->Execute(call.context(), request);
  } else {
    v1::WaitRunRequest request;
    request.set_run_id(attachment.run_id);
    request.set_from_sequence(attachment.last_sequence + 1);
    reader = stub->WaitRun(call.context(), request);
  }
  v1::RunEvent event;
  while (reader->Read(&event)) attachment.Take(event, observer);
  return FromGrpcStatus(reader->Finish());
}

absl::StatusOr<v1::RunReport> ReportOf(Attachment& attachment) {
  const v1::RunFinished& finished = attachment.finished;
  if (finished.state() != v1::RUN_STATE_SUCCEEDED) {
    const absl::Status status(static_cast<absl::StatusCode>(finished.status_code()),
                              finished.status_message());
    if (!status.ok()) return status;
    return absl::InternalError(
        absl::StrCat("run ", attachment.run_id, " ended without success and without a reason"));
  }
  v1::RunReport report = finished.report();
  report.set_run_id(attachment.run_id);
  report.clear_variants();
  for (auto& [index, variant] : attachment.join.variants())
    *report.add_variants() = std::move(variant);
  return report;
}

/// The id of a run that was asked for but not heard of yet: the same request attaches to it.
std::string RunIdOf(Connection& connection, const v1::RunSpec& spec,
                    const std::string& request_id) {
  const std::unique_ptr<v1::Engine::Stub> stub = v1::Engine::NewStub(connection.channel());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kFarewellTimeout));
  v1::ExecuteRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  const std::unique_ptr<grpc::ClientReader<v1::RunEvent>> reader = stub->Execute(&context, request);
  v1::RunEvent event;
  const std::string run_id = reader->Read(&event) ? event.run_id() : "";
  context.TryCancel();
  while (reader->Read(&event)) continue;
  reader->Finish();
  return run_id;
}

/// Nobody waits for a run whose caller gave up.
void CancelIfAbandoned(Connection& connection, const v1::RunSpec& spec,
                       const Attachment& attachment, const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status) && !absl::IsCancelled(status)) return;
  v1::CancelRunRequest request;
  request.set_run_id(attachment.run_id.empty() ? RunIdOf(connection, spec, attachment.request_id)
                                               : attachment.run_id);
  if (!request.run_id().empty()) connection.CancelRun(request).IgnoreError();
}

}  // namespace

absl::StatusOr<v1::RunReport> ExecuteRun(Connection& connection, const v1::RunSpec& spec,
                                         const RunObserverFunction& observer) {
  Attachment attachment;
  attachment.request_id = NewRequestId();
  for (int attempt = 1;; ++attempt) {
    const int64_t before = attachment.last_sequence;
    absl::Status status = Follow(connection, spec, attachment, observer);
    if (attachment.has_finished) return ReportOf(attachment);
    if (status.ok()) status = absl::UnavailableError("the stream ended before the run did");
    const absl::StatusOr<bool> supplied = connection.SupplyMissing(status);
    if (!supplied.ok()) return supplied.status();
    if (*supplied) continue;
    if (attachment.last_sequence > before) attempt = 1;
    if (!IsWorthRetrying(status) || !connection.PauseBeforeRetry(attempt, status)) {
      CancelIfAbandoned(connection, spec, attachment, status);
      return status;
    }
  }
}

}  // namespace quantgate
