// Delayed scaling within one step: preparing its states, noting the amaxes of casts in their
// histories, and updating their scales (docs/quantizers.md section 2).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/layer/step_recorder.h"

namespace quantgate {

using DelayedStates =
    std::map<std::string, DelayedScalingState>;  ///< By "input", "fc1.weight", ...

/// Makes a fresh state if `name` has none. Cuts a history of another length than the recipe's, or
/// fills it with zeros, and notes that in the recorder.
absl::Status PrepareDelayedState(StepRecorder& recorder, const std::string& name,
                                 const DelayedScalingOptions& options, DelayedStates& states);

/// Merges the amax of a cast into row 0 of the history.
absl::Status NoteCast(StepRecorder& recorder, const QuantizedCopy& copy,
                      DelayedScalingState& state);

/// Puts the amax of `source` into row 0 of the history. `rule` is the quantizer that will cast such
/// tensors.
absl::Status Calibrate(StepRecorder& recorder, const std::string& stage, const Tensor& source,
                       QuantizerSpec rule, DelayedScalingState& state);

/// Updates the scale of one state, whose tensors are cast to `element`.
absl::Status UpdateDelayedState(StepRecorder& recorder, const DelayedScalingOptions& options,
                                DType element, DelayedScalingState& state);

}  // namespace quantgate
