#include "kernels/training/session_experts.h"

#include <span>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/layer/experts/grouped_run.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {
namespace {

template <typename Value>
void Rename(int64_t offset, std::map<std::string, Value>& by_name) {
  std::map<std::string, Value> renamed;
  for (auto& [name, value] : by_name) renamed[WithExpertOfWhole(name, offset)] = std::move(value);
  by_name = std::move(renamed);
}

/// Adds `offset` to every expert's number.
LayerState Renamed(LayerState state, int64_t offset) {
  Rename(offset, state.parameters);
  Rename(offset, state.delayed);
  Rename(offset, state.workspaces);
  Rename(offset, state.main_grads);
  return state;
}

/// What a rank's experts keep for later steps, under the names of the whole layer.
class ExpertsSaved : public LayerSaved {
 public:
  ExpertsSaved(ExpertSaved experts, int64_t first) : experts_(std::move(experts)), first_(first) {}

  const StepOptions& options() const override { return experts_.saved->options(); }
  std::vector<SavedPart> parts() override {
    std::vector<SavedPart> parts = experts_.saved->parts();
    for (SavedPart& part : parts) {
      // "weight.0.columnwise_data"
      const size_t dot = part.name.rfind('.');
      part.name = WithExpertOfWhole(part.name.substr(0, dot), first_) + part.name.substr(dot);
    }
    return parts;
  }
  std::vector<HeldOperand> operands() const override {
    std::vector<HeldOperand> operands = experts_.saved->operands();
    for (HeldOperand& held : operands) held.name = WithExpertOfWhole(held.name, first_);
    return operands;
  }
  int64_t bytes() const override { return experts_.saved->bytes(); }
  std::unique_ptr<LayerSaved> Clone() const override {
    return std::make_unique<ExpertsSaved>(
        ExpertSaved{experts_.plan, experts_.layer, experts_.saved->Clone()}, first_);
  }

  ExpertSaved Take() { return std::move(experts_); }

 private:
  ExpertSaved experts_;
  int64_t first_;
};

absl::StatusOr<ExpertSaved> TakeExperts(LayerSaved* given) {
  auto* const saved = dynamic_cast<ExpertsSaved*>(given);
  if (saved == nullptr) {
    return RefusePrecondition("saved", "of another step", "must be what experts left");
  }
  return saved->Take();
}

void NameGradients(int64_t first, std::vector<NamedTensor>& gradients) {
  for (NamedTensor& gradient : gradients) gradient.name = WithExpertOfWhole(gradient.name, first);
}

/// A grouped_linear with the rows of this rank's copy, if the ranks of a copy do not divide
/// experts.
std::optional<LayerSpec> SpecOfCopy(const SessionSpec& spec, size_t layer,
                                    const SessionRank* rank) {
  const LayerSpec& whole = spec.layers[layer].spec;
  if (rank == nullptr || !whole.traits().has_experts) return std::nullopt;
  if (DividesExperts(spec, layer) || !RoutesRows(spec)) return std::nullopt;
  const ParallelSpec& parallel = *spec.parallel;
  return LayerOfCopy(whole, parallel.data_parallel, rank->index / parallel.tensor_parallel);
}

/// Calls `visit` with each map by parameter or state of a layer.
template <typename Visitor>
void VisitMaps(SessionLayerState& layer, Visitor visit) {
  visit([](SessionLayerState & of) -> auto& { return of.state.parameters; });
  visit([](SessionLayerState & of) -> auto& { return of.state.delayed; });
  visit([](SessionLayerState & of) -> auto& { return of.state.workspaces; });
  visit([](SessionLayerState & of) -> auto& { return of.state.main_grads; });
  visit([](SessionLayerState & of) -> auto& { return of.trained; });
}

}  // namespace

