// ParallelSession: a training session on the ranks of this process. The layers' weights are divided
// over the ranks of a tensor-parallel group (docs/ranks.md section 2), or the experts of
// grouped_linear layers over those of an expert-parallel group (section 9.2); copies of the layers
// divide the rows of a batch, and the optimizer's gradients are summed over them. Every rank has a
// TrainingSession of its parts; what comes in and goes out is whole.
//
// Not thread-safe, errors as TrainingSession. A step that fails on any rank leaves all as they
// were, and the ranks' groups are made anew for the next one. Copies draw the same random numbers.
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
  /// `parameters` whole, as TrainingSession::Open. Outputs are tensors of `engine`, which says on
  /// which kind of device the ranks are. FAILED_PRECONDITION or UNIMPLEMENTED where this host or
  /// build has not what the backend needs.
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
  std::function<void()> WayBack() override;
  int64_t step_count() const override;
  int64_t bytes() const override;
  void LimitBytes(int64_t bytes_max) override { bytes_max_ = bytes_max; }
  std::vector<std::string> microbatches() const override;
  absl::StatusOr<std::vector<StateTensor>> Describe(const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Find(const std::string& name, const Cancellation* cancellation) override;
  ~ParallelSession() override;

 private:
  /// One rank.
  struct Member;
  using Layout = RankLayout;
  /// What the ranks have of an output.
  struct Division {
    bool is_of_batch = false;  ///< Copies have rows of their own; else they have the same.
    Layout layout;
    int owner = -1;  ///< Of an expert's gradient, the place in each copy whose rank alone has it.
  };
  using StepOnRank = absl::FunctionRef<absl::StatusOr<SessionStepResult>(Rank& rank, Member& mine)>;

  ParallelSession(Engine& engine, SessionSpec spec, const RankSetting* setting);

  int tp() const { return spec_.parallel->tensor_parallel; }
  int dp() const { return spec_.parallel->data_parallel; }
  int ep() const { return spec_.parallel->expert_parallel; }
  /// Whether rows of the batch are their experts', and divided so.
  bool routes_rows() const { return !tokens_.empty(); }
  Layout InputLayout() const { return quantgate::InputLayout(spec_, 0); }
  Layout OutputLayout() const { return quantgate::OutputLayout(spec_, spec_.layers.size() - 1); }

  /// Ranks and their groups, without sessions.
  static absl::StatusOr<std::unique_ptr<ParallelSession>> Create(Engine& engine, SessionSpec spec,
                                                                 const RankSetting* setting);
  /// The ranks' world and groups, where there are none.
  absl::Status MakeRanks();
  absl::Status Attach(Rank& rank);
  /// Of what a member's forwards from now on follow, or forwards in flight.
  absl::Status AttachStep(Rank& rank, Member& mine, ParallelStep& step);
  /// Forwards from now on reduce amaxes over these groups, which the ranks have.
  absl::Status UseAmaxGroups(const AmaxGroups& groups);
  /// Forgets steps that no forward follows any more.
  void DropSteps();
  absl::Status OpenMembers(const std::map<std::string, Tensor>& parameters,
                           const Cancellation* cancellation);
  /// One step of every rank. What failed has not been done by any.
  absl::StatusOr<SessionStepResult> Run(StepOnRank step, const Cancellation* cancellation);
  absl::Status RunMembers(StepOnRank step, const Cancellation* cancellation,
                          std::vector<SessionStepResult>& results);
  absl::Status CheckBytes(int64_t before) const;

  /// The rows of the batch that are a rank's, where rows are their experts'.
  std::vector<int64_t> TokensOf(int rank, const Layout& layout) const;
  absl::StatusOr<Tensor> PartOf(Engine& engine, const std::string& field, const Tensor& whole,
                                const Layout& layout, int rank) const;
  absl::StatusOr<SessionStepResult> Joined(std::vector<SessionStepResult> results,
                                           const Cancellation* cancellation);
  absl::Status CheckBatch(const std::string& field, const Tensor& tensor,
                          const Layout& layout) const;
  absl::StatusOr<Division> DivisionOf(const std::string& output) const;
  /// The place in each copy whose rank alone has this parameter or gradient of a layer, an
  /// expert's; -1: all have it.
  int OwnerOf(size_t layer, const std::string& name) const;
  /// Of the ranks' outputs, in the order of one rank's.
  std::vector<std::string> OutputNames(const std::vector<SessionStepResult>& results) const;
  absl::StatusOr<Tensor> JoinOutput(const std::string& name,
                                    const std::vector<SessionStepResult>& results,
                                    const Cancellation* cancellation, SessionStepResult& whole);
  /// The lowest rank that has the same part as this one.
  int FirstWithSamePart(const Division& division, int rank) const;
  /// Of what rows of the batch divide.
  absl::StatusOr<Tensor> JoinBatch(const std::vector<Tensor>& parts, const Layout& layout,
                                   const Cancellation* cancellation);
  /// What the ranks of one place in the tensor-parallel group have of a layer's parameter, of an
  /// expert's those that have it.
  absl::StatusOr<Tensor> PartOfPlace(size_t layer, const std::string& parameter, int place,
                                     const Cancellation* cancellation);
  /// Of a parameter or its gradient, from the first copy's parts.
  absl::StatusOr<Tensor> JoinParameter(const ShardRule& rule, const std::vector<Tensor>& parts,
                                       const Cancellation* cancellation);

  Engine& engine_;
  const SessionSpec spec_;
  const std::vector<std::vector<int64_t>> tokens_;  ///< TokensOfRanks, by rank / tp().
  const RankSetting* const setting_;
  RankEngines engines_;
  std::unique_ptr<World> world_;                  ///< Null after a step that failed.
  std::set<std::string> rank_lists_;              ///< Of amax groups that calls have named.
  std::vector<std::unique_ptr<Member>> members_;  ///< By rank.
  int64_t bytes_max_;
};

}  // namespace quantgate
