#include "server/sessions/trace_diagnosis.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// The tensors of these names that the session has, by the names beside them.
absl::StatusOr<std::map<std::string, Tensor>> FindHeld(
    Session& session, const std::vector<std::pair<std::string, std::string>>& names,
    const Cancellation* cancellation) {
  std::map<std::string, Tensor> held;
  for (const auto& [name, as] : names) {
    absl::StatusOr<Tensor> tensor = session.Find(name, cancellation);
    if (absl::IsNotFound(tensor.status())) continue;
    QG_RETURN_IF_ERROR(tensor.status());
    held[as] = *std::move(tensor);
  }
  return held;
}

std::string WithWord(const std::string& parameter, const std::string& word) {
  ParameterName name = ParameterName::Parse(parameter);
  name.word = word;
  return name.Text();
}

bool IsWeight(const std::string& parameter) {
  return ParameterName::Parse(parameter).word == "weight";
}

}  // namespace

absl::Status TraceDiagnoser::BeforeForward(const SessionStep& step, Session& session,
                                           const SessionSpec& spec,
                                           const Cancellation* cancellation) {
  const ForwardStep& forward = step.forward;
  read_["x"] = forward.x;
  if (!forward.train) over_ = forward.microbatch;
  if (spec.parallel.has_value()) {
    why_not_ = "a session on several ranks is not taken again";
    return absl::OkStatus();
  }
  if (!keeps_forwards_) return absl::OkStatus();
  Moment moment{{spec, {}, forward, {}, std::move(scales_), 0}, session.RestorePoint()};
  moment.steps.spec.recipe = session.recipe();
  scales_.clear();
  if (session.recipe().is_delayed()) {
    std::vector<std::pair<std::string, std::string>> names;
    for (const std::string& parameter : parameters_) {
      if (!IsWeight(parameter)) continue;
      for (const char* const word : {"input", "weight", "grad_output"}) {
        const std::string state = WithWord(parameter, word);
        names.emplace_back(state + ".scale", state);
      }
    }
    QG_ASSIGN_OR_RETURN(scales_, FindHeld(session, names, cancellation));
    // A state that the session does not have yet begins as a fresh one.
    QG_ASSIGN_OR_RETURN(const DelayedScalingState fresh, FreshDelayedScaling(1));
    for (const auto& [name, state] : names) scales_.try_emplace(state, fresh.scale);
  }
  last_ = &moments_.insert_or_assign(forward.microbatch, std::move(moment)).first->second;
  return absl::OkStatus();
}

absl::Status TraceDiagnoser::BeforeBackward(const SessionStep& step, Session& session,
                                            const SessionSpec& spec,
                                            const Cancellation* cancellation) {
  read_["grad_output"] = step.forward.x;
  over_ = step.microbatch;
  if (spec.main_grads && !spec.parallel.has_value()) {
    std::vector<std::pair<std::string, std::string>> names;
    for (const std::string& parameter : parameters_) {
      if (IsWeight(parameter)) names.emplace_back(WithWord(parameter, "main_grad"), parameter);
    }
    QG_ASSIGN_OR_RETURN(main_grads_, FindHeld(session, names, cancellation));
  }
  const auto moment = moments_.find(step.microbatch);
  if (moment == moments_.end()) {
    why_not_ = spec.parallel.has_value() ? "a session on several ranks is not taken again"
                                         : "its forward was taken by another session";
    return absl::OkStatus();
  }
  read_["x"] = moment->second.steps.forward.x;
  moment->second.steps.backward =
      BackwardStep{step.microbatch, step.forward.x, step.forward.x_codes};
  last_ = &moment->second;
  return absl::OkStatus();
}

