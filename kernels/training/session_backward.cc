#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/experts/stacked_experts.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/division.h"

namespace quantgate {

absl::Status CheckBackwardOrder(const SessionState& state, const std::string& microbatch) {
  const auto found = state.in_flight.find(microbatch);
  if (found == state.in_flight.end()) {
    return RefusePrecondition(
        "microbatch", microbatch,
        "no forward of it is in flight; each training forward takes one backward");
  }
  if (found->second->is_offloaded) {
    return RefusePrecondition("microbatch", microbatch,
                              "what it saved is offloaded; reload it first");
  }
  return absl::OkStatus();
}

absl::Status CheckGradOutput(const Tensor& gradient, const Shape& y) {
  if (gradient.has_value() && IsHighPrecision(gradient.dtype()) && gradient.shape() == y) {
    return absl::OkStatus();
  }
  return Refuse("grad_output", gradient.has_value() ? TensorText(gradient) : "absent",
                absl::StrCat("it must be f32, bf16 or f16 of y's shape ", ShapeText(y)));
}

absl::Status CheckWgrad(const SessionState& state) {
  if (!state.deferred.empty()) return absl::OkStatus();
  return RefusePrecondition("gradients", "not deferred",
                            "run a forward with defer_wgrad and its backward first");
}

namespace {

/// Compares the operands of a recomputed forward with those of the first phase: equal fingerprints
/// show equal bits.
void CompareWithFirstPhase(const std::vector<SavedOperand>& first, StepRecords& records) {
  const std::vector<SavedOperand> second = records.saved;
  for (const SavedOperand& operand : first) {
    const auto again = std::find_if(second.begin(), second.end(), [&](const SavedOperand& saved) {
      return saved.name == operand.name;
    });
    if (again == second.end()) continue;
    SavedOperand record = operand;
    record.name = absl::StrCat(operand.name, " recomputed");
    record.at_use = again->at_save;
    record.used = true;
    record.counted = {};  // The same operand counts where the second phase saves it.
    records.saved.push_back(std::move(record));
  }
}

/// Row 4: puts the scales of another microbatch beside this one's codes.
void TakeScalesOfAnother(const SessionState& state, const std::string& microbatch, size_t layer,
                         LayerSaved& saved) {
  for (const auto& [name, flight] : state.in_flight) {
    if (name == microbatch || layer >= flight->saved.size()) continue;
    for (const SavedPart& other : flight->saved[layer]->parts()) {
      if (other.name.find("scale_inv") == std::string::npos) continue;
      for (const SavedPart& part : saved.parts()) {
        if (part.name == other.name) *part.tensor = *other.tensor;
      }
    }
  }
}

/// Row 41: overwrites the x that forward was given with zeros, if it was saved as it is.
absl::Status ClearInput(Engine& engine, const std::vector<std::shared_ptr<LayerSaved>>& saved) {
  if (saved[0] == nullptr) return absl::OkStatus();
  for (const SavedPart& part : saved[0]->parts()) {
    const bool is_input = part.name.find("x") == 0 && part.tensor->has_value();
    if (!is_input || !IsHighPrecision(part.tensor->dtype())) continue;
    const std::vector<std::byte> zeros(part.tensor->byte_size());
    return engine.Write(zeros, *part.tensor, 0);
  }
  return absl::OkStatus();
}

void MarkMainGradients(SessionLayerState& layer) {
  for (const auto& [name, main_grad] : layer.state.main_grads) {
    layer.trained[name].has_main_gradient = true;
  }
}

/// Adds a gradient to its parameter's sum so far, in the gradient's own dtype.
absl::Status AddGradient(const NamedTensor& gradient, const LayerOnRank& layer,
                         StepRecorder& recorder, TrainedParameter& trained) {
  if (!trained.gradient.has_value()) {
    trained.gradient = gradient.tensor;
    return absl::OkStatus();
  }
  const std::string stage = layer.NameInRecords(absl::StrCat("add ", gradient.name));
  QG_ASSIGN_OR_RETURN(trained.gradient, recorder.Timed({StageKind::kOperation, stage}, [&] {
    return recorder.engine().Add(trained.gradient, gradient.tensor, trained.gradient.dtype(),
                                 recorder.cancellation());
  }));
  return absl::OkStatus();
}

/// Keeps one layer's gradients as this rank's own, and returns their sums over the ranks.
absl::Status TakeGradients(const OneRankSession::State& session, size_t layer,
                           const std::vector<NamedTensor>& gradients, SessionStepRun& run,
                           SessionLayerState& kept, SessionStepResult& result) {
  const SessionLayer& spec = session.spec.layers[layer];
  const LayerOnRank on_rank = run.layer(layer);
  for (const NamedTensor& gradient : gradients) {
    const auto parameter =
        std::find_if(kept.trained.begin(), kept.trained.end(),
                     [&](const auto& each) { return GradientOf(each.first) == gradient.name; });
    if (parameter == kept.trained.end()) {
      return absl::InternalError(absl::StrCat("gradient ", gradient.name, " of no parameter"));
    }
    QG_RETURN_IF_ERROR(
        InLayer(spec, AddGradient(gradient, on_rank, run.recorder(layer), parameter->second)));
    QG_ASSIGN_OR_RETURN(Tensor sum,
                        SumOverRanks(session, layer, parameter->first, gradient.tensor));
    result.outputs.push_back({absl::StrCat(spec.name, ".", gradient.name), std::move(sum)});
  }
  return absl::OkStatus();
}

/// Adds "LAYER.dw" where the weights of a layer's experts were given as one tensor.
absl::Status StackGradients(const OneRankSession::State& session, const Cancellation* cancellation,
                            std::vector<NamedTensor>& outputs) {
  for (const size_t layer : session.stacked_layers) {
    const SessionLayer& of = session.spec.layers[layer];
    const std::string name = absl::StrCat(of.name, ".dw");
    std::vector<Tensor> experts;
    for (size_t expert = 0; expert < of.spec.m_splits.size(); ++expert) {
      const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const auto& output) {
        return output.name == absl::StrCat(name, ".", expert);
      });
      if (found != outputs.end()) experts.push_back(found->tensor);
    }
    if (experts.empty() || experts.size() != of.spec.m_splits.size()) continue;
    QG_ASSIGN_OR_RETURN(Tensor stack, StackExperts(session.engine, experts, cancellation));
    outputs.push_back({name, std::move(stack)});
  }
  return absl::OkStatus();
}

