// The runner of scenarios, on scenarios of its own: what it must not take for a pass.
#include "kernels/validate/scenarios/run_scenarios.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

Engine& TheEngine() {
  static Engine& engine = *MakeCpuEngine({}).release();
  return engine;
}

/// An engine whose scales are those of half the maximum.
EngineAlterations HalvedRange() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.arguments.group_amax_rowwise = *Tensor::FromScalar(1024.0f);
    return call.On(engine);
  }};
}

Fault AlteredFault() {
  return {"halved-range", "Takes amax 1024 for every tensor.", 0, &HalvedRange};
}
Fault SeededFault() { return {"seeded", "Is in the code.", 0, {}}; }

absl::Status QuantizeOnes(ScenarioContext& context, float& scale_inv) {
  const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const auto source = Tensor::FromBytes(DType::kF32, {1, 16}, std::as_bytes(std::span(ones)));
  const auto quantized = context.engine().Quantize(
      *source, context.recipe().QuantizerFor(TensorRole::kInput), {}, {}, nullptr);
  if (!quantized.ok()) return quantized.status();
  scale_inv = *quantized->rowwise->scale_inv.as<float>();
  return absl::OkStatus();
}

Scenario ScenarioOf(std::string name, std::vector<std::string> faults,
                    std::function<absl::Status(ScenarioContext&)> run) {
  Scenario scenario;
  scenario.name = std::move(name);
  scenario.faults = std::move(faults);
  scenario.recipes = {"fp8_current"};
  scenario.run = std::move(run);
  return scenario;
}

Scenario Good(std::vector<std::string> faults) {
  return ScenarioOf("good", std::move(faults), [](ScenarioContext& context) -> absl::Status {
    float scale_inv = 0;
    const absl::Status status = QuantizeOnes(context, scale_inv);
    context.ExpectSameFloat("scale_inv", scale_inv, 1.0f / 448.0f);
    return status;
  });
}

/// Compares what the engine gives with what the engine gives.
Scenario Blind(std::vector<std::string> faults) {
  return ScenarioOf("blind", std::move(faults), [](ScenarioContext& context) -> absl::Status {
    float a = 0, b = 0;
    const absl::Status status = QuantizeOnes(context, a);
    if (!status.ok()) return status;
    context.ExpectSameFloat("scale_inv", a, b = a);
    return absl::OkStatus();
  });
}

struct Results {
  std::vector<ScenarioResult> scenarios;
  std::vector<FaultResult> faults;
};

Results RunAll(const std::vector<Scenario>& scenarios, const std::vector<Fault>& faults) {
  Results results;
  const ScenarioLibrary library{&scenarios, &faults};
  const auto found = FindScenarios(library, {});
  EXPECT_TRUE(RunScenarios(TheEngine(), library, *found, true, nullptr,
                           {[&](const ScenarioResult& r) { results.scenarios.push_back(r); },
                            [&](const FaultResult& r) { results.faults.push_back(r); }})
                  .ok());
  return results;
}

ScenarioTally TallyOf(const Results& results) {
  ScenarioTally tally;
  for (const ScenarioResult& result : results.scenarios) tally.Add(result);
  for (const FaultResult& result : results.faults) tally.Add(result);
  return tally;
}

TEST(RunScenariosTest, CatchesAFault) {
  const Results results = RunAll({Good({"halved-range"})}, {AlteredFault()});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kPassed);
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kCaught);
  EXPECT_EQ(results.faults[0].first.tensor, "scale_inv");
  EXPECT_EQ(results.faults[0].first.recipe, "fp8_current");
  EXPECT_TRUE(TallyOf(results).is_good());
}

TEST(RunScenariosTest, AScenarioThatCannotFailMissesItsFault) {
  const Results results = RunAll({Blind({"halved-range"})}, {AlteredFault()});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kPassed);
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kMissed);
  EXPECT_FALSE(TallyOf(results).is_good());
  EXPECT_NE(results.faults[0].message.find("passed with the fault"), std::string::npos);
}

TEST(RunScenariosTest, AFaultNobodyAsksForIsMissed) {
  const Results results = RunAll({Good({"seeded"})}, {SeededFault()});
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kMissed);
}

TEST(RunScenariosTest, SeedsCodeFaultsInTheirRunAlone) {
  std::vector<bool> seen;
  const Scenario scenario = ScenarioOf("asks", {"seeded"}, [&](ScenarioContext& context) {
    seen.push_back(context.faults().Has("seeded"));
    context.ExpectEqual("seeded", seen.back(), 0);
    return absl::OkStatus();
  });
  const Results results = RunAll({scenario, scenario}, {SeededFault()});
  EXPECT_EQ(seen, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kCaught);
}

