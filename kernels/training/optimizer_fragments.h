// The distributed optimizer of a session (docs/distributed.md section 9.3): of every parameter's
// fp32 master and moments each of the ranks that have the parameter keeps a run of elements, which
// begins anywhere and is perhaps none. Private to kernels/training.
#pragma once

#include <string>
#include <vector>

#include "kernels/training/master_weights.h"
#include "kernels/training/session_state.h"
#include "kernels/training/state_sharding.h"

namespace quantgate {

class OptimizerFragments {
 public:
  /// References must outlive it. Of a session without a distributed optimizer, and for a null rank,
  /// Divide and Join do nothing.
  OptimizerFragments(Engine& engine, const SessionSpec& spec, const SessionRank* rank,
                     const SeededFaults& faults, const Cancellation* cancellation)
      : engine_(engine), spec_(spec), rank_(rank), faults_(faults), cancellation_(cancellation) {}

  bool is_divided() const { return rank_ != nullptr && spec_.parallel->distributed_optimizer; }

  /// This rank's elements in place of whole masters and moments; SessionLayerState::fragments says
  /// which. INVALID_ARGUMENT naming the weight that `recipe` quantizes by a rule which
  /// QuantizeMasterWeights refuses.
  absl::Status Divide(const Recipe& recipe, std::vector<SessionLayerState>& layers) const;
  /// What Divide was given, with the same bits. Collective, as are all below.
  absl::Status Join(std::vector<SessionLayerState>& layers) const;

  /// This rank's elements, flat, of the sum of the copies' gradients.
  absl::StatusOr<Tensor> ReduceGradient(size_t layer, const std::string& parameter,
                                        const ShardBounds& bounds, const Tensor& gradient) const;
  /// The whole tensor of this shape, of this layer, from the elements of every rank.
  absl::StatusOr<Tensor> Whole(size_t layer, const Tensor& own, const Shape& shape) const;
  /// A weight quantized as a whole, from every rank's elements. `weight`: quantized before, which
  /// says shape and usages; `scale`: of delayed scaling; `amax_group`: as QuantizeMasterWeights'.
  absl::StatusOr<QuantizedMaster> Quantize(size_t layer, const std::string& name, const Tensor& own,
                                           const ShardBounds& bounds, const QuantizedTensor& weight,
                                           const Quantizer& quantizer, const Tensor& scale,
                                           ProcessGroup* amax_group) const;

 private:
  /// Over whom the elements of a layer's parameters are divided.
  ProcessGroup& CopiesOf(size_t layer) const { return *CopiesOfLayer(spec_, layer, *rank_); }
  /// The parameters of the layers whose copies are `copies`, in one flat buffer.
  absl::Status DivideBuffer(const ProcessGroup& copies, const Recipe& recipe,
                            std::vector<SessionLayerState>& layers) const;
  absl::StatusOr<MasterFragment> FragmentOf(const std::string& name, const Tensor& own,
                                            const ShardBounds& bounds,
                                            const QuantizedTensor& weight,
                                            const Quantizer& quantizer) const;
  absl::Status DivideOne(size_t layer, const std::string& name, SessionLayerState& state) const;
  /// A seeded fault.
  absl::StatusOr<Tensor> FromLastToFirst(const Tensor& whole, const ShardBounds& bounds) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const SessionRank* const rank_;
  const SeededFaults& faults_;
  const Cancellation* const cancellation_;
};

}  // namespace quantgate
