// Layers of a session, the experts of some of which are divided over its ranks (docs/ranks.md
// sections 8 and 9.2): there a rank has its experts' parameters and states, by their numbers in the
// whole layer, and rows travel to their experts and back, among the ranks of one copy. Or the
// weights of all experts are (section 2.1): there a rank has a part of each expert's, and what lies
// around the layer gathers rows and sums partial products. Private to kernels/training.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/layer/experts/expert_run.h"
#include "kernels/training/session_state.h"

namespace quantgate {

/// A layer's steps as one rank takes them. References must outlive it; a null rank has no others.
class LayerOnRank {
 public:
  LayerOnRank(const SessionSpec& spec, size_t layer, const SessionRank* rank);

  /// As ForwardLayer, BackwardLayer and BackwardWgrad, collective where experts or their weights
  /// are divided. Names of gradients and saved parts are the whole layer's.
  absl::StatusOr<ForwardResult> Forward(StepRecorder& recorder, LayerState& state, const Tensor& x,
                                        const StepOptions& options) const;
  absl::StatusOr<BackwardResult> Backward(StepRecorder& recorder, LayerState& state,
                                          std::unique_ptr<LayerSaved> saved,
                                          const Tensor& grad_output) const;
  absl::StatusOr<std::vector<NamedTensor>> Wgrad(StepRecorder& recorder, LayerState& state,
                                                 std::unique_ptr<LayerSaved> deferred) const;
  /// Of these steps: experts by their numbers in the whole layer.
  void NameExpertsOfWhole(StepRecords& records) const;
  /// A stage with an expert's number in the whole layer, as it is recorded until then.
  std::string NameInRecords(const std::string& stage) const;

 private:
  int64_t first() const { return division_.first_expert[place_]; }
  absl::StatusOr<Tensor> Gathered(StepRecorder& recorder, const ParallelStep* parallel,
                                  ParallelMode mode, const Tensor& own) const;
  absl::Status Sum(StepRecorder& recorder, const ParallelStep* parallel, ParallelMode mode,
                   Tensor& partial) const;

  const LayerSpec& spec() const { return of_copy_.has_value() ? *of_copy_ : whole_; }

  const LayerSpec& whole_;
  /// With the rows of this rank's copy, where nobody in it divides them by their experts.
  const std::optional<LayerSpec> of_copy_;
  const bool divides_weights_;     ///< DividesExpertWeights.
  const SessionRank* const rank_;  ///< Null too where the layer's experts are not divided.
  size_t place_ = 0;               ///< Among the ranks of this rank's copy,
  ExpertDivision division_;        ///< who divide that copy's rows.
};

/// Rows of the batch where RoutesRows, else none: an even part of every expert's for each rank, or
/// for each copy of the layers on tensor-parallel ranks.
std::vector<std::vector<int64_t>> TokensOfRanks(const SessionSpec& spec);

/// Leaves of the experts of every such layer those that are this rank's.
void KeepOwnExperts(const SessionSpec& spec, const SessionRank* rank,
                    std::vector<SessionLayerState>& layers);
/// The other way round: every rank gets the experts of all ranks of its copy.
void JoinExperts(const SessionSpec& spec, std::vector<SessionState>& ranks);

}  // namespace quantgate
