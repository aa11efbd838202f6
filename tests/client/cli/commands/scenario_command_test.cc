// `quantgate scenario`: in process, against a server, and against one whose engine has a bug.
#include <gmock/gmock.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands/commands.h"
#include "client/cli/exit.h"
#include "tests/client/cli/commands/command_fixture.h"
#include "tests/server/faulty_device.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;
using ::testing::ContainsRegex;
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
  EXPECT_EQ(listed["bug_classes"].size(), 62u);
  const ProcessResult table = Quantgate({"scenario", "list"});
  for (const Json& scenario : listed["scenarios"]) {
    EXPECT_THAT(table.out, HasSubstr(scenario["name"].get<std::string>()));
    EXPECT_GE(scenario["faults"].size(), 1u);
  }
}

TEST_F(ScenarioCommandTest, TheDocumentIsWhatItLists) {
  const std::string document = TextOf(QUANTGATE_SOURCE_DIR "/docs/scenarios.md");
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const ProcessResult listed = Quantgate({"scenario", "list", "--format", "markdown"}, where);
    EXPECT_EQ(listed.exit_code, kExitOk) << listed.err;
    // Not EXPECT_EQ, which would print both.
    EXPECT_TRUE(listed.out == document)
        << "docs/scenarios.md is not what `quantgate scenario list --format markdown` writes";
  }
  EXPECT_NE(
      document.find("\n| `e8m0-rounded-down` | Takes the power of two below amax / 448. | 28 | "
                    "around the engine | `e8m0-scales-round-up` |\n"),
      std::string::npos);
}

TEST_F(ScenarioCommandTest, OnlyTheListIsADocument) {
  EXPECT_EQ(Quantgate({"scenario", "run", kRoundUp, "--format", "markdown"}).exit_code, kExitUsage);
  EXPECT_EQ(Quantgate({"--format", "markdown", "scenario", "list"}).exit_code, kExitUsage);
}

