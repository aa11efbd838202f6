#include "tests/validate/scenarios/scenario_document.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/validate/scenarios/scenario.h"

namespace quantgate {
namespace {

constexpr char kIntroduction[] =
    R"(# Scenarios

A scenario is a named invariant over runs or training. It carries the faults that it must catch: known bugs of
training frameworks, put in place on purpose. `quantgate scenario list` prints them, `quantgate scenario run [NAME...]
--with-faults` runs them and shows what caught each fault; a fault that its scenario does not catch fails the run, as
a scenario that does not hold does. What needs a device that is not there is left out, and said to be.

Expected values never come from the engine that is looked at: they are recomputed element by element with the scalar
functions of `kernels/numerics`, by exact arithmetic, by a model of the specification's words, or by another engine
(scalar code, one thread) that no fault is around.

A fault is seeded around the engine (an engine that alters one operation), or in layer and session code, at the place
of the bug. Either way only a run of scenarios can reach it.

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

void AddFaults(std::string& text) {
  absl::StrAppend(&text, "\n## 2. Faults\n\n| fault | what the code with the bug does | class | ",
                  "seeded |\n|---|---|---|---|\n");
  for (const Fault& fault : AllFaults()) {
    absl::StrAppend(&text, "| ", Code(fault.name), " | ", fault.description, " | ",
                    NumberText(fault.bug_class), " | ",
                    fault.alter_engine ? "around the engine" : "in the code", " |\n");
  }
}

void AddBugClasses(std::string& text) {
  absl::StrAppend(&text, "\n## 3. Bug classes\n\n| class | bug | scenarios |\n|---|---|---|\n");
  for (const BugClass& bug_class : AllBugClasses()) {
    std::vector<std::string> scenarios;
    for (const Scenario& scenario : AllScenarios()) {
      for (const int number : scenario.bug_classes) {
        if (number == bug_class.number) scenarios.push_back(scenario.name);
      }
    }
    absl::StrAppend(&text, "| ", bug_class.number, " | ", std::string(bug_class.title), " | ",
                    scenarios.empty() ? absl::StrCat("none: ", std::string(bug_class.left_out))
                                      : Codes(scenarios),
                    " |\n");
  }
}

}  // namespace

std::string ScenarioDocument() {
  std::string text = kIntroduction;
  AddScenarios(text);
  AddFaults(text);
  AddBugClasses(text);
  return text;
}

}  // namespace quantgate
