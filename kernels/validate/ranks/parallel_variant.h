// Checks of a variant on several ranks (docs/ranks.md section 2) that need no ranks.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/comm/parallel_spec.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// The request of one tensor-parallel rank, with outlines for tensors, made of the whole layer's
/// request. INVALID_ARGUMENT naming the tensor, the dim and the rule if the dim cannot be divided.
absl::StatusOr<LayerRequest> OutlineShard(const LayerRequest& whole, const ParallelSpec& parallel,
                                          const Recipe& recipe, int rank);

/// Checks everything about a parallel variant of `step` that can be known before it runs.
/// CheckLayer must accept `step` under `recipe`. INVALID_ARGUMENT or UNIMPLEMENTED naming `field`,
/// value and rule.
absl::Status CheckParallel(const std::string& field, const LayerRequest& step,
                           const ParallelSpec& parallel, const Recipe& recipe,
                           const Arithmetic& arithmetic);

}  // namespace quantgate
