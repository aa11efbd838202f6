// Sessions.Step.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/runs/output_writer.h"
#include "server/runs/run_execution.h"
#include "server/sessions/convert_session.h"
#include "server/sessions/session_calls.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

absl::StatusOr<v1::RankReport> RankToProto(const RankStepRecords& rank, int index) {
  VariantReport::RankReport report;
  report.rank = index;
  report.device = rank.device;
  for (const RankStepRecords::Output& output : rank.outputs) {
    report.outputs.push_back({output.tensor, output.dtype, output.shape, output.fingerprint});
  }
  report.saved = rank.records.saved;
  report.quantizations = rank.records.quantizations;
  for (const GemmRecord& gemm : rank.records.gemms) report.gemms.push_back(GemmLineOf(gemm));
  QG_ASSIGN_OR_RETURN(report.stages, TimesOf(rank.records.stages));
  report.timelines = rank.records.timelines;
  report.gathered = rank.records.gathered;
  return RankReportToProto(report);
}

/// One step on the session's device: the checks that need the session's mutex, the step and the
/// response.
class StepCall {
 public:
  StepCall(CallContext& context, SessionUse use, const v1::SessionStepRequest& request,
           SessionStep step, v1::SessionStepResponse& response)
      : context_(context),
        use_(std::move(use)),
        request_(request),
        step_(std::move(step)),
        response_(response) {}

  absl::Status Run(const Cancellation& cancellation);

 private:
  absl::StatusOr<bool> WasDone();
  absl::Status Do(const Cancellation& cancellation);
  absl::StatusOr<SessionStepResult> StepOnce(const Cancellation& cancellation);
  absl::StatusOr<SessionStepResult> ChangeRecipe(const Cancellation& cancellation);
  absl::Status Write(const SessionStepResult& result, const Cancellation& cancellation);
  Session& training() { return *use_->training; }

  CallContext& context_;
  SessionUse use_;
  const v1::SessionStepRequest& request_;
  SessionStep step_;
  v1::SessionStepResponse& response_;
};

/// Whether the request repeats the last step, whose response it then gets again.
absl::StatusOr<bool> StepCall::WasDone() {
  if (request_.request_id().empty() || request_.request_id() != use_->last_request_id) return false;
  if (ContentDigest(request_) != use_->last_content) {
    return error::RequestIdReused(request_.request_id());
  }
  if (!response_.ParseFromString(use_->last_response)) {
    return error::Internal("a session's last response is damaged");
  }
  return true;
}

absl::StatusOr<SessionStepResult> StepCall::StepOnce(const Cancellation& cancellation) {
  const auto done = [](const absl::Status& status) -> absl::StatusOr<SessionStepResult> {
    if (!status.ok()) return status;
    return SessionStepResult();
  };
  switch (step_.kind) {
    case SessionStep::Kind::kTrain:
    case SessionStep::Kind::kEvaluate:
    case SessionStep::Kind::kRecompute:
      return training().Forward(step_.forward, &cancellation);
    case SessionStep::Kind::kBackward:
      return training().Backward({step_.microbatch, step_.forward.x, step_.forward.x_codes},
                                 &cancellation);
    case SessionStep::Kind::kWgrad:
      return training().Wgrad(&cancellation);
    case SessionStep::Kind::kOptimize:
      return training().Optimize(step_.optimizer, &cancellation);
    case SessionStep::Kind::kChangeRecipe:
      return ChangeRecipe(cancellation);
    case SessionStep::Kind::kOffload:
      return done(training().Offload(step_.microbatch, &cancellation));
    case SessionStep::Kind::kReload:
      return done(training().Reload(step_.microbatch, &cancellation));
  }
  return error::Internal("unknown kind of step");
}

absl::StatusOr<SessionStepResult> StepCall::ChangeRecipe(const Cancellation& cancellation) {
  const BackwardOverride before = training().recipe().backward_override();
  const std::string name(BackwardOverrideName(before));
  Recipe recipe = *step_.recipe;
  if (step_.keeps_override) {
    // Of rules by module, those that are there are judged with the whole session.
    if (recipe.is_delayed() && !recipe.DependsOnModule() && before != BackwardOverride::kNone) {
      return Refuse("backward_override",
                    absl::StrCat("absent, so that the session's, ", name, ", stays"),
                    "delayed scaling has no backward override: give none");
    }
    recipe = recipe.WithBackwardOverride(before);
  }
  QG_RETURN_IF_ERROR(training().ChangeRecipe(recipe, &cancellation));
  SessionStepResult result;
  if (recipe.backward_override() != before) {
    result.notes.push_back(absl::StrCat(
        "backward_override: ", std::string(BackwardOverrideName(recipe.backward_override())),
        " from now on; it was ", name));
  }
  v1::SessionSpec spec;
  if (!spec.ParseFromString(use_->spec)) return error::Internal("a session's spec is damaged");
  QG_ASSIGN_OR_RETURN(const std::vector<std::string> notes, NotesOfRecipe(spec, recipe));
  result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  return result;
}

