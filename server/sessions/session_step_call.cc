// Sessions.Step.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/runs/output_writer.h"
#include "server/runs/run_execution.h"
#include "server/sessions/convert_session.h"
#include "server/sessions/session_calls.h"
#include "server/sessions/session_steps.h"
#include "server/wire/convert_layer.h"
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
           SessionStep step, std::optional<Recipe> against, v1::SessionStepResponse& response)
      : context_(context),
        use_(std::move(use)),
        request_(request),
        step_(std::move(step)),
        against_recipe_(std::move(against)),
        response_(response) {}

  absl::Status Run(const Cancellation& cancellation);

 private:
  absl::StatusOr<bool> WasDone();
  absl::Status Do(const Cancellation& cancellation);
  /// The step under SessionStepRequest.against.
  struct Against {
    std::string recipe;  ///< Its canonical text.
    SessionStepResult result;
    v1::TraceStep report;
    std::optional<KeptForward> kept;  ///< Of a training forward on one rank.
    int64_t bytes = 0;                ///< What it would keep beside the session's own state.
  };
  absl::StatusOr<SessionStepResult> StepBoth(const Cancellation& cancellation);
  absl::StatusOr<Against> StepAgainst(const Cancellation& cancellation);
  using KeptForwards = std::map<std::string, HeldSession::ForwardAgainst>;
  KeptForwards KeptAfter() const;
  absl::Status WriteAgainst(const SessionStepResult& result, const Cancellation& cancellation);
  absl::Status Write(const SessionStepResult& result, const Cancellation& cancellation);
  Session& training() { return *use_->training; }

  CallContext& context_;
  SessionUse use_;
  const v1::SessionStepRequest& request_;
  SessionStep step_;
  const std::optional<Recipe> against_recipe_;
  std::optional<Against> against_;
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

/// The step under `against`, and after it the session's own, from the same state.
absl::StatusOr<SessionStepResult> StepCall::StepBoth(const Cancellation& cancellation) {
  against_.reset();
  if (!request_.has_against()) return TakeSessionStep(training(), use_->spec, step_, cancellation);
  const std::function<void()> restore = training().RestorePoint();
  absl::StatusOr<Against> other = StepAgainst(cancellation);
  restore();
  if (other.ok() && other->kept.has_value()) other->bytes = other->kept->bytes_beside();
  absl::StatusOr<SessionStepResult> own =
      TakeSessionStep(training(), use_->spec, step_, cancellation);
  // What is wrong under both recipes is wrong with the step itself.
  if (!own.ok()) return own;
  if (!other.ok()) {
    restore();
    return WithinField("against", other.status());
  }
  against_ = *std::move(other);
  return own;
}

absl::StatusOr<StepCall::Against> StepCall::StepAgainst(const Cancellation& cancellation) {
  Against against{against_recipe_->CanonicalText(), {}, {}, {}, 0};
  if (step_.kind == SessionStep::Kind::kBackward) {
    if (absl::IsUnimplemented(training().KeepForward(step_.microbatch).status())) {
      return RefusePrecondition("recipe", against_recipe_->ShortText(),
                                "the session is on several ranks, which compare forwards only");
    }
    const auto kept = use_->against.find(step_.microbatch);
    if (kept == use_->against.end() || kept->second.recipe != against.recipe) {
      return RefusePrecondition(
          "recipe", against_recipe_->ShortText(),
          absl::StrCat("the forward of microbatch ", step_.microbatch,
                       " was not compared with it, or the session's parameters or recipe have "
                       "changed since"));
    }
    QG_RETURN_IF_ERROR(kept->second.put());
  } else {
    QG_RETURN_IF_ERROR(training().ChangeRecipe(*against_recipe_, &cancellation));
  }
  QG_ASSIGN_OR_RETURN(against.result, TakeSessionStep(training(), use_->spec, step_, cancellation));
  StepResultToProto(training(), against.result, against.report);
  // Its backward may be compared, too. What several ranks saved is not kept.
  if (step_.kind == SessionStep::Kind::kTrain || step_.kind == SessionStep::Kind::kRecompute) {
    absl::StatusOr<KeptForward> kept = training().KeepForward(step_.forward.microbatch);
    if (kept.ok()) {
      against.kept = *std::move(kept);
    } else if (!absl::IsUnimplemented(kept.status())) {
      return kept.status();
    }
  }
  return against;
}

/// The forwards under `against` that the session keeps once this step is done.
StepCall::KeptForwards StepCall::KeptAfter() const {
  KeptForwards kept = use_->against;
  switch (step_.kind) {
    case SessionStep::Kind::kTrain:
    case SessionStep::Kind::kRecompute:
      kept.erase(step_.microbatch);
      if (against_.has_value() && against_->kept.has_value()) {
        kept[step_.microbatch] = {against_->recipe, against_->kept->put, against_->bytes};
      }
      break;
    case SessionStep::Kind::kBackward:
      kept.erase(step_.microbatch);
      break;
    case SessionStep::Kind::kOptimize:
    case SessionStep::Kind::kChangeRecipe:
      kept.clear();
      break;
    case SessionStep::Kind::kEvaluate:
    case SessionStep::Kind::kWgrad:
    case SessionStep::Kind::kOffload:
    case SessionStep::Kind::kReload:
      break;
  }
  return kept;
}

