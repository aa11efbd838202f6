// Delayed scaling's amax reduction over ranks: at the end of a forward or backward, one for all
// layers of a group, before the scales are updated (docs/distributed.md section 4).
#pragma once

#include <span>

#include "kernels/comm/process_group.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {

struct ReducedLayer {
  const LayerSpec* spec;
  LayerState* state;
};

/// Row 0 of every history of inputs and weights (kForward) or of grad_outputs (kBackward) becomes
/// its maximum over the group: one concatenated tensor, one MAX. Every rank brings the same layers
/// in the same order. Nothing under other recipes, under reduce_amax=false, and of one rank.
absl::Status ReduceDelayedAmaxes(StepRecorder& recorder, ProcessGroup& group,
                                 std::span<const ReducedLayer> layers, const Recipe& recipe,
                                 UpdatePoint point);

/// Whether that is a stage, of so many ranks.
bool ReducesDelayedAmaxes(const Recipe& recipe, int ranks);

}  // namespace quantgate
