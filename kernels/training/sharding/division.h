// How copies of a session's layers, or of its experts, divide what they train (docs/ranks.md
// sections 9.1 and 9.3). By rows (FSDP): between steps a rank has its rows of each weight, of the
// weight's master and of its moments, and passes gather the weight. Or by elements (the distributed
// optimizer): a rank has a run of elements of every parameter's fp32 master and moments; a run may
// begin anywhere and may be empty. Private to kernels/training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/master_weights.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {

/// Counts the bytes of weights that were gathered for a pass, as StepRecorder::HoldGathered does,
/// as long as the weights are there.
using GatheredLease = std::vector<std::shared_ptr<const void>>;

class Division {
 public:
  /// References must outlive it. If the session divides nothing, or `rank` is null, Divide, Join
  /// and the functions for passes do nothing.
  Division(Engine& engine, const SessionSpec& spec, const SessionRank* rank,
           const SeededFaults& faults, const Cancellation* cancellation)
      : engine_(engine), spec_(spec), rank_(rank), faults_(faults), cancellation_(cancellation) {}
  /// The division of an open session.
  Division(const OneRankSession::State& session, const Cancellation* cancellation)
      : Division(session.engine, session.spec, session.rank.get(), session.faults, cancellation) {}

  /// Replaces whole tensors by this rank's parts and sets SessionLayerState::divided.
  /// INVALID_ARGUMENT naming the weight that `recipe` quantizes by a rule which ShardedWeight or
  /// QuantizeMasterWeights refuses.
  absl::Status Divide(const Recipe& recipe, std::vector<SessionLayerState>& layers) const;
  /// The inverse of Divide, with the same bits. Collective, as all calls below.
  absl::Status Join(std::vector<SessionLayerState>& layers) const;

  // For passes, if weights are divided by rows.

  /// Replaces this rank's rows by whole weights, for a pass of these layers. `trains`: a backward
  /// will follow. Stages "all-gather WEIGHT".
  absl::StatusOr<GatheredLease> Gather(SessionStepRun& run,
                                       const std::vector<SessionLayerState>& kept, bool trains,
                                       std::vector<LayerState>& layers) const;
  /// Replaces the whole weights by this rank's rows again.
  void Reshard(const std::vector<SessionLayerState>& kept, std::vector<LayerState>& layers) const;
  /// Under reshard_after_forward, replaces whole weights that a forward saved by this rank's rows.
  void ReshardSaved(const std::vector<SessionLayerState>& kept,
                    const std::vector<LayerState>& gathered, InFlight& flight) const;
  /// The inverse of ReshardSaved, in a layer's own copy of what was saved. `now`: the layer's
  /// present state.
  absl::StatusOr<GatheredLease> RestoreSaved(SessionStepRun& run, const InFlight& flight,
                                             size_t layer, const SessionLayerState& now,
                                             LayerSaved& saved) const;

  // For updates of one divided parameter of a layer.

  /// This rank's rows, or its elements in one dim, of the sum of the copies' gradients.
  absl::StatusOr<Tensor> ReduceGradient(size_t layer, const std::string& name,
                                        const DividedParameter& divided,
                                        const Tensor& gradient) const;
  /// The whole tensor, in the parameter's shape, of every rank's part `own`.
  absl::StatusOr<Tensor> Whole(size_t layer, const DividedParameter& divided,
                               const Tensor& own) const;
  /// Quantizes this rank's part `source` to the bits that quantizing the whole weight gives, in the
  /// usages of `parameter`; stores the result in `parameter` and `divided`. `arguments`: seed and,
  /// under delayed scaling, scale. `amax_group`: as ShardedWeight::Update's. Returns the amax of
  /// the whole weight, f32 [1], under delayed scaling; else an absent tensor.
  absl::StatusOr<Tensor> Quantize(size_t layer, const std::string& name, const Tensor& source,
                                  const Quantizer& quantizer, const QuantizeArguments& arguments,
                                  ProcessGroup* amax_group, DividedParameter& divided,
                                  Parameter& parameter) const;

 private:
  bool divides_rows() const { return rank_ != nullptr && spec_.parallel->fully_sharded; }
  bool divides_elements() const {
    return rank_ != nullptr && spec_.parallel->distributed_optimizer;
  }
  /// The ranks that divide the parameters of a layer.
  ProcessGroup& CopiesOf(size_t layer) const { return *CopiesOfLayer(spec_, layer, *rank_); }
  GatherContext context(size_t layer) const {
    return {engine_, CopiesOf(layer), faults_, cancellation_};
  }
  /// The context of gathers, which seeded faults may change.
  GatherContext gathers(size_t layer) const;

  /// This rank's part of a tensor of the parameter's shape; a seeded fault takes it `earlier`
  /// places too early.
  absl::StatusOr<Tensor> PartOf(size_t layer, const DividedParameter& divided, const Tensor& whole,
                                int64_t earlier = 0) const;
  absl::StatusOr<QuantizedTensor> RowsOf(size_t layer, const QuantizedTensor& whole,
                                         const ShardedWeightSpec& of) const;
  /// This rank's parts of what training keeps beside a parameter.
  absl::Status DivideTrained(size_t layer, const DividedParameter& divided,
                             TrainedParameter& trained) const;
  absl::Status DivideRows(size_t layer, const std::string& name, const Recipe& recipe,
                          SessionLayerState& state) const;
  /// The parameters of the layers whose copies are `copies`, in one flat buffer.
  absl::Status DivideBuffer(const ProcessGroup& copies, const Recipe& recipe,
                            std::vector<SessionLayerState>& layers) const;
  absl::Status JoinOne(size_t layer, const std::string& name, SessionLayerState& state) const;
  /// The whole weight; a quantized one in `usages` at least.
  absl::StatusOr<Parameter> GatherParameter(size_t layer, const DividedParameter& divided,
                                            const Parameter& rows, Usages usages) const;
  /// `name` is the name in errors.
  absl::StatusOr<MasterFragment> FragmentOf(const std::string& name,
                                            const DividedParameter& divided, const Tensor& own,
                                            const QuantizedTensor& weight,
                                            const Quantizer& quantizer) const;
  absl::StatusOr<Tensor> QuantizeElements(size_t layer, const std::string& name,
                                          const Tensor& source, const Quantizer& quantizer,
                                          const Tensor& scale, ProcessGroup* amax_group,
                                          const DividedParameter& divided,
                                          Parameter& parameter) const;
  absl::Status QuantizeRows(size_t layer, const Tensor& source, const Quantizer& quantizer,
                            const QuantizeArguments& arguments, ProcessGroup* amax_group,
                            DividedParameter& divided, Parameter& parameter) const;
  /// The ranks' parts of `whole` in reverse order, a seeded fault.
  absl::StatusOr<Tensor> FromLastToFirst(const Tensor& whole, const ShardBounds& bounds) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const SessionRank* const rank_;
  const SeededFaults& faults_;
  const Cancellation* const cancellation_;
};

}  // namespace quantgate
