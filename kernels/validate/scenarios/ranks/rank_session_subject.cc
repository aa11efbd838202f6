#include "kernels/validate/scenarios/ranks/rank_session_subject.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/sessions/session_subject.h"

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

absl::Status RankSession::ResumeAs(const SessionSpec& spec) {
  if (has_diverged()) return absl::OkStatus();
  const absl::StatusOr<TensorFile> file = session_->Checkpoint(context_.cancellation());
  context_.ExpectCode("checkpoint", file.status(), absl::StatusCode::kOk);
  if (!file.ok()) return absl::OkStatus();
  const SessionSpec placed = Placed(spec);
  Keep(placed,
       RestoreSession(context_.engine(), placed, *file, &setting_, context_.cancellation()));
  return ExpectSameCheckpoint(*file);
}

std::string RankSession::MetadataText(const TensorFile& file) {
  return absl::StrJoin(file.metadata, ", ", absl::PairFormatter(": "));
}

absl::Status RankSession::ExpectSameCheckpoint(const TensorFile& file) {
  if (session_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<TensorFile> again = session_->Checkpoint(context_.cancellation());
  context_.ExpectCode("checkpoint of what went on", again.status(), absl::StatusCode::kOk);
  if (!again.ok()) return absl::OkStatus();
  context_.ExpectSameText("checkpoint metadata", MetadataText(*again), MetadataText(file));
  NamedOutputs subject, expected;
  for (const NamedTensor& tensor : again->tensors) subject[tensor.name] = tensor.tensor;
  for (const NamedTensor& tensor : file.tensors) expected[tensor.name] = tensor.tensor;
  return ExpectSameOutputs(context_, "checkpoint ", subject, expected);
}

bool RankSession::Accept(const std::string& call, const absl::StatusOr<SessionStepResult>& result) {
  context_.ExpectCode(call, result.status(), absl::StatusCode::kOk);
  if (!result.ok()) return false;
  ExpectSavedUnchanged(context_, *result);
  for (const RankStepRecords& rank : result->ranks) ExpectSavedUnchanged(context_, rank.records);
  context_.ExpectSameText("what ranks have alike", absl::StrJoin(result->rank_differences, ", "),
                          "");
  return true;
}

absl::Status RankSession::Forward(const ForwardStep& step, const ExpectedOutputs& expected) {
  if (has_diverged()) return absl::OkStatus();
  ForwardStep on_engine = step;
  QG_ASSIGN_OR_RETURN(on_engine.x, context_.ToEngine(step.x));
  const auto result = session_->Forward(on_engine, context_.cancellation());
  if (!Accept("forward", result)) return absl::OkStatus();
  if (step.defer_wgrad) deferred_.insert(step.microbatch);
  QG_ASSIGN_OR_RETURN(const NamedOutputs outputs, expected());
  return ExpectSameOutputs(context_, "", OutputsOf(*result), outputs);
}

absl::Status RankSession::Backward(const BackwardStep& step, const ExpectedOutputs& expected) {
  if (has_diverged()) return absl::OkStatus();
  BackwardStep on_engine = step;
  QG_ASSIGN_OR_RETURN(on_engine.grad_output, context_.ToEngine(step.grad_output));
  const auto result = session_->Backward(on_engine, context_.cancellation());
  if (!Accept("backward", result)) return absl::OkStatus();
  NamedOutputs subject = OutputsOf(*result);
  if (deferred_.erase(step.microbatch) > 0) {
    const auto wgrad = session_->Wgrad(context_.cancellation());
    if (!Accept("wgrad", wgrad)) return absl::OkStatus();
    subject.merge(OutputsOf(*wgrad));
  }
  QG_ASSIGN_OR_RETURN(const NamedOutputs outputs, expected());
  return ExpectSameOutputs(context_, "", subject, outputs);
}

absl::Status RankSession::OffloadAndReload(const std::string& microbatch) {
  if (has_diverged()) return absl::OkStatus();
  context_.ExpectCode("offload", session_->Offload(microbatch, context_.cancellation()),
                      absl::StatusCode::kOk);
  context_.ExpectCode("reload", session_->Reload(microbatch, context_.cancellation()),
                      absl::StatusCode::kOk);
  return absl::OkStatus();
}

absl::Status RankSession::Optimize() {
  if (has_diverged()) return absl::OkStatus();
  context_.ExpectCode("optimizer", session_->Optimize({}, context_.cancellation()).status(),
                      absl::StatusCode::kOk);
  return absl::OkStatus();
}

SessionSpec DividedOverCopies(SessionSpec spec, CopyDivision division) {
  if (!spec.parallel.has_value()) return spec;
  spec.parallel->fully_sharded = division == CopyDivision::kRows;
  spec.parallel->distributed_optimizer = division == CopyDivision::kElements;
  return spec;
}

namespace {

/// Updates the histories of all networks by the maxima over them: those of grad_output if
/// `of_gradients`, else the others.
void UpdateHistoriesOf(const std::vector<NetworkByHand*>& networks, bool of_gradients) {
  for (const auto& [name, history] : networks[0]->histories()) {
    if (absl::EndsWith(name, ".grad_output") != of_gradients) continue;
    float amax = 0;
    for (NetworkByHand* network : networks) {
      amax = std::max(amax, network->histories().at(name).history()[0]);
    }
    for (NetworkByHand* network : networks) {
      network->histories().at(name).NoteCast(amax);
      network->histories().at(name).Update();
    }
  }
}

}  // namespace

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
  for (NetworkByHand& copy : copies_) copy.SkipHistoryUpdates();
}

