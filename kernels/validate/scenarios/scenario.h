// Scenario: a named invariant over runs or training, and the faults that it must catch. A fault is
// a known bug of training frameworks (docs/scenarios.md) put in place on purpose: around the engine
// (faulty_engine.h), around communication (faulty_communication.h), or in layer and
// session code that asks SeededFaults at the place of the bug.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/validate/scenarios/faults/faulty_engine.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

struct Fault {
  std::string name;         ///< Kebab-case.
  std::string description;  ///< What the code with the bug does, one sentence.
  int bug_class = 0;        ///< BugClass::number; 0 if it is in no class.
  /// Makes the alterations of the engine for each run. Null: code asks SeededFaults for the name.
  std::function<EngineAlterations()> alter_engine = {};
  bool is_around_communication = false;  ///< faulty_communication.h asks for the name.
};

struct Scenario {
  std::string name;       ///< Kebab-case.
  std::string invariant;  ///< One sentence.
  std::string criterion;  ///< What is compared with what, and how near they must be.
  std::vector<int> bug_classes = {};
  std::vector<std::string> faults;   ///< Names of faults, each of which must make it fail.
  std::vector<std::string> recipes;  ///< Texts for Recipe::Parse. It runs once under each.
  /// Checks the invariant under context.recipe(). Differences go to the context; an error status
  /// means that the invariant could not be checked.
  std::function<absl::Status(ScenarioContext& context)> run;
};

/// Every scenario and every fault of this build, in the order that listings print them.
const std::vector<Scenario>& AllScenarios();
const std::vector<Fault>& AllFaults();

/// A class of bugs seen in training frameworks.
struct BugClass {
  int number = 0;
  std::string_view title;
  /// Why no scenario covers it; empty if one does.
  std::string_view left_out;
  /// The number of a Transformer Engine pull request that caused or fixed such a bug, or of an
  /// issue that reported it; 0 if none is known.
  int pull_request = 0;
};
const std::vector<BugClass>& AllBugClasses();

/// What scenarios of ranks are about, in the order of the numbers.
struct RankSubject {
  std::string number;  ///< "D01".
  std::string title;
  std::vector<std::string> scenarios;  ///< Names.
};
const std::vector<RankSubject>& AllRankSubjects();

}  // namespace quantgate
