// One layer of a session on one of its ranks. Ranks may divide the experts of a layer
// (docs/ranks.md sections 8 and 9.2): a rank then has the parameters and states of its
// experts, under their numbers in the whole layer, and rows are sent to their experts and back
// among the ranks of one copy. Or ranks may divide the weights of all experts (section 2.1): a rank
// then has a part of each weight, and rows are gathered and partial products summed around the
// layer. Private to kernels/training.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/layer/experts/expert_run.h"
#include "kernels/training/session_state.h"

namespace quantgate {

/// Does the steps of a layer on one rank. References must outlive it. A null `rank`: the session
/// has one rank.
class LayerOnRank {
 public:
  LayerOnRank(const SessionSpec& spec, size_t layer, const SessionRank* rank);

  /// As ForwardLayer, BackwardLayer and BackwardWgrad; collective if experts or their weights are
  /// divided. Gradients and saved parts have the whole layer's names.
  /// Codes are for a session on one rank.
  absl::StatusOr<ForwardResult> Forward(StepRecorder& recorder, LayerState& state,
                                        const StepOperand& x, const StepOptions& options) const;
  absl::StatusOr<BackwardResult> Backward(StepRecorder& recorder, LayerState& state,
                                          std::unique_ptr<LayerSaved> saved,
                                          const StepOperand& grad_output) const;
  absl::StatusOr<std::vector<NamedTensor>> Wgrad(StepRecorder& recorder, LayerState& state,
                                                 std::unique_ptr<LayerSaved> deferred) const;
  /// Renames experts in these steps' records to their numbers in the whole layer.
  void NameExpertsOfWhole(StepRecords& records) const;
  /// The name that a stage, named with the whole layer's expert number, has in the records before
  /// NameExpertsOfWhole.
  std::string NameInRecords(const std::string& stage) const;

 private:
  int64_t first() const { return division_.first_expert[place_]; }
  absl::StatusOr<Tensor> Gathered(StepRecorder& recorder, const ParallelStep* parallel,
                                  ParallelMode mode, const Tensor& own) const;
  absl::Status Sum(StepRecorder& recorder, const ParallelStep* parallel, ParallelMode mode,
                   Tensor& partial) const;

  const LayerSpec& spec() const { return of_copy_.has_value() ? *of_copy_ : whole_; }

  const LayerSpec& whole_;
  /// The layer with the rows of this rank's copy, if copies divide rows and ranks no experts.
  const std::optional<LayerSpec> of_copy_;
  const bool divides_weights_;     ///< DividesExpertWeights.
  const SessionRank* const rank_;  ///< Null also if the layer's experts are not divided.
  size_t place_ = 0;               ///< This rank's place among the ranks of its copy.
  ExpertDivision division_;        ///< How the ranks of the copy divide its rows and experts.
};

/// The rows of the batch that each rank has, or each copy of layers on tensor-parallel ranks: an
/// even part of every expert's rows. Empty unless RoutesRows.
std::vector<std::vector<int64_t>> TokensOfRanks(const SessionSpec& spec);

/// Removes the experts that are not this rank's from every layer whose experts are divided.
void KeepOwnExperts(const SessionSpec& spec, const SessionRank* rank,
                    std::vector<SessionLayerState>& layers);
/// The inverse: gives every rank the experts of all ranks of its copy.
void JoinExperts(const SessionSpec& spec, std::vector<SessionState>& ranks);

}  // namespace quantgate
