// ParallelSession: a training session on the ranks of this process. The ranks of a tensor-parallel
// group divide the weights of the layers (docs/ranks.md section 2), or those of an
// expert-parallel group the experts of grouped_linear layers (section 9.2). Copies of the layers
// divide the rows of a batch, and the optimizer sums gradients over the copies. Every rank has a
// OneRankSession with its parts; the tensors that callers give and get are whole.
//
// Not thread-safe; errors as OneRankSession. A step that fails on any rank leaves all ranks as they
// were, and the ranks' groups are made anew for the next step. Copies draw the same random numbers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/comm/rank_engines.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/training/sharding/state_sharding.h"
#include "kernels/training/training_session.h"

namespace quantgate {

class ParallelSession final : public Session {
 public:
  /// `parameters` are whole, and named as for OneRankSession::Open. The ranks are on `engine`'s
  /// kind of device; outputs are tensors of `engine`. FAILED_PRECONDITION or UNIMPLEMENTED if this
  /// host or build lacks what the backend needs.
  static absl::StatusOr<std::unique_ptr<ParallelSession>> Open(
      Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
      const RankSetting* setting, const Cancellation* cancellation);

  /// As RestoreSession.
  static absl::StatusOr<std::unique_ptr<ParallelSession>> Restore(Engine& engine, SessionSpec spec,
                                                                  const TensorFile& checkpoint,
                                                                  const RankSetting* setting,
                                                                  const Cancellation* cancellation);

  absl::StatusOr<SessionStepResult> Forward(const ForwardStep& step,
                                            const Cancellation* cancellation) override;
  absl::StatusOr<SessionStepResult> Backward(const BackwardStep& step,
                                             const Cancellation* cancellation) override;
  absl::StatusOr<SessionStepResult> Wgrad(const Cancellation* cancellation) override;
  absl::StatusOr<SessionStepResult> Optimize(const OptimizerStep& step,
                                             const Cancellation* cancellation) override;
  absl::Status ChangeRecipe(const Recipe& recipe, const Cancellation* cancellation) override;
  absl::Status Offload(const std::string& microbatch, const Cancellation* cancellation) override;
  absl::Status Reload(const std::string& microbatch, const Cancellation* cancellation) override;
  absl::StatusOr<TensorFile> Checkpoint(const Cancellation* cancellation) override;