TEST(RunScenariosTest, AnErrorDoesNotCatch) {
  const Scenario falls = ScenarioOf("falls", {"seeded"}, [](ScenarioContext& context) {
    context.ExpectEqual("one", 1, 1);
    return context.faults().Has("seeded") ? absl::InternalError("fell over") : absl::OkStatus();
  });
  const Results results = RunAll({falls}, {SeededFault()});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kPassed);
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kMissed);
  EXPECT_NE(results.faults[0].message.find("fell over"), std::string::npos);
}

TEST(RunScenariosTest, WhatIsFoundBeforeAnErrorStaysFound) {
  const Scenario finds = ScenarioOf("finds", {"seeded"}, [](ScenarioContext& context) {
    context.ExpectEqual("one", context.faults().Has("seeded") ? 2 : 1, 1);
    return context.faults().Has("seeded") ? absl::InternalError("fell over") : absl::OkStatus();
  });
  const Results results = RunAll({finds}, {SeededFault()});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kPassed);
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kCaught);
  EXPECT_EQ(results.faults[0].first.tensor, "one");
  EXPECT_NE(results.faults[0].message.find("fell over"), std::string::npos);
}

TEST(RunScenariosTest, NothingCheckedIsNoPass) {
  const Results results =
      RunAll({ScenarioOf("idle", {}, [](ScenarioContext&) { return absl::OkStatus(); })}, {});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kError);
  EXPECT_FALSE(TallyOf(results).is_good());
}

Scenario LeftOut() {
  return ScenarioOf("elsewhere", {"seeded"}, [](ScenarioContext& context) {
    context.LeaveOut("needs a device");
    return absl::OkStatus();
  });
}

TEST(RunScenariosTest, LeftOutIsSaid) {
  const Results results = RunAll({LeftOut()}, {SeededFault()});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kLeftOut);
  EXPECT_EQ(results.scenarios[0].message, "needs a device");
  EXPECT_EQ(results.faults[0].outcome, FaultOutcome::kLeftOut);
}

TEST(RunScenariosTest, LeftOutIsNeitherGoodNorBad) {
  const ScenarioTally alone = TallyOf(RunAll({LeftOut()}, {SeededFault()}));
  EXPECT_EQ(alone.good, 0);
  EXPECT_EQ(alone.bad, 0);
  EXPECT_EQ(alone.scenarios_left_out, 1);
  EXPECT_EQ(alone.faults_left_out, 1);
  EXPECT_FALSE(alone.is_good()) << "nothing was looked at";
  const ScenarioTally beside = TallyOf(RunAll({LeftOut(), Good({})}, {SeededFault()}));
  EXPECT_EQ(beside.good, 1);
  EXPECT_EQ(beside.scenarios_left_out, 1);
  EXPECT_TRUE(beside.is_good());
  // A fault that is missed is bad whatever is left out beside it.
  const ScenarioTally missed = TallyOf(RunAll({LeftOut(), Good({"seeded"})}, {SeededFault()}));
  EXPECT_EQ(missed.bad, 1);
  EXPECT_FALSE(missed.is_good());
}

TEST(RunScenariosTest, SaysWhatWasMeasured) {
  const Results results = RunAll({ScenarioOf("measures", {},
                                             [](ScenarioContext& context) {
                                               context.ExpectEqual("one", 1, 1);
                                               context.AddNote("3 of 4");
                                               return absl::OkStatus();
                                             })},
                                 {});
  EXPECT_EQ(results.scenarios[0].notes, std::vector<std::string>{"fp8_current: 3 of 4"});
  EXPECT_EQ(results.scenarios[0].outcome, ScenarioOutcome::kPassed);
}

TEST(RunScenariosTest, AFaultThatTheLibraryLacksIsMissed) {
  const Results results = RunAll({Good({"halved-range", "forgotten"})}, {AlteredFault()});
  EXPECT_EQ(results.faults[1].outcome, FaultOutcome::kMissed);
  EXPECT_EQ(results.faults[1].message, "no such fault");
}

TEST(RunScenariosTest, FindsByNameInTheLibrarysOrder) {
  const std::vector<Scenario> scenarios = {Good({}), Blind({})};
  const std::vector<Fault> faults;
  const ScenarioLibrary library{&scenarios, &faults};
  EXPECT_EQ(FindScenarios(library, {"blind", "good"})->front()->name, "good");
  EXPECT_EQ(FindScenarios(library, {"blind"})->size(), 1u);
  const absl::Status status = FindScenarios(library, {"blind", "bad"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("\"bad\": unknown name; known: good, blind"),
            absl::string_view::npos);
}

TEST(RunScenariosTest, StopsWhenCancelled) {
  const std::vector<Scenario> scenarios = {Good({}), Good({})};
  const std::vector<Fault> faults;
  const ScenarioLibrary library{&scenarios, &faults};
  Cancellation cancellation;
  int runs = 0;
  const absl::Status status =
      RunScenarios(TheEngine(), library, *FindScenarios(library, {}), true, &cancellation,
                   {[&](const ScenarioResult&) {
                      ++runs;
                      cancellation.Cancel();
                    },
                    [](const FaultResult&) {}});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(runs, 1);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
