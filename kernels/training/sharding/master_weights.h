// Quantizing weights from fp32 masters of which every rank of a group holds a fragment: a run of
// the row-major elements, wherever it begins, perhaps none (docs/ranks.md section 7). The
// bytes are those of quantizing the whole weight on one rank.
//
// One MAX over the group for each kind of format that the weights have, whatever their number, one
// more where a group is named whose parts have one scale, and one all-gather of bytes for each
// direction that is cast. Every rank takes part in all of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/quantize/fragment.h"
#include "kernels/training/sharding/shard_bounds.h"
#include "kernels/training/training_session.h"

namespace quantgate {

struct MasterFragment {
  std::string name;  ///< Of the weight, in errors.
  Tensor master;     ///< f32: the elements [bounds[rank], bounds[rank + 1]).
  ShardBounds bounds;
  Shape shape;                 ///< Of the whole weight: [O][K].
  DType dtype = DType::kBF16;  ///< Of the weight: what kThroughBf16 rounds to.
  Quantizer quantizer;
  Usages usages = {true, true};
  Tensor scale = {};  ///< f32 [1], delayed scaling only.
};

struct QuantizedMaster {
  /// Whole, in the asked usages. Counts are left zero.
  QuantizedTensor weight;
  /// f32 [1], delayed scaling only: max |x| of the whole weight, for the scales to come.
  Tensor delayed_amax;
};

/// What QuantizeMasterWeights refuses of one rank's fragment, before there is a call.
absl::Status CheckMasterFragment(const MasterFragment& fragment, int rank, int ranks);

/// Weights are the same on all ranks, in the same order: their shapes and bounds are compared
/// first. All are checked before any is cast. `amax_group`: the scale of a weight that has one amax
/// is of the largest of its members' weights, each whole; null: of its own.
///
/// INVALID_ARGUMENT naming weight, field, value and rule: bounds; fragments of FP4 weights begin at
/// even elements, two to a byte; 1-D blocks of fp8_block and nvfp4, stochastic rounding and 4over6
/// (kernels/quantize/fragment.h); two rules other than per-tensor FP8 with current scaling and
/// identity, or of which one is made from the other's codes.
absl::StatusOr<std::vector<QuantizedMaster>> QuantizeMasterWeights(
    const GatherContext& context, std::span<const MasterFragment> weights,
    Requantization requantization, ProcessGroup* amax_group = nullptr);

}  // namespace quantgate
