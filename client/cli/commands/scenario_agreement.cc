#include "client/cli/commands/scenario_agreement.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/options/json_file.h"
#include "kernels/base/status_macros.h"

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

}  // namespace quantgate
