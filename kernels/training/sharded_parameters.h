// Weights of a session whose rows are divided over the copies of the layers, experts' over those of
// the experts (FSDP, docs/distributed.md section 9.1): between steps a rank has its rows of each
// weight, of its master and its moments; passes gather the weight. Private to kernels/training.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/training/session_run.h"
#include "kernels/training/state_sharding.h"

namespace quantgate {

class ShardedParameters {
 public:
  /// References must outlive it. `rank` of a session that is fully sharded; of another, and null,
  /// every function below does nothing.
  ShardedParameters(Engine& engine, const SessionSpec& spec, const SessionRank* rank,
                    const SeededFaults& faults, const Cancellation* cancellation)
      : engine_(engine), spec_(spec), rank_(rank), faults_(faults), cancellation_(cancellation) {}

  bool is_sharded() const { return rank_ != nullptr && spec_.parallel->fully_sharded; }

  /// This rank's rows in place of whole weights with what training keeps of them.
  /// INVALID_ARGUMENT naming the weight for a quantizer that ShardedWeight refuses.
  absl::Status Shard(const Recipe& recipe, std::vector<SessionLayerState>& layers) const;
  /// What Shard was given, with the same bits. Collective, as are all below.
  absl::Status Unshard(std::vector<SessionLayerState>& layers) const;

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

  /// This rank's rows of the sum of the copies' gradients of a weight of this layer.
  absl::StatusOr<Tensor> ReduceGradient(size_t layer, const ShardedParameter& sharded,
                                        const Tensor& gradient) const;
  /// Quantizes the rows `source` as the whole weight would be: `parameter` and `sharded` follow.
  /// The amax beside the codes is the whole weight's. `amax_group`: as ShardedWeight::Update's.
  absl::Status Quantize(size_t layer, const Tensor& source, const Quantizer& quantizer,
                        const QuantizeArguments& arguments, ProcessGroup* amax_group,
                        ShardedParameter& sharded, Parameter& parameter) const;

 private:
  /// Over whom the rows of a layer's weights are divided.
  ProcessGroup& CopiesOf(size_t layer) const { return *CopiesOfLayer(spec_, layer, *rank_); }
  GatherContext context(size_t layer) const {
    return {engine_, CopiesOf(layer), faults_, cancellation_};
  }
  /// Of gathers.
  GatherContext gathers(size_t layer) const;
  /// The whole weight; of a quantized one in `usages` at least.
  absl::StatusOr<Parameter> GatherParameter(size_t layer, const ShardedParameter& sharded,
                                            const Parameter& rows, Usages usages) const;
  absl::Status ShardOne(size_t layer, const std::string& name, const Recipe& recipe,
                        SessionLayerState& state) const;
  absl::Status UnshardOne(size_t layer, const std::string& name, SessionLayerState& state) const;
  absl::StatusOr<Tensor> Rows(size_t layer, const Tensor& whole, const ShardBounds& bounds,
                              int64_t earlier = 0) const;
  absl::StatusOr<QuantizedTensor> Rows(size_t layer, const QuantizedTensor& whole,
                                       const ShardedWeightSpec& of) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const SessionRank* const rank_;
  const SeededFaults& faults_;
  const Cancellation* const cancellation_;
};

}  // namespace quantgate