class Backwarding {
 public:
  Backwarding(const OneRankSession::State& session, const BackwardStep& step,
              const Cancellation* cancellation)
      : session_(session),
        step_(step),
        run_(session.engine, session.spec, cancellation, session.rank.get()),
        division_(session, cancellation),
        next_(session.now) {}

  absl::StatusOr<SessionStepResult> Run();
  SessionState TakeState() { return std::move(next_); }

 private:
  absl::StatusOr<std::vector<std::shared_ptr<LayerSaved>>> Recompute();
  /// Into the peak, what deferred gradients keep beside all that the step holds; `saved` is what
  /// backward read.
  void CountDeferred(const std::vector<std::shared_ptr<LayerSaved>>& saved);
  absl::StatusOr<Tensor> BackwardOne(size_t layer, const LayerSaved& saved,
                                     const StepOperand& gradient, LayerState& state);
  absl::Status SeedMainGradientOverwritten(Microbatch microbatch, LayerState& state);
  absl::Status SeedMainGradientKept(Microbatch microbatch,
                                    const std::map<std::string, Tensor>& before, LayerState& state);
  bool Has(const char* fault) const { return session_.faults.Has(fault); }

  const OneRankSession::State& session_;
  BackwardStep step_;
  SessionStepRun run_;
  const Division division_;
  GatheredLease gathered_;  ///< Of a recomputed forward.
  SessionState next_;
  std::shared_ptr<const InFlight> flight_;
  SessionStepResult result_;
  int64_t peak_ = 0;  ///< SavedMemory::added with what is recomputed.
};

