#include "kernels/validate/diagnosis/session_model.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/diagnosis/engine_model.h"

namespace quantgate {
namespace {

Tensor* FindTensor(TensorFile& file, const std::string& name) {
  const auto found = std::find_if(file.tensors.begin(), file.tensors.end(),
                                  [&](const NamedTensor& tensor) { return tensor.name == name; });
  return found == file.tensors.end() ? nullptr : &found->tensor;
}

/// A hypothesis for which there is no room is one that is not tried.
absl::Status WithoutRoom(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::UnimplementedError(
      absl::StrCat("no room for a copy of the session: ", status.message()));
}

}  // namespace

SessionModel::SessionModel(Engine& engine, SessionSteps steps, const TensorsByName& expected,
                           const Cancellation* caller, const DiagnosisBudget& budget)
    : engine_(engine),
      steps_(std::move(steps)),
      expected_(expected),
      caller_(caller),
      end_(caller == nullptr ? budget.end() : std::min(caller->deadline(), budget.end())) {}

absl::Status SessionModel::ReadBefore() {
  if (!before_.has_value()) before_ = steps_.before();
  if (absl::IsFailedPrecondition(before_->status())) {
    return absl::UnimplementedError(
        absl::StrCat("the session before it cannot be copied: ", before_->status().message()));
  }
  return WithoutRoom(before_->status());
}

absl::Status SessionModel::Put(const LayerChange& change, TensorFile& file,
                               SessionSteps& steps) const {
  for (const auto& [name, tensor] : change.operands) {
    Tensor* place = FindTensor(file, name);
    const QuantizedTensor* codes = nullptr;
    if (name == "x") {
      place = &steps.forward.x;
      codes = &steps.forward.x_codes;
    } else if (name == "grad_output" && steps.backward.has_value()) {
      place = &steps.backward->grad_output;
      codes = &steps.backward->codes;
    }
    if (place == nullptr || (codes != nullptr && codes->has_codes())) {
      return absl::UnimplementedError(absl::StrCat(name, " is held as codes"));
    }
    *place = tensor;
  }
  for (const std::string& state : change.earlier_scales) {
    Tensor* const place = FindTensor(file, state + ".scale");
    const auto earlier = steps.earlier_scales.find(state);
    if (place == nullptr || earlier == steps.earlier_scales.end()) {
      return absl::UnimplementedError(absl::StrCat(state, " has no earlier scale"));
    }
    *place = earlier->second;
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorsByName> SessionModel::TakeSteps(const LayerChange& change) {
  QG_RETURN_IF_ERROR(ReadBefore());
  TensorFile file = **before_;
  SessionSteps steps = steps_;
  QG_RETURN_IF_ERROR(Put(change, file, steps));
  const auto take = [&]() -> absl::StatusOr<std::vector<NamedTensor>> {
    QG_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                        RestoreSession(engine_, steps.spec, file, nullptr, &end_));
    if (session->bytes() > steps.bytes_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "it holds ", session->bytes(), " bytes, and ", steps.bytes_max, " are left"));
    }
    session->LimitBytes(steps.bytes_max);
    if (!change.recipe.empty()) {
      QG_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse(change.recipe));
      QG_RETURN_IF_ERROR(session->ChangeRecipe(recipe, &end_));
    }
    QG_ASSIGN_OR_RETURN(SessionStepResult result, session->Forward(steps.forward, &end_));
    if (steps.backward.has_value()) {
      QG_ASSIGN_OR_RETURN(result, session->Backward(*steps.backward, &end_));
    }
    return std::move(result.outputs);
  };
  const absl::StatusOr<std::vector<NamedTensor>> outputs = take();
  QG_RETURN_IF_ERROR(WithoutRoom(outputs.status()));
  return OutputsWithin(change.scope, *outputs, expected_, engine_, &end_);
}

absl::Status SessionModel::CheckRepeats() {
  if (repeats_.has_value()) return *repeats_;
  const absl::StatusOr<TensorsByName> again = TakeSteps({});
  if (!again.ok()) {
    if (!absl::IsDeadlineExceeded(again.status())) repeats_ = again.status();
    return again.status();
  }
  const bool repeats = std::all_of(expected_.begin(), expected_.end(), [&](const auto& expected) {
    const auto found = again->find(expected.first);
    return found != again->end() && found->second.dtype() == expected.second.dtype() &&
           found->second.shape() == expected.second.shape() &&
           HaveSameBytes(found->second, expected.second);
  });
  repeats_ = repeats ? absl::OkStatus()
                     : absl::UnimplementedError(
                           "the step, taken again by itself, does not give "
                           "its own bits");
  return *repeats_;
}

absl::StatusOr<TensorsByName> SessionModel::Compute(const LayerChange& change) {
  if (caller_ != nullptr) QG_RETURN_IF_ERROR(caller_->Check());
  const bool is_linear =
      steps_.spec.layers.size() == 1 && steps_.spec.layers[0].spec.kind == LayerKind::kLinear;
  if (change.scope == ChangeScope::kSlope || (change.scope != ChangeScope::kAll && !is_linear)) {
    return absl::UnimplementedError("a part of these layers' backward cannot be changed alone");
  }
  if (!change.activation.empty()) {
    return absl::UnimplementedError("a session's activations cannot be changed");
  }
  QG_RETURN_IF_ERROR(CheckRepeats());
  return TakeSteps(change);
}

std::vector<std::string> SessionModel::Activations() const {
  std::set<std::string> names;
  for (const SessionLayer& layer : steps_.spec.layers) {
    for (std::string& name : OtherActivations(layer.spec)) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> SessionModel::Recipes() const { return OtherRecipes(steps_.spec.recipe); }

std::vector<std::string> SessionModel::EarlierScales() {
  std::vector<std::string> states;
  if (steps_.earlier_scales.empty() || !ReadBefore().ok()) return states;
  TensorFile& file = **before_;
  for (const auto& [state, scale] : steps_.earlier_scales) {
    const Tensor* const now = FindTensor(file, state + ".scale");
    if (now != nullptr && !HaveSameBytes(*now, scale)) states.push_back(state);
  }
  return states;
}

}  // namespace quantgate
