// Bodies that the virtual ranks of a scenario run at once, in the group of all of them.
#pragma once

#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// Runs the body of every rank, with the faults of the scenario's run; whether it was done. What a
/// rank refuses is a difference.
bool RunOnRanks(ScenarioContext& context, int ranks, std::string_view what,
                absl::FunctionRef<absl::Status(const GatherContext& rank)> body);

}  // namespace quantgate