absl::Status TraceDiagnoser::Before(const SessionStep& step, Session& session,
                                    const SessionSpec& spec, bool is_judged,
                                    const Cancellation* cancellation) {
  moments_.erase(over_);
  over_.clear();
  last_ = nullptr;
  why_not_ = "only a forward and a backward are taken again";
  read_.clear();
  main_grads_.clear();
  switch (step.kind) {
    case SessionStep::Kind::kTrain:
    case SessionStep::Kind::kEvaluate:
    case SessionStep::Kind::kRecompute:
      return BeforeForward(step, session, spec, cancellation);
    case SessionStep::Kind::kBackward:
      return BeforeBackward(step, session, spec, cancellation);
    default:
      break;
  }
  if (!is_judged) return absl::OkStatus();
  std::vector<std::pair<std::string, std::string>> names;
  for (const std::string& parameter : parameters_) {
    names.emplace_back(parameter, absl::StrCat(parameter, " before the step"));
  }
  QG_ASSIGN_OR_RETURN(read_, FindHeld(session, names, cancellation));
  return absl::OkStatus();
}

void TraceDiagnoser::Restarted() {
  moments_.clear();
  last_ = nullptr;
  why_not_ = "a restart is not taken again";
  read_.clear();
  main_grads_.clear();
  scales_.clear();
}

absl::StatusOr<LayerCase> TraceDiagnoser::CaseOf(Engine& engine, Session& session,
                                                 const std::vector<NamedTensor>& outputs,
                                                 const std::vector<NamedTensor>& subjects,
                                                 const Cancellation* cancellation) const {
  LayerCase of;
  const auto add = [&](const std::string& name, const Tensor& tensor,
                       TensorsByName& to) -> absl::Status {
    QG_ASSIGN_OR_RETURN(to[name], engine.ToHost(tensor, cancellation));
    return absl::OkStatus();
  };
  for (const NamedTensor& output : outputs) {
    QG_RETURN_IF_ERROR(add(output.name, output.tensor, of.expected));
  }
  for (const NamedTensor& subject : subjects) {
    QG_RETURN_IF_ERROR(add(subject.name, subject.tensor, of.subject));
  }
  for (const auto& [name, tensor] : read_) QG_RETURN_IF_ERROR(add(name, tensor, of.operands));
  for (const auto& [name, tensor] : main_grads_) {
    QG_RETURN_IF_ERROR(add(name, tensor, of.main_grads));
  }
  // The outputs of an update are the parameters.
  for (const std::string& parameter : parameters_) {
    if (of.expected.contains(parameter)) continue;
    QG_ASSIGN_OR_RETURN(const Tensor tensor, session.Find(parameter, cancellation));
    QG_RETURN_IF_ERROR(add(parameter, tensor, of.operands));
  }
  return of;
}

absl::StatusOr<Diagnosis> TraceDiagnoser::Diagnose(Engine& engine, Session& session,
                                                   const std::vector<NamedTensor>& outputs,
                                                   const std::vector<NamedTensor>& subjects,
                                                   int64_t bytes_max,
                                                   const Cancellation* cancellation,
                                                   const DiagnosisBudget& budget) const {
  QG_ASSIGN_OR_RETURN(const LayerCase of, CaseOf(engine, session, outputs, subjects, cancellation));
  if (last_ == nullptr) {
    UnknownLayer model;
    QG_ASSIGN_OR_RETURN(Diagnosis diagnosis, DiagnoseLayer(of, model, budget));
    diagnosis.not_tried.push_back(absl::StrCat("the step under a mistake (", why_not_, ")"));
    return diagnosis;
  }
  SessionSteps steps = last_->steps;
  steps.bytes_max = bytes_max;
  for (auto& [state, scale] : steps.earlier_scales) {
    QG_ASSIGN_OR_RETURN(scale, engine.ToHost(scale, cancellation));
  }
  steps.before = [&]() -> absl::StatusOr<TensorFile> {
    const absl::Cleanup return_to_now = session.RestorePoint();
    last_->go_back();
    return session.Checkpoint(cancellation);
  };
  SessionModel model(engine, std::move(steps), of.expected, cancellation, budget);
  return DiagnoseLayer(of, model, budget);
}

}  // namespace quantgate
