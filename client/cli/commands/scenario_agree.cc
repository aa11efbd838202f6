#include "client/cli/commands/scenario_agree.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/scenario_agreement.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit_code.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

struct AgreeOptions {
  std::vector<std::string> runs;
};

Tone AgreementTone(AgreementKind kind) {
  if (kind == AgreementKind::kEqual) return Tone::kGood;
  return kind == AgreementKind::kLeftOut ? Tone::kDim : Tone::kBad;
}

/// The digest, cut, or why there is none.
std::string AgreementCell(const RecordedScenario& run) {
  if (run.outcome == "passed" && !run.digest.empty()) return ShortDigest(run.digest);
  if (run.outcome == kLeftOutOutcome) return AgreementName(AgreementKind::kLeftOut);
  return run.outcome.empty() || run.outcome == "passed" ? "absent" : run.outcome;
}

void PrintAgreement(Invocation& invocation, const std::vector<RecordedRun>& runs,
                    const std::vector<ScenarioAgreement>& scenarios) {
  std::vector<std::string> header = {"scenario", "<"};
  for (const RecordedRun& run : runs) header.push_back("<" + run.name);
  TextTable table(header);
  std::map<std::string, int> counts;
  for (const ScenarioAgreement& scenario : scenarios) {
    std::vector<std::string> row = {scenario.scenario, AgreementName(scenario.kind)};
    for (const RecordedScenario& run : scenario.runs) row.push_back(AgreementCell(run));
    table.AddRow(std::move(row));
    table.SetTone(1, AgreementTone(scenario.kind));
    ++counts[AgreementName(scenario.kind)];
  }
  table.Print(invocation.out(), invocation.uses_colour());
  invocation.Say(absl::StrCat(runs.size(), " runs, scenarios: ", CountsText(counts)));
}

Json JsonOfAgreement(const std::vector<RecordedRun>& runs,
                     const std::vector<ScenarioAgreement>& scenarios) {
  Json json;
  json["agreed"] = IsAgreement(scenarios);
  json["runs"] = Json::array();
  for (const RecordedRun& run : runs) json["runs"].push_back(run.name);
  json["scenarios"] = Json::array();
  for (const ScenarioAgreement& scenario : scenarios) {
    Json item{{"scenario", scenario.scenario}, {"agreement", AgreementName(scenario.kind)}};
    for (const RecordedScenario& run : scenario.runs) {
      item["outcomes"].push_back(run.outcome);
      item["digests"].push_back(run.digest);
    }
    json["scenarios"].push_back(std::move(item));
  }
  return json;
}

absl::StatusOr<int> AgreeOnScenarios(Invocation& invocation, const AgreeOptions& options) {
  std::vector<RecordedRun> runs;
  for (const std::string& path : options.runs) {
    QG_ASSIGN_OR_RETURN(RecordedRun run, ReadRecordedRun(path));
    runs.push_back(std::move(run));
  }
  const std::vector<ScenarioAgreement> scenarios = AgreementOf(runs);
  if (invocation.is_table()) {
    PrintAgreement(invocation, runs, scenarios);
  } else {
    invocation.PrintJson("scenario_agreement", JsonOfAgreement(runs, scenarios));
  }
  return IsAgreement(scenarios) ? kExitOk : kExitCriterionFailed;
}

}  // namespace

void AddScenarioAgreeCommand(CLI::App& group, Command& chosen, const char* examples) {
  auto [agree, options] = AddSubcommand(
      group, chosen, "agree", "Compare the digests of several runs", examples, AgreeOnScenarios);
  agree->add_option("RUN", options->runs, "Files that run --format json has written, two or more")
      ->required()
      ->expected(2, -1)
      ->type_name("FILE");
}

}  // namespace quantgate
