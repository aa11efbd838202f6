// Every scenario on the CUDA engine holds, with expected values from plain code on the CPU, and
// every fault that it must catch makes it fail there too.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/validate/scenarios/run_scenarios.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::string FirstOf(const ScenarioResult& result) {
  if (result.differences.empty()) return result.message;
  const ScenarioDifference& first = result.differences.front();
  return absl::StrCat(first.recipe, ": step ", first.step, ", ", first.tensor, ": ", first.subject,
                      ", expected ", first.expected);
}

TEST(CudaScenarios, HoldAndCatchTheirFaults) {
  int64_t scenarios = 0, checks = 0, faults = 0;
  const ScenarioLibrary library = BuiltInScenarios();
  std::vector<const Scenario*> all;
  for (const Scenario& scenario : AllScenarios()) all.push_back(&scenario);
  // Of the loaded module, as the engines of ranks are: what its engines tell each other is theirs.
  const absl::StatusOr<std::unique_ptr<Engine>> engine = MakeCudaEngine(0);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::Status status =
      RunScenarios(**engine, library, all, /*with_faults=*/true, nullptr,
                   {[&](const ScenarioResult& result) {
                      ++scenarios;
                      checks += result.checks;
                      // Nothing is left out: what needs a GPU has one here.
                      EXPECT_EQ(result.outcome, ScenarioOutcome::kPassed)
                          << result.scenario << ": " << ScenarioOutcomeName(result.outcome) << ": "
                          << FirstOf(result);
                    },
                    [&](const FaultResult& result) {
                      ++faults;
                      EXPECT_EQ(result.outcome, FaultOutcome::kCaught)
                          << result.scenario << ", " << result.fault << ": " << result.message;
                      EXPECT_FALSE(result.first.tensor.empty()) << result.fault;
                    }});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(scenarios, static_cast<int64_t>(AllScenarios().size()));
  EXPECT_GE(faults, static_cast<int64_t>(AllFaults().size()));
  std::cout << scenarios << " scenarios with " << checks << " checks, " << faults
            << " times a fault of " << AllFaults().size() << "\n";
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
