#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/division.h"

namespace quantgate {

absl::Status CheckForwardOrder(const SessionState& state, const ForwardStep& step) {
  QG_RETURN_IF_ERROR(CheckSessionName("microbatch", step.microbatch));
  // An evaluation leaves nothing in flight, whatever its name.
  if (step.train && state.in_flight.count(step.microbatch) != 0) {
    return RefusePrecondition(
        "microbatch", step.microbatch,
        "its forward is in flight; run its backward first or use another name");
  }
  if (step.train && state.in_flight.size() >= kMicrobatchesInFlightMax) {
    return RefusePrecondition(
        "microbatch", step.microbatch,
        absl::StrCat(kMicrobatchesInFlightMax,
                     " are in flight, the most that a session keeps; run a backward first"));
  }
  if (!step.train && step.recompute) {
    return Refuse("recompute", "true", "it needs train=true");
  }
  if (step.recompute && step.x_codes.has_codes()) {
    return Refuse("recompute", "true",
                  "x is given as codes, and a recomputation begins with x in "
                  "high precision");
  }
  if (step.calibrate && !state.recipe.is_delayed()) {
    return Refuse("calibrate", "true",
                  absl::StrCat("the recipe is ", state.recipe.ShortText(),
                               ", not fp8_delayed: there is no scale to learn"));
  }
  return absl::OkStatus();
}

namespace {

/// Overwrites what the first layer saved of its x with zeros.
absl::Status OverwriteSaved(Engine& engine, const std::vector<std::shared_ptr<LayerSaved>>& all) {
  for (const std::shared_ptr<LayerSaved>& saved : all) {
    if (saved == nullptr) continue;
    for (const SavedPart& part : saved->parts()) {
      if (part.name.find("weight") != std::string::npos) continue;
      if (!part.tensor->has_value() || part.tensor->byte_size() == 0) continue;
      const std::vector<std::byte> zeros(part.tensor->byte_size());
      return engine.Write(zeros, *part.tensor, 0);
    }
  }
  return absl::OkStatus();
}

void DropColumnwise(SessionState& state) {
  for (SessionLayerState& layer : state.layers) {
    for (auto& [name, parameter] : layer.state.parameters) {
      if (parameter.quantized.rowwise.has_value()) parameter.quantized.columnwise.reset();
    }
  }
}

void KeepLayers(std::vector<LayerState> layers, bool keeps_delayed, SessionState& state) {
  for (size_t i = 0; i < layers.size(); ++i) {
    DelayedStates before = std::move(state.layers[i].state.delayed);
    state.layers[i].state = std::move(layers[i]);
    if (!keeps_delayed) state.layers[i].state.delayed = std::move(before);
  }
}

/// The first phase saves only x, and the fingerprints of what its layers would have saved.
std::vector<SavedOperand> TakeFirstPhase(StepRecords& records) {
  std::vector<SavedOperand> of_layers;
  std::vector<SavedOperand> kept;
  for (SavedOperand& saved : records.saved) {
    (saved.name == "x" ? kept : of_layers).push_back(std::move(saved));
  }
  records.saved = std::move(kept);
  return of_layers;
}

/// One forward, from its checks to the state that the session keeps of it.
class Forwarding {
 public:
  Forwarding(const OneRankSession::State& session, const ForwardStep& step,
             const Cancellation* cancellation)
      : session_(session),
        step_(step),
        run_(session.engine, session.spec, cancellation, session.rank.get()),
        next_(session.now) {}

  absl::StatusOr<SessionStepResult> Run();
  SessionState TakeState() { return std::move(next_); }
  /// Absent if the forward is like the last checked one.
  const std::optional<CheckedForward>& checked() const { return checked_; }

 private:
  /// Checks the tensors and returns the shape of y.
  absl::StatusOr<Shape> CheckTensors();
  absl::StatusOr<uint32_t> TakeCallIds();
  std::vector<RequiresGrad> WantedOfLayers() const;
  absl::Status UpdateScales(std::vector<LayerState>& layers);
  absl::StatusOr<std::shared_ptr<Recomputation>> MakeRecomputation(uint32_t first_call_id);
  /// Whether the layers' own operands are dropped, to be made again in backward.
  bool recomputes() const {
    return step_.train && (step_.recompute || session_.faults.Has(kFaultBackwardReadsLiveRecipe));
  }