  const Recipe& recipe() const override;
  std::function<void()> RestorePoint() override;
  absl::StatusOr<KeptForward> KeepForward(const std::string& microbatch) override;
  int64_t step_count() const override;
  int64_t bytes() const override;
  SavedMemory saved_memory() const override;
  void LimitBytes(int64_t bytes_max) override { bytes_max_ = bytes_max; }
  std::vector<std::string> microbatches() const override;
  absl::StatusOr<std::vector<StateTensor>> Describe(const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Find(const std::string& name, const Cancellation* cancellation) override;
  ~ParallelSession() override;

 private:
  /// One rank.
  struct Member;
  using Layout = RankLayout;
  /// How the ranks divide an output.
  struct OutputDivision {
    bool is_of_batch =
        false;  ///< Each copy has its own rows; else all copies have the same output.
    Layout layout;
    /// For an expert's gradient: the only place in each copy whose rank has it. Else -1.
    int owner = -1;
  };
  using StepOnRank = absl::FunctionRef<absl::StatusOr<SessionStepResult>(Rank& rank, Member& mine)>;

  ParallelSession(Engine& engine, SessionSpec spec, const RankSetting* setting);

  int tp() const { return spec_.parallel->tensor_parallel; }
  int dp() const { return spec_.parallel->data_parallel; }
  int ep() const { return spec_.parallel->expert_parallel; }
  /// Whether rows of the batch are divided by their experts.
  bool routes_rows() const { return !tokens_.empty(); }
  Layout InputLayout() const { return quantgate::InputLayout(spec_, 0); }
  Layout OutputLayout() const { return quantgate::OutputLayout(spec_, spec_.layers.size() - 1); }

  /// Makes the ranks and their groups, without sessions.
  static absl::StatusOr<std::unique_ptr<ParallelSession>> Create(Engine& engine, SessionSpec spec,
                                                                 const RankSetting* setting);
  /// Makes the ranks' world and groups if there are none.
  absl::Status MakeRanks();
  /// Gives a rank's member its ends of the groups.
  absl::Status Attach(Rank& rank);
  /// Gives one of a member's steps its ends of the groups.
  absl::Status AttachStep(Rank& rank, Member& mine, ParallelStep& step);
  /// Makes this and later forwards reduce amaxes over the groups of `forward`, which are added to
  /// the world if needed, and overlap as it asks. An evaluation of a session whose overlap was
  /// named for training runs what cannot overlap without.
  absl::Status UseStepFor(const ForwardStep& forward);
  /// Forgets steps that no forward follows any more.
  void DropSteps();
  absl::Status OpenMembers(const std::map<std::string, Tensor>& parameters,
                           const Cancellation* cancellation);
  /// Does a step on every rank and joins the results. If it fails on one, it is undone on all.
  absl::StatusOr<SessionStepResult> Run(StepOnRank step, const Cancellation* cancellation);
  absl::Status RunMembers(StepOnRank step, const Cancellation* cancellation,
                          std::vector<SessionStepResult>& results);
  absl::Status CheckBytes(int64_t before) const;

  /// The rows of the batch that a rank has, where rows are divided by their experts.
  std::vector<int64_t> TokensOf(int rank, const Layout& layout) const;
  /// A rank's part of a whole batch.
  absl::StatusOr<Tensor> PartOf(Engine& engine, const std::string& field, const Tensor& whole,
                                const Layout& layout, int rank) const;
  absl::StatusOr<SessionStepResult> Joined(std::vector<SessionStepResult> results,
                                           const Cancellation* cancellation);
  absl::Status CheckBatch(const std::string& field, const Tensor& tensor,
                          const Layout& layout) const;
  absl::StatusOr<OutputDivision> DivisionOf(const std::string& output) const;
  /// The only place in each copy whose rank has this parameter or gradient, of an expert; -1 if all
  /// ranks have it.
  int OwnerOf(size_t layer, const std::string& name) const;
  /// The names of all ranks' outputs, in the order of one rank's.
  std::vector<std::string> OutputNames(const std::vector<SessionStepResult>& results) const;
  absl::StatusOr<Tensor> JoinOutput(const std::string& name,
                                    const std::vector<SessionStepResult>& results,
                                    const Cancellation* cancellation, SessionStepResult& whole);
  /// The lowest rank that has the same part as this one.
  int FirstWithSamePart(const OutputDivision& division, int rank) const;
  /// A whole batch of the ranks' parts.
  absl::StatusOr<Tensor> JoinBatch(const std::vector<Tensor>& parts, const Layout& layout,
                                   const Cancellation* cancellation);
  /// The part of a layer's parameter that the ranks of one place in the tensor-parallel group have;
  /// for an expert's parameter, the part of the ranks that have the expert.
  absl::StatusOr<Tensor> PartOfPlace(size_t layer, const std::string& parameter, int place,
                                     const Cancellation* cancellation);
  /// A whole parameter or gradient of the first copy's parts.
  absl::StatusOr<Tensor> JoinParameter(const ShardRule& rule, const std::vector<Tensor>& parts,
                                       const Cancellation* cancellation);

  Engine& engine_;
  const SessionSpec spec_;
  const std::vector<std::vector<int64_t>> tokens_;  ///< TokensOfRanks, by rank / tp().
  const RankSetting* const setting_;
  RankEngines engines_;
  std::unique_ptr<World> world_;      ///< Null after a step that failed.
  std::set<std::string> rank_lists_;  ///< The lists of ranks that calls named as amax groups.
  std::vector<std::unique_ptr<Member>> members_;  ///< By rank.
  int64_t bytes_max_;
};

}  // namespace quantgate
