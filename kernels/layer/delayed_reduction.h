// Delayed scaling's amax reduction over ranks: at the end of a forward or backward, one for all
// layers of a group, before the scales are updated (docs/ranks.md section 4).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/comm/group/process_group.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {

struct ReducedLayer {
  const LayerSpec* spec;     ///< The whole layer's.
  LayerState* state;         ///< Of experts those that this rank has.
  int64_t first_expert = 0;  ///< That `state` calls 0.
};

/// Row 0 of every history of inputs and weights (kForward) or of grad_outputs (kBackward) becomes
/// its maximum over `group` (null: its own), or over the group that `step` (null: none) names for
/// its role, and so the amaxes beside cached weights of which tensor-parallel ranks have parts: one
/// concatenated tensor and one MAX for each of these groups. Every rank brings the
/// same layers in the same order; a state that it has not, another rank's expert, has the amax 0.
/// Nothing under other recipes, under reduce_amax=false, and of one rank.
absl::Status ReduceDelayedAmaxes(StepRecorder& recorder, ProcessGroup* group,
                                 std::span<const ReducedLayer> layers, const Recipe& recipe,
                                 UpdatePoint point, const ParallelStep* step);

/// Whether that is a stage, of so many ranks.
bool ReducesDelayedAmaxes(const Recipe& recipe, int ranks);

}  // namespace quantgate