LayerOnRank::LayerOnRank(const SessionSpec& spec, size_t layer, const SessionRank* rank)
    : whole_(spec.layers[layer].spec),
      of_copy_(SpecOfCopy(spec, layer, rank)),
      divides_weights_(DividesExpertWeights(spec, layer)),
      rank_(rank != nullptr && DividesExperts(spec, layer) ? rank : nullptr) {
  if (rank_ == nullptr) return;
  const ParallelSpec& parallel = *spec.parallel;
  place_ = static_cast<size_t>(rank_->index % parallel.expert_parallel);
  const int copy = rank_->index / parallel.expert_parallel;
  division_ =
      DivideExperts(LayerOfCopy(whole_, parallel.data_parallel, copy), parallel.expert_parallel);
}

absl::StatusOr<Tensor> LayerOnRank::Gathered(StepRecorder& recorder, const ParallelStep* parallel,
                                             ParallelMode mode, const Tensor& own) const {
  if (!divides_weights_ || whole_.parallel_mode != mode) return own;
  const char* const what = mode == ParallelMode::kColumn ? "x" : "grad_output";
  return GatherForExperts(recorder, *parallel, what, own);
}

absl::Status LayerOnRank::Sum(StepRecorder& recorder, const ParallelStep* parallel,
                              ParallelMode mode, Tensor& partial) const {
  if (!divides_weights_ || whole_.parallel_mode != mode || !partial.has_value()) {
    return absl::OkStatus();
  }
  const char* const what = mode == ParallelMode::kColumn ? "dx" : "y";
  QG_ASSIGN_OR_RETURN(partial, SumOfExperts(recorder, *parallel, what, partial));
  return absl::OkStatus();
}

absl::StatusOr<ForwardResult> LayerOnRank::Forward(StepRecorder& recorder, LayerState& state,
                                                   const StepOperand& x,
                                                   const StepOptions& options) const {
  if (rank_ == nullptr) {
    const ParallelStep* const parallel = options.parallel.get();
    QG_ASSIGN_OR_RETURN(const Tensor whole,
                        Gathered(recorder, parallel, ParallelMode::kColumn, x.value));
    QG_ASSIGN_OR_RETURN(ForwardResult result, ForwardLayer(recorder, spec(), state,
                                                           StepOperand(whole, x.codes), options));
    QG_RETURN_IF_ERROR(Sum(recorder, parallel, ParallelMode::kRow, result.y));
    return result;
  }
  QG_ASSIGN_OR_RETURN(const ExpertRouting routing, RoutingOf(division_, division_.tokens[place_]));
  ExpertOptions experts;
  experts.first_expert = division_.first_expert;
  LayerState own = Renamed(state, -first());
  QG_ASSIGN_OR_RETURN(
      ExpertForward forward,
      ForwardExperts(recorder, *rank_->experts, experts, spec(), own, x.value, routing, options));
  state = Renamed(std::move(own), first());
  ForwardResult result;
  result.y = std::move(forward.y);
  if (forward.saved.saved != nullptr) {
    result.saved = std::make_unique<ExpertsSaved>(std::move(forward.saved), first());
  }
  return result;
}

absl::StatusOr<BackwardResult> LayerOnRank::Backward(StepRecorder& recorder, LayerState& state,
                                                     std::unique_ptr<LayerSaved> saved,
                                                     const StepOperand& grad_output) const {
  if (rank_ == nullptr) {
    const std::shared_ptr<const ParallelStep> parallel = saved->options().parallel;
    QG_ASSIGN_OR_RETURN(const Tensor whole,
                        Gathered(recorder, parallel.get(), ParallelMode::kRow, grad_output.value));
    std::shared_ptr<const void> gathered;
    if (divides_weights_ && whole_.parallel_mode == ParallelMode::kRow) {
      gathered = HoldGatheredForExperts(recorder, *parallel, whole);
    }
    QG_ASSIGN_OR_RETURN(BackwardResult result,
                        BackwardLayer(recorder, spec(), state, std::move(saved),
                                      StepOperand(whole, grad_output.codes)));
    QG_RETURN_IF_ERROR(Sum(recorder, parallel.get(), ParallelMode::kColumn, result.dx));
    return result;
  }
  QG_ASSIGN_OR_RETURN(ExpertSaved experts, TakeExperts(saved.get()));
  ExpertSaved later{experts.plan, experts.layer, nullptr};
  LayerState own = Renamed(state, -first());
  QG_ASSIGN_OR_RETURN(
      BackwardResult result,
      BackwardExperts(recorder, *rank_->experts, std::move(experts), own, grad_output.value));
  state = Renamed(std::move(own), first());
  NameGradients(first(), result.gradients);
  if (result.deferred != nullptr) {
    later.saved = std::move(result.deferred);
    result.deferred = std::make_unique<ExpertsSaved>(std::move(later), first());
  }
  return result;
}

