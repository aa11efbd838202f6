#include "server/sessions/trace_execution.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/run/output_report.h"
#include "kernels/validate/run/verdict.h"
#include "server/report/trace_events.h"
#include "server/runs/output_writer.h"
#include "server/sessions/session_calls.h"
#include "server/sessions/session_steps.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

ComparisonJudge JudgeOf(const TracePlan& plan) {
  const bool has_bounds =
      std::any_of(plan.steps.begin(), plan.steps.end(), [](const PlannedTraceStep& step) {
        return step.subjects_requirement == Requirement::kBound;
      });
  return has_bounds ? ComparisonJudge::ByBounds() : ComparisonJudge::Bitwise();
}

bool RequiresAnything(const TracePlan& plan) {
  return plan.requirement != Requirement::kNone ||
         std::any_of(plan.steps.begin(), plan.steps.end(), [](const PlannedTraceStep& step) {
           return step.subjects_requirement != Requirement::kNone;
         });
}

/// Whether something is required of a variant's tensor in this step.
bool IsJudged(const PlannedTraceStep& step, int variant) {
  return step.subjects_of == variant && !step.subjects.empty() &&
         step.subjects_requirement != Requirement::kNone;
}

std::optional<TraceDiagnoser> DiagnoserOf(const TracePlan& plan, int variant) {
  bool is_needed = false, keeps_forwards = false;
  for (const PlannedTraceStep& step : plan.steps) {
    if (!IsJudged(step, variant)) continue;
    is_needed = true;
    keeps_forwards = keeps_forwards || !step.tensor.empty();
  }
  if (!is_needed) return std::nullopt;
  return TraceDiagnoser(plan.parameter_names, keeps_forwards);
}

/// The reference variant first, then the others by index.
std::vector<int> OrderOf(const TracePlan& plan) {
  std::vector<int> order = {plan.reference};
  for (int i = 0; i < static_cast<int>(plan.variants.size()); ++i) {
    if (i != plan.reference) order.push_back(i);
  }
  return order;
}

}  // namespace

TraceExecution::TraceExecution(CallContext& context, TracePlan plan, RunPlace place)
    : context_(context),
      plan_(std::move(plan)),
      device_(place.device),
      run_id_(std::move(place.run_id)),
      cancellation_(std::move(place.cancellation)),
      tell_(std::move(place.tell)),
      judge_(JudgeOf(plan_)) {
  for (size_t i = 0; i < plan_.variants.size(); ++i) {
    Player player{plan_.sessions[i], {}, {}, {}, DiagnoserOf(plan_, static_cast<int>(i))};
    if (plan_.variants[i].has_parallel()) player.parallel = plan_.variants[i].parallel();
    players_.push_back(std::move(player));
  }
}

TraceExecution::~TraceExecution() { CloseSessions(); }

RunWork::Labels TraceExecution::labels() const {
  Labels labels{"trace", {}};
  for (const TraceSession& session : plan_.sessions) {
    const Recipe& recipe = session.spec.recipe;
    labels.variants.push_back(
        {recipe.name(), std::string(BackwardOverrideName(recipe.backward_override()))});
  }
  return labels;
}

void TraceExecution::CloseSession(Player& player) {
  player.diagnoser.reset();  // It shares the session's tensors.
  if (!player.use.has_value()) return;
  const std::string id = player.use->id();
  player.use.reset();
  context_.sessions.Close(id, run_id_).IgnoreError();
}

void TraceExecution::CloseSessions() {
  for (Player& player : players_) CloseSession(player);
}

/// Closes the sessions and gives back the places of those that were not opened.
void TraceExecution::Release() {
  CloseSessions();
  plan_.places.clear();
  loaded_.clear();
}