void CopiesByHand::DrawAsOneOf(uint32_t place, uint32_t count) {
  for (NetworkByHand& copy : copies_) copy.DrawAsOneOf(place, count);
}

void CopiesByHand::TakeAmaxesOf(TensorRole role, const Tensor& whole) {
  for (NetworkByHand& copy : copies_) copy.TakeAmaxesOf(role, whole);
}

void CopiesByHand::ResumeAs(int copies) {
  std::vector<NetworkByHand> next(static_cast<size_t>(copies), copies_[0]);
  copies_.swap(next);
}

std::vector<NetworkByHand*> CopiesByHand::networks() {
  std::vector<NetworkByHand*> networks;
  for (NetworkByHand& copy : copies_) networks.push_back(&copy);
  return networks;
}

absl::StatusOr<NamedOutputs> CopiesByHand::Forward(const ForwardStep& step) {
  if (shares_amaxes_) TakeAmaxesOf(TensorRole::kInput, step.x);
  std::vector<Tensor> rows;
  for (int copy = 0; copy < count(); ++copy) {
    QG_ASSIGN_OR_RETURN(const Tensor x, RowPart(step.x, copy, count()));
    QG_ASSIGN_OR_RETURN(rows.emplace_back(),
                        copies_[static_cast<size_t>(copy)].Forward(step.microbatch, x, step.train));
  }
  if (step.train && !skips_history_updates_) UpdateHistoriesOf(networks(), false);
  NamedOutputs outputs;
  QG_ASSIGN_OR_RETURN(outputs["y"], reference_.ConcatenateRows(rows, nullptr));
  return outputs;
}

absl::StatusOr<NamedOutputs> CopiesByHand::Backward(const BackwardStep& step) {
  if (shares_amaxes_) TakeAmaxesOf(TensorRole::kGradOutput, step.grad_output);
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
  if (!skips_history_updates_) UpdateHistoriesOf(networks(), true);
  QG_ASSIGN_OR_RETURN(NamedOutputs outputs, SumsOf(gradients));
  QG_ASSIGN_OR_RETURN(outputs["dx"], reference_.ConcatenateRows(rows, nullptr));
  return outputs;
}

PlacesByHand::PlacesByHand(Engine& reference, const SessionSpec& spec,
                           const std::map<std::string, Tensor>& parameters, int copies)
    : reference_(reference), mode_(spec.layers[0].spec.parallel_mode) {
  const int count = spec.parallel->tensor_parallel;
  for (int place = 0; place < count; ++place) {
    std::map<std::string, Tensor> parts;
    for (const auto& [name, whole] : parameters) {
      const int dim = is_column() ? 0 : 1;
      const int64_t width = whole.shape()[static_cast<size_t>(dim)] / count;
      parts[name] = reference.Slice(whole, dim, place * width, width, nullptr).value();
    }
    places_.emplace_back(reference, spec, parts, copies);
    places_.back().SkipHistoryUpdates();
  }
}

