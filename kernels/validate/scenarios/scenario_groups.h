// The scenarios of this build by subject, each group with the faults that it is about. A new
// scenario is an entry of a group and a function beside it.
#pragma once

#include <vector>

#include "kernels/validate/scenarios/scenario.h"

namespace quantgate {

struct ScenarioGroup {
  std::vector<Scenario> scenarios;
  std::vector<Fault> faults;
};

/// A fault that layer or session code asks for by its name.
inline Fault InCode(const char* name, const char* description, int bug_class = 0) {
  return {name, description, bug_class, {}};
}

/// A fault that faulty_communication.h asks for by its name, one of comm_faults.h.
inline Fault InCommunication(const char* name, const char* description, int bug_class = 0) {
  return {name, description, bug_class, {}, /*is_around_communication=*/true};
}

ScenarioGroup QuantizerScenarios();       ///< Codes of every format, one and both directions.
ScenarioGroup Fp8Scenarios();             ///< Per-tensor and 128-blocks.
ScenarioGroup Mxfp8Scenarios();           ///< E8M0 scales and their layouts.
ScenarioGroup Nvfp4Scenarios();           ///< Two-level scales, the Hadamard transform, 4over6.
ScenarioGroup RandomScenarios();          ///< Stochastic rounding.
ScenarioGroup DelayedScalingScenarios();  ///< Amax histories.
ScenarioGroup EmptyScenarios();           ///< Tensors without rows.
ScenarioGroup LinearScenarios();          ///< One step of a linear layer.
ScenarioGroup HybridScenarios();          ///< A format per direction.
ScenarioGroup LayerScenarios();           ///< Gradients, experts, norms, engines.
ScenarioGroup AttentionScenarios();       ///< Masks, groups, rotations, residuals.
ScenarioGroup SessionScenarios();         ///< What training keeps between steps.
ScenarioGroup RankSessionScenarios();     ///< Training on ranks that have rows of each weight.
ScenarioGroup ExpertSessionScenarios();   ///< Training on ranks that have experts of their own.
ScenarioGroup ExpertShardScenarios();     ///< Training on ranks that have pieces of experts.
ScenarioGroup GatherScenarios();          ///< Quantized tensors divided and put together.
ScenarioGroup ParallelScenarios();        ///< Layers divided over ranks.
ScenarioGroup ParallelStepScenarios();    ///< Groups, scales and codes from step to step.
ScenarioGroup MemoryScenarios();          ///< Bytes saved and gathered for backward.
ScenarioGroup WeightScenarios();          ///< Quantized and cached weights, main gradients.
ScenarioGroup GroupCallScenarios();       ///< Calls of ranks that agree and that do not.
ScenarioGroup GroupSumScenarios();        ///< Orders and roundings of sums over ranks.
ScenarioGroup GroupAmaxScenarios();       ///< Maxima over groups of ranks.
ScenarioGroup ShardScenarios();           ///< Weights, masters and optimizers over ranks.
ScenarioGroup ExpertScenarios();          ///< Experts over ranks.
ScenarioGroup GroupedScenarios();         ///< Experts whose weights are divided over ranks.
ScenarioGroup OverlapScenarios();         ///< Communication beside GEMMs.
ScenarioGroup OverlapLayerScenarios();    ///< Layers whose communication is hidden.

}  // namespace quantgate
