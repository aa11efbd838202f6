#include "client/cli/commands/scenario_markdown.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace {

constexpr char kIntroduction[] =
    R"(# Scenarios

Written by `quantgate scenario list --format markdown`; a test holds this file to it.

A scenario is a named invariant over runs or training. It carries faults: known bugs of training frameworks, put in
place on purpose, each of which must make the scenario fail. `quantgate scenario run [NAME...] --with-faults` runs the
scenarios and shows what caught each fault. It exits with 1 where a scenario does not hold, and where a fault is not
caught. What needs a device that is not there is left out: it counts as neither good nor bad, and a run of nothing else
exits with 1.

- **Expected values** never come from the engine under test. They are recomputed element by element with the scalar
  functions of `kernels/numerics`, by exact arithmetic, by a model of the specification's words, or by another engine
  (scalar code, one thread) that no fault reaches.
- **Faults** are seeded around the engine (an engine that alters one operation), around communication (a transport, or
  ends of overlapped calls, that alter one call), or in layer and session code, at the place of the bug. Only a run of
  scenarios can reach them.
- **Ranks** are threads, each with an engine of its own: a lane of the engine under test, or with `--parallel-backend
  nccl` a GPU, in worlds that the host has GPUs for. A result says which worlds were placed how.
- **The digest** of a result is of all that the scenario compared (docs/reports.md section 8). It is the same wherever
  the same bits came out, and `quantgate scenario agree` holds several runs against each other.
)";

using Names = std::vector<std::string>;

std::string Code(const std::string& text) { return absl::StrCat("`", text, "`"); }

template <class Texts>
std::string Codes(const Texts& texts) {
  return absl::StrJoin(texts, ", ",
                       [](std::string* out, const std::string& text) { *out += Code(text); });
}

template <class Values, class Value>
bool Has(const Values& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void AddScenarios(const v1::ListScenariosResponse& library, std::string& text) {
  absl::StrAppend(&text, "\n## 1. Scenarios\n");
  for (const v1::ScenarioDescription& scenario : library.scenarios()) {
    absl::StrAppend(&text, "\n### ", scenario.name(), "\n\n", scenario.invariant(),
                    "\n\n- Criterion: ", scenario.criterion());
    if (scenario.bug_classes_size() > 0) {
      absl::StrAppend(&text, "\n- Bug classes: ", absl::StrJoin(scenario.bug_classes(), ", "));
    }
    absl::StrAppend(&text, "\n- Faults: ", Codes(scenario.faults()),
                    "\n- Recipes: ", Codes(scenario.recipes()), "\n");
  }
}

std::string PlaceOf(const v1::FaultDescription& fault) {
  if (fault.around_engine()) return "around the engine";
  return fault.around_communication() ? "around communication" : "in the code";
}

Names CatchersOf(const v1::ListScenariosResponse& library, const std::string& fault) {
  Names names;
  for (const v1::ScenarioDescription& scenario : library.scenarios()) {
    if (Has(scenario.faults(), fault)) names.push_back(scenario.name());
  }
  return names;
}

void AddFaults(const v1::ListScenariosResponse& library, std::string& text) {
  absl::StrAppend(&text, "\n## 2. Faults\n\n",
                  "| fault | what the code with the bug does | class | seeded | caught by |\n",
                  "|---|---|---|---|---|\n");
  for (const v1::FaultDescription& fault : library.faults()) {
    const int number = fault.bug_class();
    absl::StrAppend(&text, "| ", Code(fault.name()), " | ", fault.description(), " | ",
                    number == 0 ? "" : absl::StrCat(number), " | ", PlaceOf(fault), " | ",
                    Codes(CatchersOf(library, fault.name())), " |\n");
  }
}

Names ScenariosOf(const v1::ListScenariosResponse& library,
                  const v1::BugClassDescription& bug_class) {
  Names names;
  for (const v1::ScenarioDescription& scenario : library.scenarios()) {
    if (Has(scenario.bug_classes(), bug_class.number())) names.push_back(scenario.name());
  }
  return names;
}

void AddBugClasses(const v1::ListScenariosResponse& library, std::string& text) {
  absl::StrAppend(&text, "\n## 3. Bug classes\n\n| class | bug | scenarios |\n|---|---|---|\n");
  for (const v1::BugClassDescription& bug_class : library.bug_classes()) {
    const Names names = ScenariosOf(library, bug_class);
    absl::StrAppend(&text, "| ", bug_class.number(), " | ", bug_class.title(), " | ",
                    names.empty() ? absl::StrCat("none: ", bug_class.left_out()) : Codes(names),
                    " |\n");
  }
}

void AddRankSubjects(const v1::ListScenariosResponse& library, std::string& text) {
  absl::StrAppend(&text, "\n## 4. Ranks\n\n| | about | scenarios |\n|---|---|---|\n");
  for (const v1::RankSubjectDescription& subject : library.rank_subjects()) {
    absl::StrAppend(&text, "| ", subject.number(), " | ", subject.title(), " | ",
                    Codes(subject.scenarios()), " |\n");
  }
}

void AddPullRequests(const v1::ListScenariosResponse& library, std::string& text) {
  absl::StrAppend(
      &text, "\n## 5. Issues and pull requests of Transformer Engine\n\n",
      "Classes of bugs that its issues told, or its pull requests made or mended, each ",
      "with the command that shows it.\n\n| number | bug | shown by |\n|---|---|---|\n");
  std::map<int, std::string> rows;  // By number, each in the order of the classes.
  for (const v1::BugClassDescription& bug_class : library.bug_classes()) {
    const Names names = ScenariosOf(library, bug_class);
    const int number = bug_class.pull_request();
    if (number == 0 || names.empty()) continue;
    absl::StrAppend(&rows[number], "| #", number, " | ", bug_class.title(),
                    " | `quantgate scenario run ", absl::StrJoin(names, " "),
                    " --with-faults` |\n");
  }
  for (const auto& [number, lines] : rows) text += lines;
}

}  // namespace

std::string ScenarioMarkdown(const v1::ListScenariosResponse& library) {
  std::string text = kIntroduction;
  AddScenarios(library, text);
  AddFaults(library, text);
  AddBugClasses(library, text);
  AddRankSubjects(library, text);
  AddPullRequests(library, text);
  return text;
}

}  // namespace quantgate
