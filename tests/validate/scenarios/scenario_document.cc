#include "tests/validate/scenarios/scenario_document.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/validate/scenarios/scenario.h"
#include "tests/validate/scenarios/rank_tables.h"

namespace quantgate {
namespace {

constexpr char kIntroduction[] =
    R"(# Scenarios

A scenario is a named invariant over runs or training. It carries the faults that it must catch: known bugs of
training frameworks, put in place on purpose. `quantgate scenario list` prints them, `quantgate scenario run [NAME...]
--with-faults` runs them and shows what caught each fault; a fault that its scenario does not catch fails the run, as
a scenario that does not hold does. What needs a device that is not there is left out: counted, and neither good nor
bad, so that a run of nothing else fails too.

Expected values never come from the engine that is looked at: they are recomputed element by element with the scalar
functions of `kernels/numerics`, by exact arithmetic, by a model of the specification's words, or by another engine
(scalar code, one thread) that no fault is around.

A fault is seeded around the engine (an engine that alters one operation), around communication (a transport, or ends
of overlapped calls, that alter one call), or in layer and session code, at the place of the bug. In any case only a run
of scenarios can reach it.

Ranks of a scenario are threads, each with an engine of its own: a lane of the one that is looked at, or with
`--parallel-backend nccl` a GPU, in worlds that the host has GPUs for; the fault is around each of them. Ranks of a
training session have engines of that kind that are the session's own. A result says which worlds were placed how. What
a scenario measures on its way stands in a note of its result.

The digest of a result is of all that the scenario compared (docs/definitions.md section 4.3), the same wherever the
same bits came out; `quantgate scenario agree` holds several runs against each other.

This file follows the library of scenarios in `kernels/validate/scenarios`; a test compares them.
)";

std::string Code(const std::string& text) { return absl::StrCat("`", text, "`"); }

std::string Codes(const std::vector<std::string>& texts) {
  return absl::StrJoin(texts, ", ",
                       [](std::string* out, const std::string& text) { *out += Code(text); });
}

std::string NumberText(int number) { return number == 0 ? "" : absl::StrCat(number); }

void AddScenarios(std::string& text) {
  absl::StrAppend(&text, "\n## 1. Scenarios\n");
  for (const Scenario& scenario : AllScenarios()) {
    absl::StrAppend(&text, "\n### ", scenario.name, "\n\n", scenario.invariant,
                    "\n\n- Criterion: ", scenario.criterion);
    if (!scenario.bug_classes.empty()) {
      absl::StrAppend(&text, "\n- Bug classes: ", absl::StrJoin(scenario.bug_classes, ", "));
    }
    absl::StrAppend(&text, "\n- Faults: ", Codes(scenario.faults),
                    "\n- Recipes: ", Codes(scenario.recipes), "\n");
  }
}

std::string PlaceOf(const Fault& fault) {
  if (fault.alter_engine) return "around the engine";
  return fault.is_around_communication ? "around communication" : "in the code";
}

void AddFaults(std::string& text) {
  absl::StrAppend(&text, "\n## 2. Faults\n\n| fault | what the code with the bug does | class | ",
                  "seeded |\n|---|---|---|---|\n");
  for (const Fault& fault : AllFaults()) {
    absl::StrAppend(&text, "| ", Code(fault.name), " | ", fault.description, " | ",
                    NumberText(fault.bug_class), " | ", PlaceOf(fault), " |\n");
  }
}

std::vector<std::string> ScenariosOf(const BugClass& bug_class) {
  std::vector<std::string> scenarios;
  for (const Scenario& scenario : AllScenarios()) {
    const std::vector<int>& numbers = scenario.bug_classes;
    if (std::count(numbers.begin(), numbers.end(), bug_class.number) > 0) {
      scenarios.push_back(scenario.name);
    }
  }
  return scenarios;
}

void AddBugClasses(std::string& text) {
  absl::StrAppend(&text, "\n## 3. Bug classes\n\n| class | bug | scenarios |\n|---|---|---|\n");
  for (const BugClass& bug_class : AllBugClasses()) {
    const std::vector<std::string> scenarios = ScenariosOf(bug_class);
    absl::StrAppend(&text, "| ", bug_class.number, " | ", std::string(bug_class.title), " | ",
                    scenarios.empty() ? absl::StrCat("none: ", std::string(bug_class.left_out))
                                      : Codes(scenarios),
                    " |\n");
  }
}

void AddRankSubjects(std::string& text) {
  absl::StrAppend(&text, "\n## 4. Ranks\n\n| | about | scenarios |\n|---|---|---|\n");
  for (const RankSubject& subject : RankSubjects()) {
    absl::StrAppend(&text, "| ", subject.number, " | ", subject.title, " | ",
                    Codes(subject.scenarios), " |\n");
  }
}

void AddRankMutations(std::string& text) {
  absl::StrAppend(&text, "\n## 5. Mutations of code for ranks\n\n| mutation | fault | caught by ",
                  "|\n|---|---|---|\n");
  for (const RankMutation& mutation : RankMutations()) {
    for (const std::string& fault : mutation.faults) {
      std::vector<std::string> scenarios;
      for (const Scenario& scenario : AllScenarios()) {
        if (std::count(scenario.faults.begin(), scenario.faults.end(), fault) > 0) {
          scenarios.push_back(scenario.name);
        }
      }
      absl::StrAppend(&text, "| ", mutation.what, " | ", Code(fault), " | ", Codes(scenarios),
                      " |\n");
    }
  }
}

}  // namespace

std::string ScenarioDocument() {
  std::string text = kIntroduction;
  AddScenarios(text);
  AddFaults(text);
  AddBugClasses(text);
  AddRankSubjects(text);
  AddRankMutations(text);
  return text;
}

std::string PullRequestTable() {
  std::string text = "| pull request | what goes wrong | shown by |\n|---|---|---|\n";
  std::map<int, std::string> rows;
  for (const BugClass& bug_class : AllBugClasses()) {
    const std::vector<std::string> scenarios = ScenariosOf(bug_class);
    if (bug_class.pull_request == 0 || scenarios.empty()) continue;
    absl::StrAppend(&rows[bug_class.pull_request], "| #", bug_class.pull_request, " | ",
                    std::string(bug_class.title), " | `quantgate scenario run ",
                    absl::StrJoin(scenarios, " "), " --with-faults` |\n");
  }
  for (const auto& [pull_request, lines] : rows) text += lines;
  return text;
}

}  // namespace quantgate