absl::StatusOr<LoadedCodes> TraceExecution::Load(const std::string& key) {
  const auto known = loaded_.find(key);
  if (known != loaded_.end()) return known->second;
  const auto codes = plan_.codes.find(key);
  if (codes != plan_.codes.end()) {
    QG_ASSIGN_OR_RETURN(
        loaded_[key], LoadQuantized(codes->second, context_.loader, device_, cancellation_.get()));
    return loaded_[key];
  }
  QG_ASSIGN_OR_RETURN(const Tensor tensor,
                      context_.loader.Load(plan_.tensors.at(key), device_, cancellation_.get()));
  loaded_[key].values = tensor;
  return loaded_[key];
}

absl::Status TraceExecution::Hold(int variant, SessionPlace place,
                                  std::unique_ptr<Session> training) {
  Player& player = players_[variant];
  SessionStore& sessions = context_.sessions;
  QG_ASSIGN_OR_RETURN(
      const SessionRecord record,
      sessions.Open(std::move(place), device_, sessions.limits().lease_default, std::move(training),
                    player.session.proto.SerializeAsString(), run_id_));
  QG_ASSIGN_OR_RETURN(SessionUse use, sessions.Use(record.id, run_id_));
  player.use.emplace(std::move(use));
  return absl::OkStatus();
}

absl::Status TraceExecution::OpenSessions(const RankSetting& ranks) {
  std::map<std::string, Tensor> parameters;
  std::map<std::string, QuantizedTensor> codes;
  for (const auto& [parameter, key] : plan_.parameters) {
    QG_ASSIGN_OR_RETURN(const LoadedCodes loaded, Load(key));
    if (plan_.codes.contains(key)) {
      codes[parameter] = loaded.codes;
    } else {
      parameters[parameter] = loaded.values;
    }
  }
  for (size_t i = 0; i < players_.size(); ++i) {
    const TraceSession& session = players_[i].session;
    absl::StatusOr<std::unique_ptr<Session>> training =
        OpenSession(*device_.engine, session.spec, parameters, &ranks, cancellation_.get(), codes);
    if (!training.ok()) {
      return Prefixed(absl::StrCat(session.label, ": "),
                      AtTraceField(plan_, static_cast<int>(i), training.status()));
    }
    QG_RETURN_IF_ERROR(Hold(static_cast<int>(i), std::move(plan_.places[i]), *std::move(training)));
    QG_ASSIGN_OR_RETURN(players_[i].notes, NotesOfRecipe(session.proto, session.spec.recipe));
  }
  plan_.places.clear();
  return absl::OkStatus();
}

/// Each parameter by its own name, quantized ones dequantized.
absl::StatusOr<TraceExecution::Tensors> TraceExecution::Parameters(Player& player) {
  Tensors tensors;
  for (const std::string& parameter : plan_.parameter_names) {
    QG_ASSIGN_OR_RETURN(Tensor tensor, player.training().Find(parameter, cancellation_.get()));
    tensors.push_back({parameter, std::move(tensor)});
  }
  return tensors;
}

absl::StatusOr<TraceExecution::Played> TraceExecution::TakeStep(const SessionStep& step,
                                                                bool is_judged, Player& player) {
  const std::lock_guard lock((*player.use)->mutex);
  Session& training = player.training();
  if (player.diagnoser.has_value()) {
    QG_RETURN_IF_ERROR(player.diagnoser->Before(step, training, player.session.spec, is_judged,
                                                cancellation_.get()));
  }
  absl::StatusOr<SessionStepResult> result = TakeStepWithinRoom(
      context_.sessions, *player.use,
      [&] { return TakeSessionStep(training, (*player.use)->spec, step, *cancellation_); });
  absl::Status status = result.status();
  if (status.ok()) status = context_.sessions.StepEnded(*player.use, 0);
  context_.statistics.SessionStepped(SessionStepName(step.kind), status);
  QG_RETURN_IF_ERROR(status);
  CountOverlaps(context_.statistics, *result);
  Played played;
  StepResultToProto(training, *result, played.report);
  played.gemms = std::move(result->gemms);
  played.tensors = std::move(result->outputs);
  if (step.kind == SessionStep::Kind::kOptimize) {
    QG_ASSIGN_OR_RETURN(played.tensors, Parameters(player));
  }
  return played;
}

