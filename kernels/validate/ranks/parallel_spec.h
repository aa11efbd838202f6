// What a variant on several ranks (docs/ranks.md section 2) must satisfy before there are
// ranks.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/comm/parallel_spec.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// The request of one rank without its tensors' data, from the whole layer's. INVALID_ARGUMENT
/// naming the tensor, the dim and the rule where the ranks do not divide it.
absl::StatusOr<LayerRequest> OutlineShard(const LayerRequest& whole, const ParallelSpec& parallel,
                                          const Recipe& recipe, int rank);

/// Everything about a parallel variant of `step` that is known before it runs, for a step that
/// CheckLayer accepts under `recipe`. INVALID_ARGUMENT or UNIMPLEMENTED naming `field`, value and
/// rule.
absl::Status CheckParallel(const std::string& field, const LayerRequest& step,
                           const ParallelSpec& parallel, const Recipe& recipe,
                           const Arithmetic& arithmetic);

}  // namespace quantgate
