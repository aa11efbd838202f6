// `quantgate scenario`: in process, against a server, and against one whose engine has a bug.
#include <gmock/gmock.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/exit_code.h"
#include "tests/client/command_fixture.h"
#include "tests/server/faulty_device.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRoundUp[] = "e8m0-scales-round-up";
constexpr char kExtreme[] = "e8m0-extreme-codes";

using ScenarioCommandTest = CommandTest;

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_F(ScenarioCommandTest, ListsWhatThereIs) {
  const Json listed = QuantgateJson({"scenario", "list"});
  EXPECT_GE(listed["scenarios"].size(), 30u);
  EXPECT_EQ(listed["bug_classes"].size(), 49u);
  const ProcessResult table = Quantgate({"scenario", "list"});
  for (const Json& scenario : listed["scenarios"]) {
    EXPECT_THAT(table.out, HasSubstr(scenario["name"].get<std::string>()));
    EXPECT_GE(scenario["faults"].size(), 1u);
  }
}

TEST_F(ScenarioCommandTest, ShowsWhatCaughtEachFault) {
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const ProcessResult table =
        Quantgate({"scenario", "run", kRoundUp, kExtreme, "--with-faults"}, where);
    EXPECT_EQ(table.exit_code, kExitOk) << table.err;
    EXPECT_THAT(table.out, HasSubstr("e8m0-rounded-down     caught  e8m0-scales-round-up"));
    EXPECT_THAT(table.err, HasSubstr("scenarios: 2 passed; faults: 3 caught"));
  }
  const Json run = QuantgateJson({"scenario", "run", kRoundUp, "--with-faults"});
  EXPECT_TRUE(run["good"].get<bool>());
  EXPECT_EQ(run["scenarios"][0]["outcome"], "passed");
  EXPECT_EQ(run["faults"][0]["outcome"], "caught");
  EXPECT_EQ(run["faults"][0]["first"]["recipe"], "mxfp8");
}

TEST_F(ScenarioCommandTest, WritesALineForEachResult) {
  const ProcessResult lines =
      Quantgate({"--format", "jsonl", "scenario", "run", kExtreme, "--with-faults"});
  std::vector<std::string> outcomes;
  for (const auto line : absl::StrSplit(lines.out, '\n', absl::SkipEmpty())) {
    outcomes.push_back(Json::parse(std::string(line))["outcome"].get<std::string>());
  }
  EXPECT_EQ(outcomes, (std::vector<std::string>{"passed", "caught", "caught"}));
}

TEST_F(ScenarioCommandTest, WritesJunit) {
  const std::string path = Path("scenarios.xml");
  EXPECT_EQ(Quantgate({"scenario", "run", kExtreme, "--with-faults", "--junit", path}).exit_code,
            kExitOk);
  const std::string xml = TextOf(path);
  EXPECT_THAT(xml, HasSubstr("tests=\"3\" failures=\"0\" errors=\"0\" skipped=\"0\""));
  EXPECT_THAT(xml, HasSubstr("name=\"e8m0-extreme-codes catches e8m0-zero-is-zero\""));
  EXPECT_EQ(Quantgate({"scenario", "run", kExtreme, "--junit", Path("results.txt")}).exit_code,
            kExitUsage);
}

TEST_F(ScenarioCommandTest, RefusesUnknownNames) {
  const ProcessResult unknown = Quantgate({"scenario", "run", "no-such"});
  EXPECT_EQ(unknown.exit_code, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("\"no-such\"; known: codes-follow-specification"));
  EXPECT_THAT(Quantgate({"scenario", "run", "--help"}).out, HasSubstr("Examples:"));
}

TEST_F(ScenarioCommandTest, ExitsWithOneWhereSomethingDoesNotHold) {
  TestServer server([](ServerOptions& options) { options.make_engines = &MakeFaultyEngines; });
  const std::string path = Path("red.xml");
  CLI::App app;
  Command chosen;
  AddScenarioCommand(app, chosen);
  app.parse("scenario run " + std::string(kRoundUp) + " --junit " + path);
  GlobalOptions options;
  options.server = server.address();
  std::ostringstream out, err;
  Invocation invocation(options, {}, out, err);
  const auto exit_code = chosen(invocation);
  ASSERT_TRUE(exit_code.ok()) << exit_code.status();
  EXPECT_EQ(*exit_code, kExitCriterionFailed);
  EXPECT_THAT(out.str(), HasSubstr("failed"));
  EXPECT_THAT(out.str(), HasSubstr("expected"));
  const std::string xml = TextOf(path);
  EXPECT_THAT(xml, HasSubstr("failures=\"1\""));
  EXPECT_THAT(xml, HasSubstr("<failure message=\"mxfp8, step 0: "));
}

}  // namespace
}  // namespace quantgate