void PlacesByHand::UpdateHistories(bool of_gradients) {
  std::vector<NetworkByHand*> all;
  for (CopiesByHand& place : places_) {
    const std::vector<NetworkByHand*> copies = place.networks();
    all.insert(all.end(), copies.begin(), copies.end());
  }
  UpdateHistoriesOf(all, of_gradients);
}

absl::StatusOr<Tensor> PlacesByHand::ColumnsOf(const Tensor& whole, size_t place) const {
  const int64_t width = whole.columns() / static_cast<int64_t>(places_.size());
  return reference_.Slice(whole, 1, static_cast<int64_t>(place) * width, width, nullptr);
}

absl::StatusOr<Tensor> PlacesByHand::JoinColumns(const std::vector<NamedOutputs>& parts,
                                                 const std::string& name) const {
  std::vector<Tensor> columns;
  for (const NamedOutputs& part : parts) columns.push_back(part.at(name));
  return reference_.ConcatenateColumns(columns, nullptr);
}

absl::StatusOr<Tensor> PlacesByHand::JoinRows(const std::vector<NamedOutputs>& parts,
                                              const std::string& name) const {
  std::vector<Tensor> rows;
  for (const NamedOutputs& part : parts) rows.push_back(part.at(name));
  return reference_.ConcatenateRows(rows, nullptr);
}

void PlacesByHand::ShareAmaxes() {
  shares_amaxes_ = true;
  for (CopiesByHand& place : places_) place.ShareAmaxes();
}

absl::Status PlacesByHand::ShareAmaxOfWeight() {
  std::vector<Tensor> parts;
  for (const CopiesByHand& place : places_) {
    QG_ASSIGN_OR_RETURN(parts.emplace_back(), place.WeightSource("fc.weight"));
  }
  QG_ASSIGN_OR_RETURN(const Tensor whole, is_column()
                                              ? reference_.ConcatenateRows(parts, nullptr)
                                              : reference_.ConcatenateColumns(parts, nullptr));
  for (CopiesByHand& place : places_) place.TakeAmaxesOf(TensorRole::kWeight, whole);
  return absl::OkStatus();
}

absl::StatusOr<NamedOutputs> PlacesByHand::Forward(const ForwardStep& step) {
  if (shares_amaxes_) QG_RETURN_IF_ERROR(ShareAmaxOfWeight());
  std::vector<NamedOutputs> parts;
  for (size_t place = 0; place < places_.size(); ++place) {
    ForwardStep own = step;
    if (!is_column()) {
      QG_ASSIGN_OR_RETURN(own.x, ColumnsOf(step.x, place));
    }
    QG_ASSIGN_OR_RETURN(parts.emplace_back(), places_[place].Forward(own));
  }
  if (step.train) UpdateHistories(false);
  if (!is_column()) return SumsOf(parts);
  QG_ASSIGN_OR_RETURN(const Tensor y, JoinColumns(parts, "y"));
  return NamedOutputs{{"y", y}};
}

absl::StatusOr<NamedOutputs> PlacesByHand::Backward(const BackwardStep& step) {
  std::vector<NamedOutputs> parts;
  std::vector<Tensor> dx;
  for (size_t place = 0; place < places_.size(); ++place) {
    BackwardStep own = step;
    if (is_column()) {
      QG_ASSIGN_OR_RETURN(own.grad_output, ColumnsOf(step.grad_output, place));
    }
    QG_ASSIGN_OR_RETURN(parts.emplace_back(), places_[place].Backward(own));
    dx.push_back(parts.back().at("dx"));
  }
  UpdateHistories(true);
  NamedOutputs outputs;
  for (const auto& [name, first] : parts[0]) {
    QG_ASSIGN_OR_RETURN(outputs[name],
                        is_column() ? JoinRows(parts, name) : JoinColumns(parts, name));
  }
  if (is_column()) {
    QG_ASSIGN_OR_RETURN(outputs["dx"], SumInOrder(dx));
  }
  return outputs;
}

absl::Status PlacesByHand::Optimize() {
  for (CopiesByHand& place : places_) QG_RETURN_IF_ERROR(place.Optimize());
  return absl::OkStatus();
}

void PlacesByHand::DrawAsOneOf(uint32_t place, uint32_t count) {
  for (CopiesByHand& part : places_) part.DrawAsOneOf(place, count);
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
