// One step of a session while it runs: a recorder for each layer, and what several kinds of steps
// share, such as the forward of all layers. Private to kernels/training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/training/session_experts.h"
#include "kernels/training/session_state.h"

namespace quantgate {

class SessionStepRun {
 public:
  /// References must outlive it. A null `rank`: the session has one rank.
  SessionStepRun(Engine& engine, const SessionSpec& spec, const Cancellation* cancellation,
                 const SessionRank* rank);

  /// The recorder of what belongs to no layer.
  StepRecorder& recorder() { return recorder_; }
  StepRecorder& recorder(size_t layer) { return *layers_[layer]; }
  /// A layer on this rank; record its steps with recorder(index).
  LayerOnRank layer(size_t index) const { return LayerOnRank(spec_, index, rank_); }

  /// The records of all recorders, with "LAYER." before names of layers' records. Waits for the
  /// device.
  absl::StatusOr<StepRecords> Finish();

 private:
  const SessionSpec& spec_;
  const SessionRank* const rank_;
  StepRecorder recorder_;
  std::vector<std::unique_ptr<StepRecorder>> layers_;
};

/// The arguments of a forward of all layers.
struct ForwardPlan {
  const Recipe& recipe;
  const ForwardStep& step;
  uint32_t first_call_id = 0;
  std::vector<RequiresGrad> requires_grad;  ///< By layer.
  std::shared_ptr<const ParallelStep> parallel = nullptr;
};

struct ForwardPass {
  Tensor y;
  std::vector<NamedTensor> norm_outs;
  std::vector<std::shared_ptr<LayerSaved>> saved;  ///< By layer; null if nothing was saved.
};

/// Forward of all layers. Changes `layers` as ForwardLayer does.
absl::StatusOr<ForwardPass> ForwardLayers(SessionStepRun& run, const SessionSpec& spec,
                                          const ForwardPlan& plan, std::vector<LayerState>& layers);

/// Replaces delayed scaling's amaxes of every layer by their maxima over the ranks. `step`: that of
/// the forward that noted them, or whose backward did.
absl::Status ReduceLayerAmaxes(SessionStepRun& run, const OneRankSession::State& session,
                               const Recipe& recipe, const ParallelStep* step, UpdatePoint point,
                               std::vector<LayerState>& layers);
/// Then updates delayed scaling's scales of every layer, with the faults seeded in the update.
absl::Status UpdateLayerScales(SessionStepRun& run, const OneRankSession::State& session,
                               const Recipe& recipe, const ParallelStep* step, UpdatePoint point,
                               std::vector<LayerState>& layers);

/// Calls `visit` with the name of every tensor and stage in `records`.
void VisitNames(StepRecords& records, absl::FunctionRef<void(std::string& name)> visit);

/// The group over which gradients of a layer are summed; null if no other rank has its parameters.
ProcessGroup* GradientGroup(const SessionSpec& spec, size_t layer, const SessionRank& rank,
                            const SeededFaults& faults);
/// The sum of a parameter's gradient over the ranks that have the parameter. On one rank the
/// gradient itself. Collective.
absl::StatusOr<Tensor> SumOverRanks(const OneRankSession::State& session, size_t layer,
                                    const std::string& parameter, const Tensor& gradient);

/// The states of the layers with delayed scaling's states of recipe `recipe_number`.
std::vector<LayerState> LayersUnder(const SessionState& state, int64_t recipe_number);
/// Puts these delayed-scaling states back into `state`, after a step changed them.
void KeepDelayed(int64_t recipe_number, std::vector<LayerState>& layers, SessionState& state);
/// Drops delayed-scaling states of recipes that no forward in flight follows any more.
void DropRetired(SessionState& state);

/// Changes the recipe in `next`, for later forwards, as Session::ChangeRecipe says.
absl::Status ApplyRecipe(const OneRankSession::State& session, const Recipe& recipe,
                         const Cancellation* cancellation, SessionState& next);

/// The number of call ids that one forward of all layers takes.
uint64_t CallIdsOfSession(const SessionSpec& spec);

/// Ends a step: `next` replaces the session's state. RESOURCE_EXHAUSTED if `next` holds more bytes
/// than the state before it and more than the session may hold.
absl::Status Commit(SessionState next, OneRankSession::State& session);

}  // namespace quantgate