absl::StatusOr<std::vector<NamedTensor>> LayerOnRank::Wgrad(
    StepRecorder& recorder, LayerState& state, std::unique_ptr<LayerSaved> deferred) const {
  if (rank_ == nullptr) return BackwardWgrad(recorder, spec(), state, std::move(deferred));
  QG_ASSIGN_OR_RETURN(ExpertSaved experts, TakeExperts(deferred.get()));
  LayerState own = Renamed(state, -first());
  QG_ASSIGN_OR_RETURN(std::vector<NamedTensor> gradients,
                      BackwardWgrad(recorder, experts.layer, own, std::move(experts.saved)));
  state = Renamed(std::move(own), first());
  NameGradients(first(), gradients);
  return gradients;
}

void LayerOnRank::NameExpertsOfWhole(StepRecords& records) const {
  if (rank_ == nullptr) return;
  VisitNames(records, [&](std::string& name) { name = WithExpertOfWhole(name, first()); });
}

std::string LayerOnRank::NameInRecords(const std::string& stage) const {
  return rank_ == nullptr ? stage : WithExpertOfWhole(stage, -first());
}

std::vector<std::vector<int64_t>> TokensOfRanks(const SessionSpec& spec) {
  for (size_t i = 0; RoutesRows(spec) && i < spec.layers.size(); ++i) {
    if (!spec.layers[i].spec.traits().has_experts) continue;
    return TokensOfCopies(spec.layers[i].spec, spec.parallel->expert_parallel,
                          spec.parallel->data_parallel);
  }
  return {};
}

void KeepOwnExperts(const SessionSpec& spec, const SessionRank* rank,
                    std::vector<SessionLayerState>& layers) {
  for (size_t i = 0; rank != nullptr && i < layers.size(); ++i) {
    if (!DividesExperts(spec, i)) continue;
    const std::vector<int64_t> first =
        DivideExperts(spec.layers[i].spec, spec.parallel->expert_parallel).first_expert;
    const auto place = static_cast<size_t>(rank->index % spec.parallel->expert_parallel);
    const int64_t begin = first[place], end = first[place + 1];
    VisitMaps(layers[i], [&](auto map_of) {
      std::erase_if(map_of(layers[i]), [&](const auto& entry) {
        const int64_t expert = ParameterName::Parse(entry.first).expert;
        return expert < begin || expert >= end;
      });
    });
  }
}

void JoinExperts(const SessionSpec& spec, std::vector<SessionState>& ranks) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!DividesExperts(spec, i)) continue;
    const auto size = static_cast<size_t>(spec.parallel->expert_parallel);
    for (size_t first = 0; first < ranks.size(); first += size) {
      const std::span copy(ranks.begin() + static_cast<int64_t>(first), size);
      SessionLayerState& all = copy[0].layers[i];
      VisitMaps(all, [&](auto map_of) {
        for (SessionState& rank : copy) {
          for (const auto& entry : map_of(rank.layers[i])) map_of(all).insert(entry);
        }
        for (SessionState& rank : copy) map_of(rank.layers[i]) = map_of(all);
      });
    }
  }
}

}  // namespace quantgate
