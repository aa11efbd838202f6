// Delayed scaling's amax reduction over ranks: one for all layers of a group at the end of a
// forward or backward, before the scales are updated (docs/ranks.md section 4).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/comm/group/process_group.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {

struct ReducedLayer {
  const LayerSpec* spec;     ///< The spec of the whole layer.
  LayerState* state;         ///< Has only the experts of this rank.
  int64_t first_expert = 0;  ///< The whole layer's number of the expert that `state` calls 0.
};

/// Replaces row 0 of every history of inputs and weights (kForward) or of grad_outputs (kBackward)
/// by its maximum over the ranks of `group`, or of the group that `step` names for its role. Does
/// the same to the amaxes kept beside cached weights that tensor-parallel ranks have parts of. Each
/// of these groups makes one call: a MAX of one concatenated tensor. Every rank must bring the same
/// layers in the same order; it contributes the amax 0 for a state that it lacks, that of another
/// rank's expert. Does nothing under other recipes, under reduce_amax=false, and over one rank.
/// A null `group` is this rank alone; a null `step` names no groups.
absl::Status ReduceDelayedAmaxes(StepRecorder& recorder, ProcessGroup* group,
                                 std::span<const ReducedLayer> layers, const Recipe& recipe,
                                 UpdatePoint point, const ParallelStep* step);

/// Whether ReduceDelayedAmaxes does anything over a group of so many ranks.
bool ReducesDelayedAmaxes(const Recipe& recipe, int ranks);

}  // namespace quantgate