/// Writes the session to a checkpoint and goes on from its bytes, perhaps on other ranks.
absl::Status TraceExecution::Restart(const PlannedTraceStep& step, int variant,
                                     const RankSetting& ranks, Played& played) {
  Player& player = players_[variant];
  Digest digest;
  {
    const std::lock_guard lock((*player.use)->mutex);
    QG_ASSIGN_OR_RETURN(const TensorFile file, player.training().Checkpoint(cancellation_.get()));
    QG_ASSIGN_OR_RETURN(const Tensor bytes, SafetensorsBytes(file.tensors, file.metadata));
    QG_ASSIGN_OR_RETURN(digest, context_.blobs.Put(bytes.bytes()));
  }
  if (step.restart->parallel.has_value()) player.parallel = step.restart->parallel;
  QG_ASSIGN_OR_RETURN(
      TraceSession session,
      TraceSessionOf(plan_, variant, player.parallel.has_value() ? &*player.parallel : nullptr));
  // The recipe that it has now, with every knob.
  session.spec.recipe = player.training().recipe();
  session.label = LabelOf(session.spec);
  // Its place is the new session's, and no client's who asks for one in between.
  QG_ASSIGN_OR_RETURN(SessionPlace place, context_.sessions.HandOver(player.use->id(), run_id_));
  player.use.reset();
  if (player.diagnoser.has_value()) player.diagnoser->Restarted();
  QG_ASSIGN_OR_RETURN(auto buffer, context_.blobs.Load(digest));
  QG_ASSIGN_OR_RETURN(const TensorFile file, ParseSafetensors(std::move(buffer), "checkpoint"));
  QG_ASSIGN_OR_RETURN(
      std::unique_ptr<Session> training,
      RestoreSession(*device_.engine, session.spec, file, &ranks, cancellation_.get()));
  player.session = std::move(session);
  QG_RETURN_IF_ERROR(Hold(variant, std::move(place), std::move(training)));
  *played.report.mutable_checkpoint() = DigestToProto(digest);
  return absl::OkStatus();
}

absl::StatusOr<TraceExecution::Played> TraceExecution::PlayVariant(const PlannedTraceStep& step,
                                                                   int variant,
                                                                   const RankSetting& ranks) {
  Player& player = players_[variant];
  if (step.restart.has_value()) {
    Played played;
    if (step.restart->IsOf(variant)) {
      QG_RETURN_IF_ERROR(Restart(step, variant, ranks, played));
    }
    QG_ASSIGN_OR_RETURN(played.tensors, Parameters(player));
    return played;
  }
  SessionStep taken = step.step;
  if (!step.tensor.empty()) {
    QG_ASSIGN_OR_RETURN(const LoadedCodes loaded, Load(step.tensor));
    taken.forward.x = loaded.values;
    taken.forward.x_codes = loaded.codes;
  }
  absl::StatusOr<Played> played = TakeStep(taken, IsJudged(step, variant), player);
  if (!played.ok()) return WithinField(step.field, played.status());
  if (taken.kind == SessionStep::Kind::kChangeRecipe) {
    player.session.spec.recipe = player.training().recipe();
    player.session.label = LabelOf(player.session.spec);
  }
  return played;
}

