// How copies of a session's layers divide what they train, experts' copies that of their experts
// (docs/ranks.md sections 9.1 and 9.3). Either by rows (FSDP): between steps a rank has its
// rows of each weight, of its master and its moments, and passes gather the weight. Or by elements
// (the distributed optimizer): of every parameter's fp32 master and moments a rank has a run of
// elements, which begins anywhere and is perhaps none. Private to kernels/training.
#pragma once

#include <string>
#include <vector>

#include "kernels/training/session_run.h"
#include "kernels/training/sharding/master_weights.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {

class Division {
 public:
  /// References must outlive it. Of a session that divides nothing, and for a null rank, Divide,
  /// Join and what passes call do nothing.
  Division(Engine& engine, const SessionSpec& spec, const SessionRank* rank,
           const SeededFaults& faults, const Cancellation* cancellation)
      : engine_(engine), spec_(spec), rank_(rank), faults_(faults), cancellation_(cancellation) {}
  /// Of an open session.
  Division(const TrainingSession::State& session, const Cancellation* cancellation)
      : Division(session.engine, session.spec, session.rank.get(), session.faults, cancellation) {}

  /// This rank's parts in place of the whole; SessionLayerState::divided says which.
  /// INVALID_ARGUMENT naming the weight that `recipe` quantizes by a rule which ShardedWeight, or
  /// QuantizeMasterWeights, refuses.
  absl::Status Divide(const Recipe& recipe, std::vector<SessionLayerState>& layers) const;
  /// What Divide was given, with the same bits. Collective, as are all below.
  absl::Status Join(std::vector<SessionLayerState>& layers) const;

  // Passes, of weights that are divided by rows.

  /// Whole weights in place of this rank's rows, for a pass of these layers; `trains`: which a
  /// backward follows. Stages "all-gather WEIGHT".
  absl::Status Gather(SessionRun& run, const std::vector<SessionLayerState>& kept, bool trains,
                      std::vector<LayerState>& layers) const;
  /// The rows again.
  void Reshard(const std::vector<SessionLayerState>& kept, std::vector<LayerState>& layers) const;
  /// Of what a forward saved, whole weights gave way to this rank's rows, where that is asked for.
  void ReshardSaved(const std::vector<SessionLayerState>& kept,
                    const std::vector<LayerState>& gathered, InFlight& flight) const;
  /// And back, in a layer's own copy of what was saved. `now`: the layer as it is by then.
  absl::Status RestoreSaved(SessionRun& run, const InFlight& flight, size_t layer,
                            const SessionLayerState& now, LayerSaved& saved) const;

  // Updates, of a divided parameter of a layer.

  /// This rank's rows, or its elements, flat, of the sum of the copies' gradients.
  absl::StatusOr<Tensor> ReduceGradient(size_t layer, const std::string& name,
                                        const DividedParameter& divided,
                                        const Tensor& gradient) const;
  /// The whole tensor of the parameter's shape from every rank's part.
  absl::StatusOr<Tensor> Whole(size_t layer, const DividedParameter& divided,
                               const Tensor& own) const;
  /// Quantizes this rank's part `source` as the whole weight would be: `parameter`, which says the
  /// usages, and `divided` follow. `arguments`: seed and, under delayed scaling, scale.
  /// `amax_group`: as ShardedWeight::Update's. f32 [1] under delayed scaling: the amax of the whole
  /// weight; else absent.
  absl::StatusOr<Tensor> Quantize(size_t layer, const std::string& name, const Tensor& source,
                                  const Quantizer& quantizer, const QuantizeArguments& arguments,
                                  ProcessGroup* amax_group, DividedParameter& divided,
                                  Parameter& parameter) const;

 private:
  bool divides_rows() const { return rank_ != nullptr && spec_.parallel->fully_sharded; }
  bool divides_elements() const {
    return rank_ != nullptr && spec_.parallel->distributed_optimizer;
  }
  /// Over whom the parameters of a layer are divided.
  ProcessGroup& CopiesOf(size_t layer) const { return *CopiesOfLayer(spec_, layer, *rank_); }
  GatherContext context(size_t layer) const {
    return {engine_, CopiesOf(layer), faults_, cancellation_};
  }
  /// Of gathers.
  GatherContext gathers(size_t layer) const;

  /// This rank's part of a tensor of the parameter's shape, `earlier` places too early.
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
  /// The whole weight; of a quantized one in `usages` at least.
  absl::StatusOr<Parameter> GatherParameter(size_t layer, const DividedParameter& divided,
                                            const Parameter& rows, Usages usages) const;
  /// `name`: in errors.
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
  /// A seeded fault.
  absl::StatusOr<Tensor> FromLastToFirst(const Tensor& whole, const ShardBounds& bounds) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const SessionRank* const rank_;
  const SeededFaults& faults_;
  const Cancellation* const cancellation_;
};

}  // namespace quantgate
