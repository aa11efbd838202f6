// Runs of scenarios side by side: what agrees, what does not, and what is no run.
#include "client/cli/commands/scenario_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

RecordedRun RunOf(const std::string& name, std::vector<RecordedScenario> scenarios) {
  return {name, std::move(scenarios)};
}

AgreementKind KindOfOne(const std::vector<RecordedScenario>& runs) {
  std::vector<RecordedRun> recorded;
  for (const RecordedScenario& run : runs) {
    recorded.push_back(RunOf("run", {}));
    if (!run.name.empty()) recorded.back().scenarios.push_back(run);
  }
  return AgreementOf(recorded).front().kind;
}

const RecordedScenario kOne = {"s", "passed", "1111"}, kTwo = {"s", "passed", "2222"},
                       kLeftOut = {"s", "left_out", ""}, kFailed = {"s", "failed", "1111"},
                       kFell = {"s", "error", ""}, kNoDigest = {"s", "passed", ""},
                       kMissing = {"", "", ""};

TEST(ScenarioAgreement, ComparesDigests) {
  EXPECT_EQ(KindOfOne({kOne, kOne, kOne}), AgreementKind::kEqual);
  EXPECT_EQ(KindOfOne({kOne, kOne, kTwo}), AgreementKind::kDiffers);
  EXPECT_EQ(KindOfOne({kTwo, kMissing, kOne}), AgreementKind::kDiffers);
  EXPECT_EQ(KindOfOne({kOne, kOne, kMissing}), AgreementKind::kAbsent);
  EXPECT_EQ(KindOfOne({kOne, kNoDigest}), AgreementKind::kAbsent);
  EXPECT_EQ(KindOfOne({kOne, kFailed}), AgreementKind::kNotPassed);
  EXPECT_EQ(KindOfOne({kFailed, kFailed}), AgreementKind::kNotPassed);
  EXPECT_EQ(KindOfOne({kOne, kOne, kFell}), AgreementKind::kNotPassed);
  EXPECT_EQ(KindOfOne({kLeftOut, kOne, kOne}), AgreementKind::kEqual);
  EXPECT_EQ(KindOfOne({kLeftOut, kOne, kTwo}), AgreementKind::kDiffers);
  EXPECT_EQ(KindOfOne({kLeftOut, kOne}), AgreementKind::kLeftOut);
  EXPECT_EQ(KindOfOne({kLeftOut, kLeftOut}), AgreementKind::kLeftOut);
}

TEST(ScenarioAgreement, TakesScenariosOfAnyRun) {
  const std::vector<ScenarioAgreement> all =
      AgreementOf({RunOf("a", {{"x", "passed", "1"}, {"y", "passed", "2"}}),
                   RunOf("b", {{"z", "passed", "3"}, {"y", "passed", "2"}})});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].scenario, "x");
  EXPECT_EQ(all[0].kind, AgreementKind::kAbsent);
  EXPECT_EQ(all[1].scenario, "y");
  EXPECT_EQ(all[1].kind, AgreementKind::kEqual);
  EXPECT_EQ(all[2].scenario, "z");
  EXPECT_EQ(all[2].runs[0].outcome, "");
  EXPECT_EQ(all[2].runs[1].digest, "3");
}

TEST(ScenarioAgreement, NeedsSomethingEqualAndNothingElse) {
  const auto of = [](std::vector<AgreementKind> kinds) {
    std::vector<ScenarioAgreement> scenarios;
    for (const AgreementKind kind : kinds) scenarios.push_back({"s", kind, {}});
    return IsAgreement(scenarios);
  };
  EXPECT_TRUE(of({AgreementKind::kEqual, AgreementKind::kLeftOut}));
  EXPECT_FALSE(of({}));
  EXPECT_FALSE(of({AgreementKind::kLeftOut}));
  for (const AgreementKind bad :
       {AgreementKind::kDiffers, AgreementKind::kNotPassed, AgreementKind::kAbsent}) {
    EXPECT_FALSE(of({AgreementKind::kEqual, bad})) << AgreementName(bad);
  }
}

TEST(ScenarioAgreement, ReadsRunsAndRefusesOtherFiles) {
  const std::string path = testing::TempDir() + "/on_cpu.json";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return ReadRecordedRun(path);
  };
  const auto run = read(R"({"kind": "scenario_run", "scenarios": [
      {"scenario": "x", "outcome": "passed", "digest": "ab", "checks": 3}]})");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->name, "on_cpu");
  ASSERT_EQ(run->scenarios.size(), 1u);
  EXPECT_EQ(run->scenarios[0].name, "x");
  EXPECT_EQ(run->scenarios[0].outcome, "passed");
  EXPECT_EQ(run->scenarios[0].digest, "ab");
  const auto message = [&](const std::string& text) {
    const absl::Status status = read(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message("[1]"), HasSubstr("on_cpu.json is no JSON object"));
  EXPECT_THAT(message(R"({"kind": "diff"})"), HasSubstr("is no scenario_run"));
  EXPECT_THAT(message(R"({"kind": 3, "scenarios": []})"), HasSubstr("is no scenario_run"));
  EXPECT_THAT(message(R"({"kind": "scenario_run", "scenarios": [{"scenario": "x"}]})"),
              HasSubstr("needs the text outcome"));
  EXPECT_THAT(message(R"({"kind": "scenario_run", "scenarios": [1]})"),
              HasSubstr("needs the text scenario"));
  EXPECT_EQ(ReadRecordedRun(path + ".none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