absl::StatusOr<std::optional<v1::BoundCheck>> TraceExecution::CheckBoundOf(
    const Played& played, const NamedTensor& subject) {
  // Records have the layer's name before the output's; the session's own outputs have not.
  const v1::SessionSpec& spec = plan_.spec;
  std::string record = subject.name;
  if (subject.name == "y") record = absl::StrCat(spec.layers(spec.layers_size() - 1).name(), ".y");
  if (subject.name == "dx") record = absl::StrCat(spec.layers(0).name(), ".dx");
  const auto gemm = std::find_if(played.gemms.begin(), played.gemms.end(),
                                 [&](const GemmRecord& one) { return one.output == record; });
  if (gemm == played.gemms.end()) return std::optional<v1::BoundCheck>();
  QG_ASSIGN_OR_RETURN(const std::optional<BoundCheck> check,
                      CheckGemmOutput(*device_.engine, *gemm, subject.tensor, cancellation_.get()));
  if (!check.has_value()) return std::optional<v1::BoundCheck>();
  return std::optional<v1::BoundCheck>(BoundCheckToProto(*check));
}

absl::Status TraceExecution::CompareSubjects(const PlannedTraceStep& step, int variant,
                                             Played& played) {
  if (step.subjects.empty() || step.subjects_of != variant) return absl::OkStatus();
  Tensors subjects;
  for (const auto& [output, key] : step.subjects) {
    const auto own = std::find_if(played.tensors.begin(), played.tensors.end(),
                                  [&](const NamedTensor& tensor) { return tensor.name == output; });
    if (own == played.tensors.end()) {
      std::vector<std::string> names;
      for (const NamedTensor& tensor : played.tensors) names.push_back(tensor.name);
      const std::string at = step.field.substr(0, step.field.rfind('.'));
      return Refuse(
          absl::StrCat(at, ".subjects[", Printable(output), "]"), "given",
          absl::StrCat("the step gives no such tensor; it gives ", absl::StrJoin(names, ", ")));
    }
    QG_ASSIGN_OR_RETURN(const LoadedCodes loaded, Load(key));
    subjects.push_back({output, loaded.values});
  }
  QG_ASSIGN_OR_RETURN(
      const std::vector<v1::StepComparison> comparisons,
      CompareTensors(*device_.engine, subjects, played.tensors, cancellation_.get()));
  for (size_t i = 0; i < comparisons.size(); ++i) {
    v1::StepComparison& comparison = *played.report.add_subjects();
    comparison = comparisons[i];
    // Another type than the output's has no bound, and fails.
    if (step.subjects_requirement != Requirement::kBound || !comparison.has_parity()) continue;
    QG_ASSIGN_OR_RETURN(const std::optional<v1::BoundCheck> bound,
                        CheckBoundOf(played, subjects[i]));
    if (bound.has_value()) *comparison.mutable_bound() = *bound;
  }
  return absl::OkStatus();
}

absl::Status TraceExecution::DescribeTensors(Played& played) {
  auto& protos = *played.report.mutable_outputs();
  if (!plan_.keep_outputs) {
    return OutputWriter::DescribeAll(*device_.engine, played.tensors, cancellation_.get(), protos);
  }
  OutputWriter writer(context_.blobs, *device_.engine, KeepOutputs::kAll);
  return writer.WriteAll(played.tensors, cancellation_.get(), protos);
}

void TraceExecution::Judge(int64_t number, const PlannedTraceStep& step, int variant,
                           v1::TraceStep& report) {
  const std::string of = absl::StrCat(" of ", players_[variant].session.label);
  const auto judge = [&](const std::string& what, v1::StepComparison& comparison) {
    SubjectComparison judged = SubjectComparisonOf(comparison);
    judged.tensor = absl::StrCat("step ", number, ": ", what, comparison.tensor(), of);
    judge_.Add(judged);
    comparison.set_pass(judged.passes);
    comparison.set_finding(judged.finding);
  };
  for (v1::StepComparison& comparison : *report.mutable_against_reference()) {
    summary_.set_compared_count(summary_.compared_count() + 1);
    if (!comparison.parity().equal()) {
      summary_.set_differing_count(summary_.differing_count() + 1);
    }
    if (plan_.requirement == Requirement::kBitwise) judge("", comparison);
  }
  for (v1::StepComparison& comparison : *report.mutable_subjects()) {
    if (step.subjects_requirement != Requirement::kNone) judge("the subject's ", comparison);
    summary_.set_subject_count(summary_.subject_count() + 1);
    if (!comparison.pass()) summary_.set_failed_count(summary_.failed_count() + 1);
  }
  if (plan_.requirement != Requirement::kBitwise) return;
  for (const std::string& difference : report.rank_differences()) {
    judge_.AddDifference(absl::StrCat("step ", number, of, ": ", difference));
  }
}

