#include "kernels/validate/scenarios/rank_session_subject.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/parallel_subject.h"
#include "kernels/validate/scenarios/session_subject.h"

namespace quantgate {

SessionSpec RankSession::Placed(SessionSpec spec) const {
  if (spec.parallel.has_value())
    spec.parallel->backend = context_.RankBackend(spec.parallel->size());
  return spec;
}

void RankSession::Keep(const SessionSpec& spec, absl::StatusOr<std::unique_ptr<Session>> session) {
  context_.ExpectCode("session", session.status(), absl::StatusCode::kOk);
  session_ = session.ok() ? *std::move(session) : nullptr;
  if (!spec.parallel.has_value()) return;
  context_.NoteWorld(
      spec.parallel->size(),
      {spec.parallel->backend, std::string(CollectiveBackendName(spec.parallel->backend))});
}

absl::Status RankSession::Open(const SessionSpec& spec,
                               const std::map<std::string, Tensor>& parameters) {
  std::map<std::string, Tensor> on_engine;
  for (const auto& [name, tensor] : parameters) {
    QG_ASSIGN_OR_RETURN(on_engine[name], context_.ToEngine(tensor));
  }
  const SessionSpec placed = Placed(spec);
  Keep(placed,
       OpenSession(context_.engine(), placed, on_engine, &setting_, context_.cancellation()));
  return absl::OkStatus();
}

absl::Status RankSession::GoOnAs(const SessionSpec& spec) {
  if (has_parted()) return absl::OkStatus();
  const absl::StatusOr<TensorFile> file = session_->Checkpoint(context_.cancellation());
  context_.ExpectCode("checkpoint", file.status(), absl::StatusCode::kOk);
  if (!file.ok()) return absl::OkStatus();
  const SessionSpec placed = Placed(spec);
  Keep(placed,
       RestoreSession(context_.engine(), placed, *file, &setting_, context_.cancellation()));
  return absl::OkStatus();
}

absl::Status RankSession::Compare(const std::string& call,
                                  const absl::StatusOr<SessionStepResult>& result,
                                  const ExpectedOutputs& expected) {
  context_.ExpectCode(call, result.status(), absl::StatusCode::kOk);
  if (!result.ok()) return absl::OkStatus();
  ExpectSavedUnchanged(context_, *result);
  for (const RankStepRecords& rank : result->ranks) ExpectSavedUnchanged(context_, rank.records);
  context_.ExpectSameText("what ranks have alike", absl::StrJoin(result->rank_differences, ", "),
                          "");
  QG_ASSIGN_OR_RETURN(const NamedOutputs outputs, expected());
  return ExpectSameOutputs(context_, "", OutputsOf(*result), outputs);
}

absl::Status RankSession::Forward(const ForwardStep& step, const ExpectedOutputs& expected) {
  if (has_parted()) return absl::OkStatus();
  ForwardStep on_engine = step;
  QG_ASSIGN_OR_RETURN(on_engine.x, context_.ToEngine(step.x));
  return Compare("forward", session_->Forward(on_engine, context_.cancellation()), expected);
}

absl::Status RankSession::Backward(const BackwardStep& step, const ExpectedOutputs& expected) {
  if (has_parted()) return absl::OkStatus();
  BackwardStep on_engine = step;
  QG_ASSIGN_OR_RETURN(on_engine.grad_output, context_.ToEngine(step.grad_output));
  return Compare("backward", session_->Backward(on_engine, context_.cancellation()), expected);
}

absl::Status RankSession::Optimize() {
  if (has_parted()) return absl::OkStatus();
  context_.ExpectCode("optimizer", session_->Optimize({}, context_.cancellation()).status(),
                      absl::StatusCode::kOk);
  return absl::OkStatus();
}

std::vector<WeightStorage> StoragesByHand(const Recipe& recipe) {
  const bool has_codes = recipe.QuantizerFor(TensorRole::kWeight).rowwise.is_quantized();
  if (recipe.is_delayed() || !has_codes) return {WeightStorage::kHighPrecision};
  return {WeightStorage::kHighPrecision, WeightStorage::kQuantized};
}

absl::StatusOr<NamedOutputs> SumsOf(const std::vector<NamedOutputs>& parts) {
  NamedOutputs sums;
  for (const auto& [name, first] : parts[0]) {
    std::vector<Tensor> of_name;
    for (const NamedOutputs& part : parts) of_name.push_back(part.at(name));
    QG_ASSIGN_OR_RETURN(sums[name], SumInOrder(of_name));
  }
  return sums;
}

CopiesByHand::CopiesByHand(Engine& reference, const SessionSpec& spec,
                           const std::map<std::string, Tensor>& parameters, int copies)
    : reference_(reference),
      copies_(static_cast<size_t>(copies), NetworkByHand(reference, spec, parameters)) {
  for (NetworkByHand& copy : copies_) copy.LeaveUpdates();
}

void CopiesByHand::DrawAsOneOf(uint32_t place, uint32_t count) {
  for (NetworkByHand& copy : copies_) copy.DrawAsOneOf(place, count);
}

void CopiesByHand::GoOnAs(int copies) {
  std::vector<NetworkByHand> next(static_cast<size_t>(copies), copies_[0]);
  copies_.swap(next);
}

void CopiesByHand::UpdateHistories(bool of_gradients) {
  for (const auto& [name, history] : copies_[0].histories()) {
    if (absl::EndsWith(name, ".grad_output") != of_gradients) continue;
    float amax = 0;
    for (NetworkByHand& copy : copies_) {
      amax = std::max(amax, copy.histories().at(name).history()[0]);
    }
    for (NetworkByHand& copy : copies_) {
      copy.histories().at(name).NoteCast(amax);
      copy.histories().at(name).Update();
    }
  }
}

absl::StatusOr<NamedOutputs> CopiesByHand::Forward(const ForwardStep& step) {
  std::vector<Tensor> rows;
  for (int copy = 0; copy < count(); ++copy) {
    QG_ASSIGN_OR_RETURN(const Tensor x, RowPart(step.x, copy, count()));
    QG_ASSIGN_OR_RETURN(rows.emplace_back(),
                        copies_[static_cast<size_t>(copy)].Forward(step.microbatch, x, step.train));
  }
  if (step.train) UpdateHistories(false);
  NamedOutputs outputs;
  QG_ASSIGN_OR_RETURN(outputs["y"], reference_.ConcatenateRows(rows, nullptr));
  return outputs;
}

absl::StatusOr<NamedOutputs> CopiesByHand::Backward(const BackwardStep& step) {
  std::vector<Tensor> rows;
  std::vector<NamedOutputs> gradients;
  for (int copy = 0; copy < count(); ++copy) {
    QG_ASSIGN_OR_RETURN(const Tensor dy, RowPart(step.grad_output, copy, count()));
    QG_ASSIGN_OR_RETURN(NamedOutputs outputs,
                        copies_[static_cast<size_t>(copy)].Backward(step.microbatch, dy));
    rows.push_back(outputs.at("dx"));
    outputs.erase("dx");
    gradients.push_back(std::move(outputs));
  }
  UpdateHistories(true);
  QG_ASSIGN_OR_RETURN(NamedOutputs outputs, SumsOf(gradients));
  QG_ASSIGN_OR_RETURN(outputs["dx"], reference_.ConcatenateRows(rows, nullptr));
  return outputs;
}

absl::Status CopiesByHand::Optimize() {
  std::vector<NamedOutputs> gradients;
  for (const NetworkByHand& copy : copies_) gradients.push_back(copy.gradients());
  QG_ASSIGN_OR_RETURN(const NamedOutputs sums, SumsOf(gradients));
  for (NetworkByHand& copy : copies_) {
    copy.ReplaceGradients(sums);
    QG_RETURN_IF_ERROR(copy.Optimize());
  }
  return absl::OkStatus();
}

}  // namespace quantgate
