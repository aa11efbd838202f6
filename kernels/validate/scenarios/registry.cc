#include <iterator>
#include <utility>

#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

const ScenarioGroup& WholeGroup() {
  static const ScenarioGroup& whole = *[] {
    auto* all = new ScenarioGroup;
    for (const auto make : {&QuantizerScenarios,    &Fp8Scenarios,         &Mxfp8Scenarios,
                            &Nvfp4Scenarios,        &RandomScenarios,      &DelayedScalingScenarios,
                            &EmptyScenarios,        &LinearScenarios,      &HybridScenarios,
                            &LayerScenarios,        &SessionScenarios,     &WeightScenarios,
                            &GroupCallScenarios,    &GroupSumScenarios,    &GroupAmaxScenarios,
                            &ShardScenarios,        &ExpertScenarios,      &OverlapScenarios,
                            &OverlapLayerScenarios, &GatherScenarios,      &ParallelScenarios,
                            &ParallelStepScenarios, &RankSessionScenarios, &ExpertSessionScenarios,
                            &ExpertShardScenarios,  &GroupedScenarios,     &MemoryScenarios,
                            &AttentionScenarios}) {
      ScenarioGroup group = make();
      std::move(group.scenarios.begin(), group.scenarios.end(), std::back_inserter(all->scenarios));
      std::move(group.faults.begin(), group.faults.end(), std::back_inserter(all->faults));
    }
    return all;
  }();
  return whole;
}

}  // namespace

const std::vector<Scenario>& AllScenarios() { return WholeGroup().scenarios; }
const std::vector<Fault>& AllFaults() { return WholeGroup().faults; }

}  // namespace quantgate