absl::StatusOr<std::vector<std::shared_ptr<LayerSaved>>> Backwarding::Recompute() {
  const Recomputation& recomputation = *flight_->recomputation;
  const bool reads_live = Has(kFaultBackwardReadsLiveRecipe);
  const bool draws_anew = Has(kFaultRecomputationDrawsAnew);
  const bool scales_are_current = Has(kFaultRecomputationUsesCurrentScales);
  const Recipe& recipe = Has(kFaultRecomputesUnderOuterRecipe) ? session_.spec.recipe
                         : reads_live                          ? next_.recipe
                                                               : recomputation.recipe;
  const ForwardPlan plan{
      recipe, recomputation.step, draws_anew ? next_.next_call_id : recomputation.first_call_id,
      RequiresGradOfLayers(next_, recomputation.step.requires_grad), recomputation.parallel};
  // The forward runs on the states that the first phase found, and does not change the present ones
  // (docs/sessions.md section 1).
  std::vector<LayerState> layers =
      scales_are_current ? LayersUnder(next_, flight_->recipe_number) : recomputation.layers;
  const UsedOperand x{recomputation.x_mark, {recomputation.step.x}, true};
  QG_RETURN_IF_ERROR(run_.recorder().Use({&x, 1}));
  QG_ASSIGN_OR_RETURN(gathered_, division_.Gather(run_, recomputation.divided, true, layers));
  QG_ASSIGN_OR_RETURN(ForwardPass pass, ForwardLayers(run_, session_.spec, plan, layers));
  // What the forwards in flight saved, this one's x among it, is held until the step has succeeded.
  SessionState now = session_.now;
  peak_ = SavedMemoryOf(session_.spec, now, pass.saved).added();
  return std::move(pass.saved);
}

void Backwarding::CountDeferred(const std::vector<std::shared_ptr<LayerSaved>>& saved) {
  if (next_.deferred.size() == session_.now.deferred.size()) return;
  SessionState now = session_.now;
  now.deferred = next_.deferred;
  const bool is_recomputed = flight_->recomputation != nullptr;
  const SavedMemory memory = SavedMemoryOf(
      session_.spec, now, is_recomputed ? saved : std::vector<std::shared_ptr<LayerSaved>>());
  peak_ = std::max(peak_, memory.added());
}

/// Row 33: loses the main gradients of earlier microbatches.
absl::Status Backwarding::SeedMainGradientOverwritten(Microbatch microbatch, LayerState& state) {
  if (!Has(kFaultMainGradientOverwritten) || microbatch != Microbatch::kLater) {
    return absl::OkStatus();
  }
  for (auto& [name, main_grad] : state.main_grads) {
    QG_ASSIGN_OR_RETURN(main_grad, session_.engine.Scale(main_grad, 0.0f, DType::kF32,
                                                         run_.recorder().cancellation()));
  }
  return absl::OkStatus();
}

