// One step of a session on its way: a recorder per layer, and the forward of all layers that
// training and recomputation share. Private to kernels/training.
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
  /// References must outlive it. A null rank has no others.
  SessionStepRun(Engine& engine, const SessionSpec& spec, const Cancellation* cancellation,
                 const SessionRank* rank);

  /// Records of the session itself.
  StepRecorder& recorder() { return recorder_; }
  StepRecorder& recorder(size_t layer) { return *layers_[layer]; }
  /// A layer's steps, to be recorded by its recorder.
  LayerOnRank layer(size_t index) const { return LayerOnRank(spec_, index, rank_); }

  /// Waits for what is under way; everything's records, with "LAYER." before their names.
  absl::StatusOr<StepRecords> Finish();

 private:
  const SessionSpec& spec_;
  const SessionRank* const rank_;
  StepRecorder recorder_;
  std::vector<std::unique_ptr<StepRecorder>> layers_;
};

/// What a forward of all layers follows.
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
  std::vector<std::shared_ptr<LayerSaved>> saved;  ///< By layer; null where nothing is.
};

/// Changes `layers` as ForwardLayer does.
absl::StatusOr<ForwardPass> ForwardLayers(SessionStepRun& run, const SessionSpec& spec,
                                          const ForwardPlan& plan, std::vector<LayerState>& layers);

/// Delayed scaling's amaxes of every layer become those of all ranks. `step`: of the forward that
/// noted them, or whose backward did.
absl::Status ReduceLayerAmaxes(SessionStepRun& run, const OneRankSession::State& session,
                               const Recipe& recipe, const ParallelStep* step, UpdatePoint point,
                               std::vector<LayerState>& layers);
/// Behind that, its update of every layer, with the faults that are seeded in it.
absl::Status UpdateLayerScales(SessionStepRun& run, const OneRankSession::State& session,
                               const Recipe& recipe, const ParallelStep* step, UpdatePoint point,
                               std::vector<LayerState>& layers);

/// The names of tensors and stages in records.
void VisitNames(StepRecords& records, absl::FunctionRef<void(std::string& name)> visit);

/// Over which gradients of a layer are summed; null: there are no others that have its parameters.
ProcessGroup* GradientGroup(const SessionSpec& spec, size_t layer, const SessionRank& rank,
                            const SeededFaults& faults);
/// What a gradient of the parameter is over all ranks, from this rank's part of it; the gradient
/// itself on one rank. Collective.
absl::StatusOr<Tensor> SumOverRanks(const OneRankSession::State& session, size_t layer,
                                    const std::string& parameter, const Tensor& gradient);

/// The layers' states as steps take them: under the delayed scaling of recipe `recipe_number`.
std::vector<LayerState> LayersUnder(const SessionState& state, int64_t recipe_number);
/// Puts their delayed scaling back where it came from.
void KeepDelayed(int64_t recipe_number, std::vector<LayerState>& layers, SessionState& state);
/// Drops what only ended forwards followed.
void DropRetired(SessionState& state);

/// From the next forward on; OneRankSession::ChangeRecipe says how.
absl::Status ApplyRecipe(const OneRankSession::State& session, const Recipe& recipe,
                         const Cancellation* cancellation, SessionState& next);

/// Call ids of one forward of all layers.
uint64_t CallIdsOfSession(const SessionSpec& spec);

/// Ends a step: `next` takes the place of what the session holds. RESOURCE_EXHAUSTED where it holds
/// more than before, and more than the session may.
absl::Status Commit(SessionState next, OneRankSession::State& session);

}  // namespace quantgate
