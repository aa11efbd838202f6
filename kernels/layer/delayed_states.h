// Delayed scaling within one step: where scales come from, what casts leave in the histories, and
// the updates (docs/quantizers.md section 2). States are by name: "input", "fc1.weight", ...
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/layer/step_recorder.h"

namespace quantgate {

using DelayedStates = std::map<std::string, DelayedScalingState>;

/// Makes a fresh state where `name` has none, and gives its history the recipe's length, which a
/// note says.
absl::Status PrepareDelayedState(StepRecorder& recorder, const std::string& name,
                                 const DelayedScalingOptions& options, DelayedStates& states);

/// After a cast: row 0 merges the amax.
absl::Status NoteCast(StepRecorder& recorder, const QuantizedTensor& quantized,
                      DelayedScalingState& state);

/// Assigns the amax of `source` to row 0. `rule` is the quantizer that will cast such a tensor.
absl::Status Calibrate(StepRecorder& recorder, const std::string& stage, const Tensor& source,
                       QuantizerSpec rule, DelayedScalingState& state);

/// The update of one state, of tensors cast to `element`.
absl::Status UpdateDelayedState(StepRecorder& recorder, const DelayedScalingOptions& options,
                                DType element, DelayedScalingState& state);

}  // namespace quantgate
