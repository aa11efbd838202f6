// Every scenario of this build holds, and every fault that it must catch makes it fail. One needs a
// device, and is left out here and nowhere else (cuda_scenarios_test).
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/validate/scenarios/run_scenarios.h"

namespace quantgate {
namespace QG_TEST_FILE {

Engine& TheEngine() {
  static Engine& engine = *MakeCpuEngine({}).release();
  return engine;
}

std::string FirstOf(const ScenarioResult& result) {
  if (result.differences.empty()) return result.message;
  const ScenarioDifference& first = result.differences.front();
  return absl::StrCat(first.recipe, ": step ", first.step, ", ", first.tensor, ": ", first.subject,
                      ", expected ", first.expected);
}

std::string TestName(const std::string& scenario) {
  std::string name;
  for (const char c : scenario) name += c == '-' ? '_' : c;
  return name;
}

constexpr char kNeedsDevice[] = "cpu-equals-cuda";

class ScenariosTest : public testing::TestWithParam<const Scenario*> {};

TEST_P(ScenariosTest, HoldsAndCatchesItsFaults) {
  const ScenarioLibrary library = BuiltInScenarios();
  const bool is_left_out = GetParam()->name == kNeedsDevice;
  int scenarios = 0, faults = 0;
  const auto status = RunScenarios(
      TheEngine(), library, {GetParam()}, true, nullptr,
      {[&](const ScenarioResult& result) {
         ++scenarios;
         EXPECT_EQ(result.outcome,
                   is_left_out ? ScenarioOutcome::kLeftOut : ScenarioOutcome::kPassed)
             << ScenarioOutcomeName(result.outcome) << ": " << FirstOf(result);
       },
       [&](const FaultResult& result) {
         ++faults;
         EXPECT_EQ(result.outcome, is_left_out ? FaultOutcome::kLeftOut : FaultOutcome::kCaught)
             << result.fault << ": " << result.message;
         if (result.outcome == FaultOutcome::kCaught) {
           EXPECT_FALSE(result.first.tensor.empty()) << result.fault;
         }
       }});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(scenarios, 1);
  EXPECT_EQ(faults, static_cast<int>(GetParam()->faults.size()));
}

std::vector<const Scenario*> Pointers() {
  std::vector<const Scenario*> pointers;
  for (const Scenario& scenario : AllScenarios()) pointers.push_back(&scenario);
  return pointers;
}

INSTANTIATE_TEST_SUITE_P(All, ScenariosTest, testing::ValuesIn(Pointers()),
                         [](const testing::TestParamInfo<const Scenario*>& info) {
                           return TestName(info.param->name);
                         });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
