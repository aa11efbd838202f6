// Quantizing weights from fp32 masters of which every rank of a group has a fragment: a run of
// row-major elements that may begin anywhere and may be empty (docs/ranks.md section 7). The
// bytes are those of quantizing the whole weight on one rank, but for scales that meet subnormals
// (docs/quantizers.md section 8.2).
//
// However many weights there are, this takes one MAX over the group for each kind of format, one
// more if an amax group is named, and one all-gather of bytes for each direction that is cast.
// Every rank takes part in all of them.
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
  std::string name;  ///< The weight's name in errors.
  Tensor master;     ///< f32: the elements [bounds[rank], bounds[rank + 1]).
  ShardBounds bounds;
  Shape shape;                 ///< The whole weight's: [O][K].
  DType dtype = DType::kBF16;  ///< The weight's dtype, to which kThroughBf16 rounds.
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

/// Refuses one rank's fragment as QuantizeMasterWeights does, without a collective call.
absl::Status CheckMasterFragment(const MasterFragment& fragment, int rank, int ranks);

/// All ranks must bring the same weights in the same order: their shapes and bounds are compared
/// first, and all are checked before any is cast. `amax_group`: the scale of a weight that has one
/// amax comes from the largest amax of the group members' whole weights; null: from its own amax.
///
/// INVALID_ARGUMENT naming weight, field, value and rule: wrong bounds; fragments of FP4 weights
/// that begin at odd elements, since two share a byte; 1-D blocks of fp8_block and nvfp4,
/// stochastic rounding and 4over6 (kernels/quantize/fragment.h); two rules other than per-tensor
/// FP8 with current scaling and identity; a rule that is made from the other rule's codes.
absl::StatusOr<std::vector<QuantizedMaster>> QuantizeMasterWeights(
    const GatherContext& context, std::span<const MasterFragment> weights,
    Requantization requantization, ProcessGroup* amax_group = nullptr);

}  // namespace quantgate
