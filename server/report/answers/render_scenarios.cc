#include "server/report/answers/render_scenarios.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr size_t kFindingColumns = 100;

/// "dw (0, 7)" and "is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string PlaceText(const v1::ScenarioDifference& difference) {
  if (difference.coordinate_size() == 0) return difference.tensor();
  return absl::StrCat(difference.tensor(), " ", CoordinateText(difference.coordinate()));
}

std::string ValuesText(const v1::ScenarioDifference& difference) {
  return absl::StrCat("is ", difference.subject(), ", expected ", difference.expected());
}

/// "left out" of "left_out".
std::string OutcomeText(const std::string& outcome) {
  return absl::StrReplaceAll(outcome, {{"_", " "}});
}

Tone ToneOf(const std::string& outcome) {
  if (outcome == "passed" || outcome == "caught") return Tone::kGood;
  return outcome == "left_out" ? Tone::kDim : Tone::kBad;
}

std::string FindingOf(const v1::ScenarioResult& result) {
  return result.differences_size() == 0 ? result.message() : DifferenceText(result.differences(0));
}

/// A fault, what caught it and where, in columns of their own.
std::vector<std::string> RowOf(const v1::FaultResult& result) {
  const v1::ScenarioDifference& first = result.first();
  const bool is_caught = result.has_first();
  return {result.fault(),
          OutcomeText(result.outcome()),
          result.scenario(),
          is_caught ? Count(first.step()) : "",
          is_caught ? PlaceText(first) : "",
          is_caught ? first.recipe() : "",
          Cut(is_caught ? ValuesText(first) : result.message(), kFindingColumns)};
}

/// "2, 4: nccl 2.28.9 (...), a GPU each; 1, 8: virtual", of all scenarios together.
std::string PlacementsText(const std::vector<v1::ScenarioEvent>& events) {
  std::map<std::string, std::set<int>> sizes;
  for (const v1::ScenarioEvent& event : events) {
    for (const v1::RankPlacement& placement : event.scenario().rank_placements()) {
      const std::string how =
          placement.backend() == "nccl" ? placement.transport() + ", a GPU each" : "virtual";
      sizes[how].insert(placement.sizes().begin(), placement.sizes().end());
    }
  }
  return absl::StrJoin(sizes, "; ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, absl::StrJoin(one.second, ", "), ": ", one.first);
  });
}

}  // namespace

std::string DifferenceText(const v1::ScenarioDifference& difference) {
  return absl::StrCat(difference.recipe(), ", step ", difference.step(), ": ",
                      PlaceText(difference), " ", ValuesText(difference));
}

void PrintScenarios(const std::vector<v1::ScenarioEvent>& events, bool uses_colour,
                    std::ostream& out) {
  TextTable scenarios({"scenario", "<", "<digest", "checks", "time", "<first difference"});
  TextTable faults({"fault", "<", "<caught by", "step", "<first tensor", "<recipe", "<finding"});
  bool has_faults = false;
  for (const v1::ScenarioEvent& event : events) {
    if (event.has_scenario()) {
      const v1::ScenarioResult& result = event.scenario();
      scenarios.AddRow({result.scenario(), OutcomeText(result.outcome()),
                        ShortDigest(result.digest()), Count(result.checks()),
                        Seconds(result.seconds()), Cut(FindingOf(result), kFindingColumns)});
      scenarios.SetTone(1, ToneOf(result.outcome()));
    } else if (event.has_fault()) {
      has_faults = true;
      faults.AddRow(RowOf(event.fault()));
      faults.SetTone(1, ToneOf(event.fault().outcome()));
    }
  }
  scenarios.Print(out, uses_colour);
  for (const v1::ScenarioEvent& event : events) {
    for (const std::string& note : event.scenario().notes()) {
      out << event.scenario().scenario() << ": " << note << "\n";
    }
  }
  if (const std::string placements = PlacementsText(events); !placements.empty()) {
    out << "Ranks of worlds of " << placements << "\n";
  }
  if (!has_faults) return;
  out << "\n";
  faults.Print(out, uses_colour);
}

std::string ScenarioSummary(const std::vector<v1::ScenarioEvent>& events) {
  std::map<std::string, int> scenarios, faults;
  for (const v1::ScenarioEvent& event : events) {
    if (event.has_scenario()) ++scenarios[OutcomeText(event.scenario().outcome())];
    if (event.has_fault()) ++faults[OutcomeText(event.fault().outcome())];
  }
  return absl::StrCat("scenarios: ", CountsText(scenarios),
                      faults.empty() ? "" : absl::StrCat("; faults: ", CountsText(faults)));
}

}  // namespace quantgate
