// A linear step by the layer code on the engine that is looked at, beside the one by hand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/layer/step_recorder.h"
#include "kernels/validate/scenarios/oracles/expected_linear.h"

namespace quantgate {

struct LinearRun : StepRecords {
  NamedOutputs outputs;
};

/// The step with all operands in the engine's memory. `operands.first_call_id` and `scales` must be
/// those of a fresh run.
absl::StatusOr<LinearRun> RunLinearOn(ScenarioContext& context, const LinearOperands& operands,
                                      const Recipe& recipe);

/// All outputs are there, no other, and bit-equal.
absl::Status ExpectSameOutputs(ScenarioContext& context, std::string_view step,
                               const NamedOutputs& subject, const NamedOutputs& expected);

/// RunLinearOn under context.recipe() gives what ExpectedLinear gives.
absl::StatusOr<LinearRun> ExpectLinearAsByHand(ScenarioContext& context, std::string_view step,
                                               const LinearOperands& operands);

/// Normal tensors of a linear step, in `dtype` but for the weight, which is bf16.
absl::StatusOr<LinearOperands> MakeLinearOperands(ScenarioContext& context, DType dtype, int64_t m,
                                                  int64_t n, int64_t k, uint64_t seed);

}  // namespace quantgate