absl::Status StepCall::Do(const Cancellation& cancellation) {
  if (step_.tensor.has_value()) {
    QG_ASSIGN_OR_RETURN(step_.forward.x,
                        context_.loader.Load(step_.tensor, use_->device, &cancellation));
  }
  if (step_.quantized.has_value()) {
    QG_ASSIGN_OR_RETURN(LoadedCodes loaded, LoadQuantized(*step_.quantized, context_.loader,
                                                          use_->device, &cancellation));
    step_.forward.x = std::move(loaded.values);
    step_.forward.x_codes = std::move(loaded.codes);
  }
  // Restores the session where the response cannot be given: that step counts as not done.
  const std::function<void()> restore = training().RestorePoint();
  absl::StatusOr<SessionStepResult> result;
  do {
    context_.sessions.LimitBytes(use_);
    result = StepOnce(cancellation);
    // A step that was refused memory or room has changed nothing. It is tried again after each
    // eviction of an idle session.
  } while (absl::IsResourceExhausted(result.status()) && context_.sessions.Evict());
  if (!result.ok()) return WithinField(SessionStepField(step_.kind), result.status());
  absl::Status status = Write(*result, cancellation);
  std::string kept;
  if (status.ok() && !request_.request_id().empty()) kept = response_.SerializeAsString();
  if (status.ok()) {
    status = context_.sessions.StepEnded(use_, static_cast<int64_t>(kept.size()));
  }
  if (!status.ok()) {
    restore();
    return status;
  }
  for (const RankStepRecords& rank : result->ranks) {
    for (const StageTimeline& stage : rank.records.timelines) {
      context_.statistics.Overlapped(stage.timeline);
    }
  }
  use_->last_request_id = request_.request_id();
  use_->last_response = std::move(kept);
  if (!request_.request_id().empty()) use_->last_content = ContentDigest(request_);
  return absl::OkStatus();
}

absl::Status StepCall::Write(const SessionStepResult& result, const Cancellation& cancellation) {
  response_.set_step(training().step_count());
  if (step_.kind == SessionStep::Kind::kChangeRecipe) {
    response_.set_backward_override(
        std::string(BackwardOverrideName(training().recipe().backward_override())));
  }
  Engine& engine = *use_->device.engine;
  std::vector<Tensor> tensors;
  for (const NamedTensor& output : result.outputs) tensors.push_back(output.tensor);
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      engine.FingerprintsOf(tensors, &cancellation));
  OutputWriter writer(context_.blobs, engine,
                      request_.keep_outputs() ? KeepOutputs::kAll : KeepOutputs::kNone);
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const NamedTensor& output = result.outputs[i];
    QG_RETURN_IF_ERROR(
        writer.Write(output.name, output.tensor, fingerprints[i], response_.add_outputs()));
  }
  for (const SavedOperand& saved : result.saved) {
    *response_.add_saved() = SavedOperandToProto(saved);
  }
  for (const QuantizationRecord& record : result.quantizations) {
    *response_.add_quantizations() = QuantizationRecordToProto(record);
  }
  for (const GemmRecord& gemm : result.gemms) {
    *response_.add_gemms() = GemmLineToProto(GemmLineOf(gemm));
  }
  QG_ASSIGN_OR_RETURN(const std::vector<StageTime> times, TimesOf(result.stages));
  for (const StageTime& stage : times) {
    v1::StageTime& proto = *response_.add_stages();
    proto.set_stage(stage.stage);
    proto.set_seconds(stage.seconds);
  }
  for (const std::string& note : result.notes) response_.add_notes(note);
  for (const std::string& difference : result.rank_differences) {
    response_.add_rank_differences(difference);
  }
  v1::SessionMemory& memory = *response_.mutable_memory();
  memory = SavedMemoryToProto(training().saved_memory());
  for (const RankStepRecords& rank : result.ranks) {
    const GatheredRecord& gathered = rank.records.gathered;
    memory.set_gathered_peak_bytes(memory.gathered_peak_bytes() + gathered.peak);
    memory.set_gathered_held_bytes(memory.gathered_held_bytes() + gathered.held);
  }
  for (int index = 0; const RankStepRecords& rank : result.ranks) {
    QG_ASSIGN_OR_RETURN(*response_.add_ranks(), RankToProto(rank, index));
    ++index;
  }
  return CheckMessageSize(response_);
}

absl::Status StepCall::Run(const Cancellation& cancellation) {
  const std::lock_guard lock(use_->mutex);
  // The session may have been closed while this step waited for its turn.
  QG_ASSIGN_OR_RETURN(const SessionRecord record, context_.sessions.Find(use_.id()));
  if (record.phase != SessionPhase::kOpen) {
    return error::SessionEnded(use_.id(), SessionPhaseName(record.phase));
  }
  QG_ASSIGN_OR_RETURN(const bool was_done, WasDone());
  if (was_done) return absl::OkStatus();
  const int64_t step = training().step_count();
  if (request_.expected_step() != step) {
    return error::SessionStepConflict(request_.expected_step(), step);
  }
  const absl::Status status = Do(cancellation);
  context_.statistics.SessionStepped(SessionStepName(step_.kind), status);
  return status;
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareSessionStep(CallContext& context,
                                              const v1::SessionStepRequest& request,
                                              v1::SessionStepResponse& response) {
  if (!request.request_id().empty()) {
    QG_RETURN_IF_ERROR(CheckToken(request.request_id(), "request_id"));
  }
  QG_ASSIGN_OR_RETURN(SessionStep step, SessionStepFromProto(request, context.tensor_bytes_max));
  TensorReference* const references[] = {&step.tensor};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  if (step.quantized.has_value()) {
    QG_RETURN_IF_ERROR(context.loader.Resolve(step.quantized->parts));
    QG_ASSIGN_OR_RETURN(const QuantizedPlan outline, OutlineOf(*step.quantized));
    QG_RETURN_IF_ERROR(WithinField(step.quantized->field, outline.CheckValues()));
  }
  QG_ASSIGN_OR_RETURN(SessionUse use, context.sessions.Use(request.session_id()));
  QG_ASSIGN_OR_RETURN(const SessionRecord record, context.sessions.Find(request.session_id()));
  Device* const device = &use->device;
  return DeviceWork{
      record.recipe->name(),
      [call =
           std::make_shared<StepCall>(context, std::move(use), request, std::move(step), response)](
          Device&, const Cancellation& cancellation) { return call->Run(cancellation); },
      device};
}

}  // namespace quantgate