/// Row 33: adds to main gradients that should have been overwritten.
absl::Status Backwarding::SeedMainGradientKept(Microbatch microbatch,
                                               const std::map<std::string, Tensor>& before,
                                               LayerState& state) {
  if (!Has(kFaultMainGradientKept) || microbatch != Microbatch::kFirst) return absl::OkStatus();
  for (auto& [name, main_grad] : state.main_grads) {
    QG_ASSIGN_OR_RETURN(main_grad, session_.engine.Add(main_grad, before.at(name), DType::kF32,
                                                       run_.recorder().cancellation()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Backwarding::BackwardOne(size_t layer, const LayerSaved& saved,
                                                const StepOperand& gradient, LayerState& state) {
  const SessionLayer& spec = session_.spec.layers[layer];
  const StepOptions options = saved.options();
  std::unique_ptr<LayerSaved> used = saved.Clone();
  QG_ASSIGN_OR_RETURN(const GatheredLease gathered,
                      division_.RestoreSaved(run_, *flight_, layer, next_.layers[layer], *used));
  if (Has(kFaultScalesOfAnotherMicrobatch)) {
    TakeScalesOfAnother(next_, step_.microbatch, layer, *used);
  }
  const std::map<std::string, Tensor> before = state.main_grads;
  QG_RETURN_IF_ERROR(SeedMainGradientOverwritten(options.microbatch, state));
  absl::StatusOr<BackwardResult> result =
      run_.layer(layer).Backward(run_.recorder(layer), state, std::move(used), gradient);
  if (!result.ok()) return InLayer(spec, result.status());
  QG_RETURN_IF_ERROR(SeedMainGradientKept(options.microbatch, before, state));
  SessionLayerState& kept = next_.layers[layer];
  kept.state.main_grads = state.main_grads;
  if (result->deferred != nullptr) {
    next_.deferred.push_back({layer, std::move(result->deferred)});
  } else if (options.requires_grad.weight) {
    MarkMainGradients(kept);
  }
  QG_RETURN_IF_ERROR(TakeGradients(session_, layer, result->gradients, run_, kept, result_));
  return result->dx;
}

absl::StatusOr<SessionStepResult> Backwarding::Run() {
  QG_RETURN_IF_ERROR(CheckBackwardOrder(next_, step_.microbatch));
  QG_RETURN_IF_ERROR(
      CheckGradOutput(step_.grad_output, next_.in_flight.at(step_.microbatch)->y_shape));
  flight_ = next_.in_flight.at(step_.microbatch);
  next_.in_flight.erase(step_.microbatch);
  const Cancellation* const cancellation = run_.recorder().cancellation();
  QG_ASSIGN_OR_RETURN(Tensor gradient, session_.engine.ToDevice(step_.grad_output, cancellation));
  for (Tensor* const part : TensorsOf(step_.codes)) {
    if (!part->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*part, session_.engine.ToDevice(*part, cancellation));
  }
  std::vector<std::shared_ptr<LayerSaved>> saved = flight_->saved;
  if (flight_->recomputation != nullptr) {
    QG_ASSIGN_OR_RETURN(saved, Recompute());
  }

  std::vector<LayerState> layers = LayersUnder(next_, flight_->recipe_number);
  std::optional<StepOptions> options;
  bool has_reached_x = false;
  for (size_t i = layers.size(); i-- > 0;) {
    // Nothing before this layer requires a gradient.
    if (saved[i] == nullptr) break;
    options = saved[i]->options();
    const bool is_last = i + 1 == layers.size();
    QG_ASSIGN_OR_RETURN(
        gradient, BackwardOne(i, *saved[i],
                              is_last ? StepOperand(gradient, step_.codes) : StepOperand(gradient),
                              layers[i]));
    if (!gradient.has_value()) break;
    has_reached_x = i == 0;
  }
  if (options.has_value()) {
    const auto after = options->calibrate ? &ReduceLayerAmaxes : &UpdateLayerScales;
    QG_RETURN_IF_ERROR(after(run_, session_, options->recipe, options->parallel.get(),
                             UpdatePoint::kBackward, layers));
  }
  KeepDelayed(flight_->recipe_number, layers, next_);
  DropRetired(next_);
  CountDeferred(saved);
  NotePeak(peak_, next_.step_count + 1, next_);
  if (Has(kFaultInputCleared)) QG_RETURN_IF_ERROR(ClearInput(session_.engine, saved));

  gathered_.clear();
  QG_ASSIGN_OR_RETURN(static_cast<StepRecords&>(result_), run_.Finish());
  if (flight_->recomputation != nullptr) {
    CompareWithFirstPhase(flight_->recomputation->saved, result_);
  }
  QG_RETURN_IF_ERROR(StackGradients(session_, cancellation, result_.outputs));
  if (has_reached_x) {
    result_.outputs.insert(result_.outputs.begin(), {"dx", gradient});
  }
  return std::move(result_);
}

}  // namespace

absl::StatusOr<SessionStepResult> OneRankSession::Backward(const BackwardStep& step,
                                                           const Cancellation* cancellation) {
  Backwarding backwarding(*state_, step, cancellation);
  QG_ASSIGN_OR_RETURN(SessionStepResult result, backwarding.Run());
  QG_RETURN_IF_ERROR(Commit(backwarding.TakeState(), *state_));
  return result;
}

absl::StatusOr<SessionStepResult> OneRankSession::Wgrad(const Cancellation* cancellation) {
  const State& session = *state_;
  SessionState next = session.now;
  QG_RETURN_IF_ERROR(CheckWgrad(next));
  SessionStepRun run(session.engine, session.spec, cancellation, session.rank.get());
  SessionStepResult result;
  for (const DeferredWgrad& deferred : std::exchange(next.deferred, {})) {
    const SessionLayer& layer = session.spec.layers[deferred.layer];
    SessionLayerState& kept = next.layers[deferred.layer];
    absl::StatusOr<std::vector<NamedTensor>> gradients =
        run.layer(deferred.layer)
            .Wgrad(run.recorder(deferred.layer), kept.state, deferred.saved->Clone());
    if (!gradients.ok()) return InLayer(layer, gradients.status());
    MarkMainGradients(kept);
    QG_RETURN_IF_ERROR(TakeGradients(session, deferred.layer, *gradients, run, kept, result));
  }
  QG_ASSIGN_OR_RETURN(static_cast<StepRecords&>(result), run.Finish());
  QG_RETURN_IF_ERROR(StackGradients(session, cancellation, result.outputs));
  QG_RETURN_IF_ERROR(Commit(std::move(next), *state_));
  return result;
}

}  // namespace quantgate