absl::Status StepCall::WriteAgainst(const SessionStepResult& result,
                                    const Cancellation& cancellation) {
  if (!against_.has_value()) return absl::OkStatus();
  v1::TraceStep& report = *response_.mutable_against();
  report = std::move(against_->report);
  report.set_step(static_cast<int32_t>(training().step_count()));
  report.set_kind(std::string(SessionStepField(step_.kind)));
  report.set_microbatch(step_.microbatch);
  report.set_label(against_recipe_->ShortText());
  Engine& engine = *use_->device.engine;
  QG_ASSIGN_OR_RETURN(
      const std::vector<v1::StepComparison> comparisons,
      CompareTensors(engine, against_->result.outputs, result.outputs, &cancellation));
  for (const v1::StepComparison& comparison : comparisons) {
    *report.add_against_reference() = comparison;
  }
  v1::TraceStep own;
  StepResultToProto(training(), result, own);
  CompareScales(own, report);
  return OutputWriter::DescribeAll(engine, against_->result.outputs, &cancellation,
                                   *report.mutable_outputs());
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
  absl::StatusOr<SessionStepResult> result =
      TakeStepWithinRoom(context_.sessions, use_, [&] { return StepBoth(cancellation); });
  if (!result.ok()) {
    const std::optional<Refusal> refusal = RefusalOf(result.status());
    const bool is_of_other = refusal.has_value() && absl::StartsWith(refusal->field, "against");
    return is_of_other ? result.status()
                       : WithinField(SessionStepField(step_.kind), result.status());
  }
  absl::Status status = Write(*result, cancellation);
  std::string kept;
  if (status.ok() && !request_.request_id().empty()) kept = response_.SerializeAsString();
  KeptForwards forwards = KeptAfter();
  auto kept_bytes = static_cast<int64_t>(kept.size());
  for (const auto& [microbatch, forward] : forwards) kept_bytes += forward.bytes;
  if (status.ok()) status = context_.sessions.StepEnded(use_, kept_bytes);
  if (!status.ok()) {
    restore();
    return status;
  }
  CountOverlaps(context_.statistics, *result);
  use_->against = std::move(forwards);
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
  OutputWriter writer(context_.blobs, *use_->device.engine,
                      request_.keep_outputs() ? KeepOutputs::kAll : KeepOutputs::kNone);
  QG_RETURN_IF_ERROR(writer.WriteAll(result.outputs, &cancellation, *response_.mutable_outputs()));
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
  *response_.mutable_memory() = MemoryAfter(training(), result);
  for (int index = 0; const RankStepRecords& rank : result.ranks) {
    QG_ASSIGN_OR_RETURN(*response_.add_ranks(), RankToProto(rank, index));
    ++index;
  }
  QG_RETURN_IF_ERROR(WriteAgainst(result, cancellation));
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

/// The recipe of SessionStepRequest.against; absent without one.
absl::StatusOr<std::optional<Recipe>> AgainstFromProto(const v1::SessionStepRequest& request,
                                                       const SessionStep& step) {
  if (!request.has_against()) return std::optional<Recipe>();
  if (!step.tensor.has_value() && !step.quantized.has_value()) {
    return Refuse("against", std::string(SessionStepField(step.kind)),
                  "only a forward or a backward is also done under another recipe");
  }
  const v1::Variant& proto = request.against();
  if (!proto.arithmetic().empty()) {
    return Refuse("against.arithmetic", Printable(proto.arithmetic()),
                  "a step under another recipe has the session's arithmetic");
  }
  if (proto.has_parallel()) {
    return Refuse("against.parallel", "given",
                  "a step under another recipe is on the session's ranks");
  }
  QG_ASSIGN_OR_RETURN(Variant variant, VariantFromProto(proto, "against"));
  return std::optional<Recipe>(std::move(variant.recipe));
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareSessionStep(CallContext& context,
                                              const v1::SessionStepRequest& request,
                                              v1::SessionStepResponse& response) {
  if (!request.request_id().empty()) {
    QG_RETURN_IF_ERROR(CheckToken(request.request_id(), "request_id"));
  }
  QG_ASSIGN_OR_RETURN(SessionStep step, SessionStepFromProto(request, context.tensor_bytes_max));
  QG_ASSIGN_OR_RETURN(std::optional<Recipe> against, AgainstFromProto(request, step));
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
      [call = std::make_shared<StepCall>(context, std::move(use), request, std::move(step),
                                         std::move(against), response)](
          Device&, const Cancellation& cancellation) { return call->Run(cancellation); },
      device};
}

}  // namespace quantgate
