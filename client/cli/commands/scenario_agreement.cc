#include "client/cli/commands/scenario_agreement.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/cli/options/json_file.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

RecordedScenario RecordedIn(const RecordedRun& run, const std::string& name) {
  for (const RecordedScenario& scenario : run.scenarios) {
    if (scenario.name == name) return scenario;
  }
  return {name, "", ""};
}

AgreementKind AgreementKindOf(const std::vector<RecordedScenario>& runs) {
  std::set<std::string> digests;
  int with_digest = 0;
  bool is_bad = false, is_absent = false;
  for (const RecordedScenario& run : runs) {
    const bool passed = run.outcome == "passed";
    is_bad |= !passed && run.outcome != kLeftOutOutcome && !run.outcome.empty();
    is_absent |= run.outcome.empty() || (passed && run.digest.empty());
    if (!passed || run.digest.empty()) continue;
    digests.insert(run.digest);
    ++with_digest;
  }
  if (digests.size() > 1) return AgreementKind::kDiffers;
  if (is_bad) return AgreementKind::kNotPassed;
  if (is_absent) return AgreementKind::kAbsent;
  return with_digest > 1 ? AgreementKind::kEqual : AgreementKind::kLeftOut;
}

absl::StatusOr<RecordedScenario> ReadRecorded(const nlohmann::json& json, const std::string& path) {
  RecordedScenario scenario;
  for (const auto& [key, value] :
       {std::pair{"scenario", &scenario.name}, std::pair{"outcome", &scenario.outcome},
        std::pair{"digest", &scenario.digest}}) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("RUN: ", path, ": each of scenarios needs the text ", key));
    }
    *value = json[key].get<std::string>();
  }
  return scenario;
}

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

absl::StatusOr<RecordedRun> ReadRecordedRun(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject("RUN", path));
  if (!json.contains("kind") || json["kind"] != "scenario_run" || !json.contains("scenarios")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RUN: ", path, " is no scenario_run; quantgate scenario run --format json writes one"));
  }
  RecordedRun run;
  run.name = std::filesystem::path(path).stem().string();
  for (const nlohmann::json& item : json["scenarios"]) {
    QG_ASSIGN_OR_RETURN(RecordedScenario scenario, ReadRecorded(item, path));
    run.scenarios.push_back(std::move(scenario));
  }
  return run;
}

std::string AgreementName(AgreementKind kind) {
  switch (kind) {
    case AgreementKind::kEqual:
      return "equal";
    case AgreementKind::kDiffers:
      return "differs";
    case AgreementKind::kNotPassed:
      return "not passed";
    case AgreementKind::kAbsent:
      return "absent";
    case AgreementKind::kLeftOut:
      return "left out";
  }
  return "unknown";
}

std::vector<ScenarioAgreement> AgreementOf(const std::vector<RecordedRun>& runs) {
  std::vector<ScenarioAgreement> agreements;
  std::set<std::string> seen;
  for (const RecordedRun& of_first : runs) {
    for (const RecordedScenario& scenario : of_first.scenarios) {
      if (!seen.insert(scenario.name).second) continue;
      ScenarioAgreement& agreement = agreements.emplace_back();
      agreement.scenario = scenario.name;
      for (const RecordedRun& run : runs) agreement.runs.push_back(RecordedIn(run, scenario.name));
      agreement.kind = AgreementKindOf(agreement.runs);
    }
  }
  return agreements;
}

bool IsAgreement(const std::vector<ScenarioAgreement>& scenarios) {
  bool some_are_equal = false;
  for (const ScenarioAgreement& scenario : scenarios) {
    if (scenario.kind == AgreementKind::kLeftOut) continue;
    if (scenario.kind != AgreementKind::kEqual) return false;
    some_are_equal = true;
  }
  return some_are_equal;
}

void AddScenarioAgreeCommand(CLI::App& group, Command& chosen, const char* examples) {
  auto [agree, options] = AddSubcommand(
      group, chosen, "agree", "Compare the digests of several runs", examples, AgreeOnScenarios);
  agree->add_option("RUN", options->runs, "Files that run --format json has written, two or more")
      ->required()
      ->expected(2, -1)
      ->type_name("FILE");
}

}  // namespace quantgate