absl::Status TraceExecution::Diagnose(const PlannedTraceStep& step, int variant,
                                      const Tensors& tensors, v1::TraceStep& report) {
  const auto fails = [](const v1::StepComparison& comparison) { return !comparison.pass(); };
  const auto& comparisons = report.subjects();
  if (std::none_of(comparisons.begin(), comparisons.end(), fails)) return absl::OkStatus();
  const absl::Time start = context_.clock();
  // All diagnoses of a trace together take at most as long as the rest of it so far.
  const DiagnosisBudget budget =
      DiagnosisBudget::Of(start - start_ - 2 * diagnosing_, context_.clock);
  Tensors subjects;
  for (const v1::StepComparison& comparison : comparisons) {
    // What lies within its bound may have other bits, which are then no finding.
    if (comparison.pass() && !comparison.parity().equal()) continue;
    QG_ASSIGN_OR_RETURN(const LoadedCodes loaded, Load(step.subjects.at(comparison.tensor())));
    subjects.push_back({comparison.tensor(), loaded.values});
  }
  Player& player = players_[variant];
  const SessionUsage usage = context_.sessions.usage();
  const std::lock_guard lock((*player.use)->mutex);
  const absl::StatusOr<Diagnosis> diagnosis =
      player.diagnoser->Diagnose(*device_.engine, player.training(), tensors, subjects,
                                 usage.bytes_max - usage.bytes, cancellation_.get(), budget);
  diagnosing_ += context_.clock() - start;
  if (absl::IsResourceExhausted(diagnosis.status())) {
    // The trace goes on: what it compared stands without its cause.
    report.mutable_diagnosis()->set_is_unknown(true);
    report.mutable_diagnosis()->set_sentence(
        absl::StrCat("unknown: not looked into: ", diagnosis.status().message()));
    return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(diagnosis.status());
  *report.mutable_diagnosis() = DiagnosisToProto(*diagnosis);
  return absl::OkStatus();
}

absl::Status TraceExecution::Tell(v1::RunEvent event) {
  QG_RETURN_IF_ERROR(CheckMessageSize(event));
  const absl::Time start = SteadyNow();
  const absl::Status told = tell_(event);
  store_time_ += SteadyNow() - start;
  if (told.ok()) return told;
  // To go on would be useless when events cannot be stored.
  stopped_ = told;
  cancellation_->Cancel();
  return told;
}

absl::Status TraceExecution::PlayStep(const PlannedTraceStep& step, int64_t number,
                                      const RankSetting& ranks) {
  Tensors reference;
  v1::TraceStep of_reference;  // Its quantizations alone.
  for (const int variant : OrderOf(plan_)) {
    QG_RETURN_IF_ERROR(cancellation_->Check());
    const auto play = [&]() -> absl::StatusOr<Played> {
      QG_ASSIGN_OR_RETURN(Played played, PlayVariant(step, variant, ranks));
      QG_RETURN_IF_ERROR(CompareSubjects(step, variant, played));
      return played;
    };
    const std::string before = players_[variant].session.label;
    absl::StatusOr<Played> played = play();
    if (!played.ok()) return AtTraceStep(before, number, step, played.status());
    v1::RunEvent event;
    v1::TraceStep& report = *event.mutable_trace_step();
    QG_RETURN_IF_ERROR(DescribeTensors(*played));
    report = std::move(played->report);
    for (std::string& note : players_[variant].notes) report.add_notes(std::move(note));
    players_[variant].notes.clear();
    report.set_step(static_cast<int32_t>(number));
    report.set_round(
        static_cast<int32_t>(1 + (number - 1) / static_cast<int64_t>(plan_.steps.size())));
    report.set_kind(step.kind);
    report.set_microbatch(step.microbatch);
    report.set_variant(variant);
    report.set_label(players_[variant].session.label);
    if (variant == plan_.reference) {
      reference = std::move(played->tensors);
      *of_reference.mutable_quantizations() = report.quantizations();
    } else {
      QG_ASSIGN_OR_RETURN(
          const std::vector<v1::StepComparison> comparisons,
          CompareTensors(*device_.engine, played->tensors, reference, cancellation_.get()));
      for (const v1::StepComparison& comparison : comparisons) {
        *report.add_against_reference() = comparison;
      }
      CompareScales(of_reference, report);
    }
    Judge(number, step, variant, report);
    const absl::Status diagnosed =
        Diagnose(step, variant, variant == plan_.reference ? reference : played->tensors, report);
    if (!diagnosed.ok()) return AtTraceStep(before, number, step, diagnosed);
    QG_RETURN_IF_ERROR(Tell(std::move(event)));
  }
  return absl::OkStatus();
}

absl::Status TraceExecution::Play(const RankSetting& ranks) {
  v1::RunEvent event;
  v1::TraceStarted& started = *event.mutable_trace();
  for (const TraceSession& session : plan_.sessions) started.add_variants(session.label);
  started.set_reference(plan_.reference);
  started.set_step_count(static_cast<int32_t>(plan_.step_count()));
  QG_RETURN_IF_ERROR(Tell(std::move(event)));
  QG_RETURN_IF_ERROR(OpenSessions(ranks));
  for (int64_t done = 0; done < plan_.step_count(); ++done) {
    const size_t index = static_cast<size_t>(done) % plan_.steps.size();
    QG_RETURN_IF_ERROR(PlayStep(plan_.steps[index], done + 1, ranks));
  }
  return absl::OkStatus();
}

v1::RunReport TraceExecution::Report() {
  v1::RunReport report;
  report.set_schema_version(1);
  report.set_run_id(run_id_);
  report.set_reference(plan_.reference);
  const DeviceDescription device = device_.description.Get();
  *report.mutable_environment() = EnvironmentToProto(std::span(&device, 1));
  if (RequiresAnything(plan_)) {
    *report.mutable_verdict() = judge_.Verdict();
  } else {
    *report.mutable_verdict() = VerdictToProto(JudgeRun(Requirement::kNone, std::nullopt, {}));
  }
  summary_.set_step_count(plan_.step_count());
  summary_.set_variant_count(static_cast<int64_t>(plan_.variants.size()));
  *report.mutable_trace() = summary_;
  return report;
}

absl::StatusOr<v1::RunReport> TraceExecution::Execute(const RankSetting& ranks) {
  start_ = context_.clock();
  device_.description.Refresh();  // Reads in the background while the trace plays.
  const absl::Status played = Play(ranks);
  // The sessions refer to `ranks`, which may go before this object.
  Release();
  QG_RETURN_IF_ERROR(played);
  return Report();
}

absl::StatusOr<CheckedRun> CheckTraceRun(CallContext& context, const v1::RunTraceRequest& request) {
  QG_ASSIGN_OR_RETURN(TracePlan plan, CheckTrace(context, request));
  const size_t variants = plan.variants.size();
  std::string summary =
      absl::StrCat("trace of ", plan.step_count(), plan.step_count() == 1 ? " step" : " steps",
                   " x ", variants, variants == 1 ? " variant" : " variants");
  Device* const device = plan.device;
  return CheckedRun{
      std::move(summary), device,
      [&context, plan = std::move(plan)](RunPlace place) mutable -> std::unique_ptr<RunWork> {
        return std::make_unique<TraceExecution>(context, std::move(plan), std::move(place));
      }};
}

}  // namespace quantgate