TEST_F(ScenarioCommandTest, ShowsWhatCaughtEachFault) {
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const ProcessResult table =
        Quantgate({"scenario", "run", kRoundUp, kExtreme, "--with-faults"}, where);
    EXPECT_EQ(table.exit_code, kExitOk) << table.err;
    EXPECT_THAT(table.out,
                ContainsRegex("e8m0-rounded-down +caught +e8m0-scales-round-up +0  rowwise of amax "
                              "[^ ]+ scale +mxfp8 +is [0-9]+, expected [0-9]+\n"));
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

// Neither good nor bad: a run of nothing else has looked at nothing.
TEST_F(ScenarioCommandTest, CountsWhatIsLeftOutApart) {
  constexpr char kNeedsDevice[] = "cpu-equals-cuda";
  const std::string path = Path("left_out.xml");
  const ProcessResult beside =
      Quantgate({"scenario", "run", kNeedsDevice, kExtreme, "--with-faults", "--junit", path});
  EXPECT_EQ(beside.exit_code, kExitOk) << beside.err;
  EXPECT_THAT(beside.out, ContainsRegex("cpu-equals-cuda +left out +0 "));
  EXPECT_THAT(beside.err,
              HasSubstr("scenarios: 1 left out, 1 passed; faults: 2 caught, 1 left out"));
  EXPECT_THAT(TextOf(path), HasSubstr("tests=\"5\" failures=\"0\" errors=\"0\" skipped=\"2\""));
  const ProcessResult json_run =
      Quantgate({"--format", "json", "scenario", "run", kNeedsDevice, "--with-faults"});
  EXPECT_EQ(json_run.exit_code, kExitCriterionFailed);
  EXPECT_THAT(json_run.err, HasSubstr("scenarios: 1 left out; faults: 1 left out"));
  const Json json = Json::parse(json_run.out);
  EXPECT_FALSE(json["good"].get<bool>());
  EXPECT_EQ(json["left_out"], Json::parse(R"({"scenarios": 1, "faults": 1})"));
  const ProcessResult lines =
      Quantgate({"--format", "jsonl", "scenario", "run", kNeedsDevice, kExtreme});
  EXPECT_EQ(lines.exit_code, kExitOk);
  EXPECT_THAT(lines.err, HasSubstr("scenarios: 1 left out, 1 passed"));
  // Beside a run that has it, there is nothing to compare.
  const std::string run = Path("left_out.json");
  std::ofstream(run) << json_run.out;
  const ProcessResult agree = Quantgate({"scenario", "agree", run, run});
  EXPECT_EQ(agree.exit_code, kExitCriterionFailed);
  EXPECT_THAT(agree.out, ContainsRegex("cpu-equals-cuda +left out +left out +left out\n"));
  EXPECT_THAT(agree.err, HasSubstr("2 runs, scenarios: 1 left out"));
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

TEST_F(ScenarioCommandTest, ShowsDigestsAndHowRanksWerePlaced) {
  constexpr char kRanks[] = "two-ranks-sum-alike";
  const Json in_process = QuantgateJson({"scenario", "run", kRanks, kExtreme});
  const Json by_server = QuantgateJson({"scenario", "run", kRanks, kExtreme}, Where::kServer);
  for (size_t i = 0; i < 2; ++i) {
    const std::string digest = in_process["scenarios"][i]["digest"];
    EXPECT_EQ(digest.size(), 64u);
    EXPECT_EQ(by_server["scenarios"][i]["digest"], digest);
  }
  EXPECT_TRUE(in_process["scenarios"][0]["rank_placements"].empty());  // kExtreme has no ranks.
  EXPECT_EQ(in_process["scenarios"][1]["rank_placements"],
            Json::parse(R"([{"backend": "local", "sizes": [2], "transport": "local"}])"));
  const ProcessResult table = Quantgate({"scenario", "run", kRanks, "--parallel-backend", "local"});
  EXPECT_THAT(table.out,
              HasSubstr(in_process["scenarios"][1]["digest"].get<std::string>().substr(0, 12)));
  EXPECT_THAT(table.out, HasSubstr("Ranks of worlds of 2: virtual\n"));
}

TEST_F(ScenarioCommandTest, RefusesGpusWithoutGpus) {
  const ProcessResult refused =
      Quantgate({"scenario", "run", kExtreme, "--parallel-backend", "nccl"});
  EXPECT_EQ(refused.exit_code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("--parallel-backend"));
  EXPECT_THAT(refused.err, HasSubstr("it needs a GPU for each of the 2 ranks, and the run is on "
                                     "the CPU"));
  EXPECT_THAT(Quantgate({"scenario", "run", kExtreme, "--parallel-backend", "mpi"}).err,
              HasSubstr("--parallel-backend"));
}

TEST_F(ScenarioCommandTest, HoldsRunsAgainstEachOther) {
  const auto record = [&](const std::string& name, const std::vector<std::string>& scenarios,
                          const std::function<void(Json&)>& alter) {
    Json run = QuantgateJson(std::vector<std::string>{"scenario", "run"} + scenarios);
    alter(run);
    std::ofstream(Path(name)) << run;
    return Path(name);
  };
  const std::string whole = record("whole.json", {kRoundUp, kExtreme}, [](Json&) {});
  const std::string again = record("again.json", {kRoundUp, kExtreme}, [](Json&) {});
  const std::string part = record("part.json", {kRoundUp}, [](Json&) {});
  const std::string other = record("other.json", {kRoundUp, kExtreme}, [](Json& run) {
    run["scenarios"][0]["digest"] = std::string(64, '0');
  });
  const std::string empty =
      record("empty.json", {kRoundUp}, [](Json& run) { run["scenarios"] = Json::array(); });
  const ProcessResult equal = Quantgate({"scenario", "agree", whole, again});
  EXPECT_EQ(equal.exit_code, kExitOk) << equal.err;
  EXPECT_THAT(equal.out, ContainsRegex("e8m0-extreme-codes +equal +[0-9a-f]{12} +[0-9a-f]{12}\n"));
  EXPECT_THAT(equal.err, HasSubstr("2 runs, scenarios: 2 equal"));
  const ProcessResult differing = Quantgate({"scenario", "agree", whole, again, other});
  EXPECT_EQ(differing.exit_code, kExitCriterionFailed);
  EXPECT_THAT(differing.out, ContainsRegex("e8m0-scales-round-up +differs .* 000000000000\n"));
  EXPECT_THAT(differing.err, HasSubstr("3 runs, scenarios: 1 differs, 1 equal"));
  const ProcessResult absent = Quantgate({"scenario", "agree", whole, part});
  EXPECT_EQ(absent.exit_code, kExitCriterionFailed);
  EXPECT_THAT(absent.out, ContainsRegex("e8m0-extreme-codes +absent +[0-9a-f]{12} +absent\n"));
  EXPECT_EQ(Quantgate({"scenario", "agree", empty, empty}).exit_code, kExitCriterionFailed);
  EXPECT_EQ(Quantgate({"scenario", "agree", whole}).exit_code, kExitUsage);
  EXPECT_EQ(Quantgate({"scenario", "agree", whole, Path("no.json")}).exit_code, kExitUsage);
  const Json json = QuantgateJson({"scenario", "agree", whole, again});
  EXPECT_TRUE(json["agreed"].get<bool>());
  EXPECT_EQ(json["runs"], Json::parse(R"(["whole", "again"])"));
  EXPECT_EQ(json["scenarios"][0]["agreement"], "equal");
  EXPECT_EQ(json["scenarios"][0]["digests"][0], json["scenarios"][0]["digests"][1]);
}

TEST_F(ScenarioCommandTest, RefusesUnknownNames) {
  const ProcessResult unknown = Quantgate({"scenario", "run", "no-such"});
  EXPECT_EQ(unknown.exit_code, kExitUsage);
  EXPECT_THAT(unknown.err,
              HasSubstr("\"no-such\": unknown name; known: codes-follow-specification"));
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
  EXPECT_THAT(xml, HasSubstr("<failure type=\"difference\" message=\"mxfp8, step 0: "));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