  const OneRankSession::State& session_;
  ForwardStep step_;
  SessionStepRun run_;
  SessionState next_;
  std::optional<CheckedForward> checked_;
};

absl::StatusOr<Shape> Forwarding::CheckTensors() {
  // Checking takes the host longer than launching the forward.
  const std::optional<CheckedForward>& last = session_.checked_forward;
  const std::shared_ptr<const ParallelStep> parallel = session_.parallel();
  if (last.has_value() && !step_.x_codes.has_codes() &&
      last->IsLike(step_, next_.recipe, parallel.get()))
    return last->y_shape;
  QG_ASSIGN_OR_RETURN(const Shape y,
                      CheckSessionForward(session_.spec, next_, next_.recipe, step_, parallel));
  if (step_.x_codes.has_codes()) return y;
  checked_ = CheckedForward{next_.recipe,
                            step_.x.dtype(),
                            step_.x.shape(),
                            step_.train,
                            step_.calibrate,
                            step_.requires_grad,
                            parallel == nullptr ? OverlapPlan() : parallel->column_overlap,
                            parallel == nullptr ? OverlapPlan() : parallel->row_overlap,
                            parallel == nullptr ? AmaxGroups() : parallel->amax_groups,
                            y};
  return y;
}

absl::StatusOr<uint32_t> Forwarding::TakeCallIds() {
  const uint32_t first = next_.next_call_id;
  const uint64_t end = first + CallIdsOfSession(session_.spec);
  if (end > std::numeric_limits<uint32_t>::max()) {
    return RefusePrecondition("seed", absl::StrCat(session_.spec.seed),
                              absl::StrCat(first,
                                           " of its 2^32 call ids of random numbers are "
                                           "used; continue in a session with another seed"));
  }
  if (!session_.faults.Has(kFaultRandomNumbersReused)) {
    next_.next_call_id = static_cast<uint32_t>(end);
  }
  return first;
}

/// What requires a gradient in each layer, with the faults seeded there (row 56).
std::vector<RequiresGrad> Forwarding::WantedOfLayers() const {
  std::vector<RequiresGrad> layers = RequiresGradOfLayers(next_, step_.requires_grad);
  if (session_.faults.empty()) return layers;
  for (size_t i = 1; i < layers.size(); ++i) {
    const Recipe before = RecipeOfLayer(session_.spec.layers[i - 1].spec, next_.recipe);
    const bool follows_codes = before.QuantizerFor(TensorRole::kOutput).rowwise.is_quantized();
    const bool is_lost =
        (session_.faults.Has(kFaultGradLostWithCodes) && follows_codes) ||
        (session_.faults.Has(kFaultGradLostBehindInput) && !step_.requires_grad.x) ||
        (session_.faults.Has(kFaultGradLostBehindFrozen) && !step_.requires_grad.weight);
    if (is_lost) layers[i].x = false;
  }
  return layers;
}

absl::StatusOr<std::shared_ptr<Recomputation>> Forwarding::MakeRecomputation(
    uint32_t first_call_id) {
  auto recomputation = std::make_shared<Recomputation>(
      Recomputation{next_.recipe, step_, first_call_id, LayersUnder(next_, next_.recipe_number),
                    session_.parallel()});
  if (session_.faults.Has(kFaultStatesLeftToOuterRecipe) && !session_.spec.recipe.is_delayed()) {
    for (LayerState& layer : recomputation->layers) layer.delayed.clear();
  }
  for (const SessionLayerState& layer : next_.layers) {
    recomputation->divided.emplace_back().divided = layer.divided;
  }
  const std::string dtype(DTypeName(step_.x.dtype()));
  const OperandToSave x{"x", dtype + " as given", dtype, {{step_.x}}};
  QG_ASSIGN_OR_RETURN(const std::vector<SavedMarkPointer> marks, run_.recorder().Save({&x, 1}));
  recomputation->x_mark = marks[0];
  return recomputation;
}

absl::Status Forwarding::UpdateScales(std::vector<LayerState>& layers) {
  if (!step_.train || step_.calibrate) {
    // A calibration keeps amaxes in the histories, an evaluation beside the weights that it caches.
    if (!step_.calibrate && step_.is_first == Microbatch::kUnset) return absl::OkStatus();
    return ReduceLayerAmaxes(run_, session_, next_.recipe, session_.parallel().get(),
                             UpdatePoint::kForward, layers);
  }
  if (session_.faults.Has(kFaultUpdatesMerged) && !next_.in_flight.empty()) {
    return absl::OkStatus();
  }
  return UpdateLayerScales(run_, session_, next_.recipe, session_.parallel().get(),
                           UpdatePoint::kForward, layers);
}

absl::StatusOr<SessionStepResult> Forwarding::Run() {
  QG_RETURN_IF_ERROR(CheckForwardOrder(next_, step_));
  if (session_.rank == nullptr) QG_RETURN_IF_ERROR(CheckNamesNoRanks(step_));
  auto flight = std::make_shared<InFlight>();
  flight->recipe_number = next_.recipe_number;
  QG_ASSIGN_OR_RETURN(flight->y_shape, CheckTensors());
  if (session_.faults.Has(kFaultStateRebuiltEveryForward)) {
    for (SessionLayerState& layer : next_.layers) layer.state.delayed.clear();
    next_.next_call_id = 0;
  }
  QG_ASSIGN_OR_RETURN(step_.x, session_.engine.ToDevice(step_.x, run_.recorder().cancellation()));
  for (Tensor* const part : TensorsOf(step_.x_codes)) {
    if (!part->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*part, session_.engine.ToDevice(*part, run_.recorder().cancellation()));
  }
  QG_ASSIGN_OR_RETURN(const uint32_t first_call_id, TakeCallIds());
  std::shared_ptr<Recomputation> recomputation;
  if (recomputes()) {
    QG_ASSIGN_OR_RETURN(recomputation, MakeRecomputation(first_call_id));
  }

  std::vector<LayerState> layers = LayersUnder(next_, next_.recipe_number);
  const ForwardPlan plan{next_.recipe, step_, first_call_id, WantedOfLayers(), session_.parallel()};
  const Division division(session_, run_.recorder().cancellation());
  QG_ASSIGN_OR_RETURN(GatheredLease gathered,
                      division.Gather(run_, next_.layers, step_.train, layers));
  QG_ASSIGN_OR_RETURN(ForwardPass pass, ForwardLayers(run_, session_.spec, plan, layers));
  QG_RETURN_IF_ERROR(UpdateScales(layers));
  if (recomputation == nullptr) {
    flight->saved = std::move(pass.saved);
    division.ReshardSaved(next_.layers, layers, *flight);
  }
  division.Reshard(next_.layers, layers);
  gathered.clear();
  // An evaluation does not change the histories (docs/scenarios.md section 3, row 17); changing
  // them is the purpose of a calibration.
  KeepLayers(std::move(layers),
             step_.train || step_.calibrate || session_.faults.Has(kFaultEvaluationPollutesHistory),
             next_);
  if (!step_.train && session_.faults.Has(kFaultUsagesLostInEvaluation)) DropColumnwise(next_);
  if (session_.faults.Has(kFaultSavedOperandOverwritten)) {
    QG_RETURN_IF_ERROR(OverwriteSaved(session_.engine, flight->saved));
  }

  SessionStepResult result;
  QG_ASSIGN_OR_RETURN(static_cast<StepRecords&>(result), run_.Finish());
  result.outputs.push_back({"y", pass.y});
  for (NamedTensor& norm_out : pass.norm_outs) result.outputs.push_back(std::move(norm_out));
  if (recomputation != nullptr) {
    recomputation->saved = TakeFirstPhase(result);
    recomputation->left_out = LeftOutOf(session_.spec, next_, *recomputation, pass.saved);
    flight->recomputation = std::move(recomputation);
  }
  if (step_.train) next_.in_flight[step_.microbatch] = std::move(flight);
  return result;
}

}  // namespace

absl::StatusOr<SessionStepResult> OneRankSession::Forward(const ForwardStep& step,
                                                          const Cancellation* cancellation) {
  Forwarding forwarding(*state_, step, cancellation);
  absl::StatusOr<SessionStepResult> result = forwarding.Run();
  if (!result.ok()) {
    if (state_->faults.Has(kFaultFailedStepKeptInPart)) state_->now = forwarding.TakeState();
    return result;
  }
  QG_RETURN_IF_ERROR(Commit(forwarding.TakeState(), *state_));
  if (forwarding.checked().has_value()) state_->checked_forward = forwarding.checked();
  return result;
}

}  // namespace quantgate
