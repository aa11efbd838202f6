#include "kernels/validate/scenarios/run_scenarios.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"

namespace quantgate {

/// Makes a set of seeded faults that is not empty. Only this file can: SeededFaults befriends the
/// class, and a test checks that no other file names it.
class FaultSeeder {
 public:
  static SeededFaults With(const std::string& name) {
    SeededFaults faults;
    faults.names_.insert(name);
    return faults;
  }
};

namespace {

/// The engine that expected values come from: no vector code, no threads.
Engine& ReferenceEngine() {
  static Engine& engine = *MakeCpuEngine({Isa::kScalar, 1}).release();
  return engine;
}

const Fault* FindFault(const ScenarioLibrary& library, const std::string& name) {
  const auto found = std::find_if(library.faults->begin(), library.faults->end(),
                                  [&](const Fault& fault) { return fault.name == name; });
  return found == library.faults->end() ? nullptr : &*found;
}

/// Adds what a run under one recipe found.
void AddFindings(const ScenarioContext& context, ScenarioResult& result) {
  result.checks += context.checks();
  result.difference_count += context.difference_count();
  result.differences.insert(result.differences.end(), context.differences().begin(),
                            context.differences().end());
  result.notes.insert(result.notes.end(), context.notes().begin(), context.notes().end());
  AddPlacements(context.rank_placements(), result.rank_placements);
  if (!context.left_out().empty()) result.message = context.left_out();
}

absl::Status RunUnderRecipe(const ScenarioContext::Subjects& subjects, const Scenario& scenario,
                            const std::string& recipe_text, ScenarioResult& result) {
  QG_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse(recipe_text));
  ScenarioContext context(subjects, recipe);
  const absl::Status status = scenario.run(context);
  AddFindings(context, result);
  result.digest.AddAll(recipe_text, context.digest());
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat("under ", recipe_text, ": ",
                                                                std::string(status.message())));
}

ScenarioOutcome OutcomeOf(const ScenarioResult& result) {
  if (result.difference_count > 0) return ScenarioOutcome::kFailed;
  if (!result.message.empty()) return ScenarioOutcome::kLeftOut;
  return result.checks > 0 ? ScenarioOutcome::kPassed : ScenarioOutcome::kError;
}

FaultResult RunFault(Engine& engine, const ScenarioLibrary& library, const Scenario& scenario,
                     const std::string& name, const Cancellation* cancellation,
                     RankPlaces* places) {
  FaultResult result{.fault = name, .scenario = scenario.name};
  const Fault* fault = FindFault(library, name);
  if (fault == nullptr) {
    result.message = "no such fault";
    return result;
  }
  const ScenarioResult run = RunScenario(engine, scenario, fault, cancellation, places);
  result.seconds = run.seconds;
  result.message = run.message;
  // Only a check that fails counts: a run that ended with an error did not find the fault.
  if (run.outcome == ScenarioOutcome::kFailed) {
    result.outcome = FaultOutcome::kCaught;
    result.first = run.differences.front();
  } else if (run.outcome == ScenarioOutcome::kLeftOut) {
    result.outcome = FaultOutcome::kLeftOut;
  } else if (run.outcome == ScenarioOutcome::kPassed) {
    result.message =
        absl::StrCat("the scenario passed with the fault in place, ", run.checks, " checks");
  }
  return result;
}

}  // namespace

std::string_view ScenarioOutcomeName(ScenarioOutcome outcome) {
  switch (outcome) {
    case ScenarioOutcome::kPassed:
      return "passed";
    case ScenarioOutcome::kFailed:
      return "failed";
    case ScenarioOutcome::kError:
      return "error";
    case ScenarioOutcome::kLeftOut:
      return "left_out";
  }
  return "unknown";
}

std::string_view FaultOutcomeName(FaultOutcome outcome) {
  switch (outcome) {
    case FaultOutcome::kCaught:
      return "caught";
    case FaultOutcome::kMissed:
      return "missed";
    case FaultOutcome::kLeftOut:
      return "left_out";
  }
  return "unknown";
}

ScenarioLibrary BuiltInScenarios() { return {&AllScenarios(), &AllFaults()}; }

absl::StatusOr<std::vector<const Scenario*>> FindScenarios(const ScenarioLibrary& library,
                                                           const std::vector<std::string>& names) {
  std::set<std::string> wanted(names.begin(), names.end());
  std::vector<const Scenario*> found;
  std::string known;
  for (const Scenario& scenario : *library.scenarios) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", scenario.name);
    if (names.empty() || wanted.erase(scenario.name) > 0) found.push_back(&scenario);
  }
  if (wanted.empty()) return found;
  // The name is a client's text of any length; the error shows its beginning.
  constexpr size_t kNameShownMax = 64;
  const std::string shown = absl::CEscape(wanted.begin()->substr(0, kNameShownMax));
  return StatusOf({.code = absl::StatusCode::kNotFound,
                   .field = "names",
                   .value = absl::StrCat("\"", shown, "\""),
                   .rule = absl::StrCat("unknown name; known: ", known)});
}

ScenarioResult RunScenario(Engine& engine, const Scenario& scenario, const Fault* fault,
                           const Cancellation* cancellation, RankPlaces* places) {
  const absl::Time begin = SteadyNow();
  ScenarioResult result{.scenario = scenario.name};
  SeededFaults faults;
  std::unique_ptr<Engine> altered;
  if (fault != nullptr && fault->alter_engine) {
    altered = std::make_unique<FaultyEngine>(engine, fault->alter_engine());
  } else if (fault != nullptr) {
    faults = FaultSeeder::With(fault->name);
  }
  const ScenarioContext::Subjects subjects{altered == nullptr ? engine : *altered,
                                           ReferenceEngine(), faults, cancellation, places};
  absl::Status status;
  for (const std::string& recipe : scenario.recipes) {
    status = cancellation == nullptr ? absl::OkStatus() : cancellation->Check();
    if (status.ok()) status = RunUnderRecipe(subjects, scenario, recipe, result);
    if (!status.ok()) break;
    if (fault != nullptr && result.difference_count > 0) break;
  }
  // Differences found before an error make the outcome a failure, not an error.
  result.outcome =
      status.ok() || result.difference_count > 0 ? OutcomeOf(result) : ScenarioOutcome::kError;
  if (!status.ok()) {
    result.message = status.ToString();
  } else if (result.outcome == ScenarioOutcome::kError) {
    result.message = "nothing was checked";
  }
  result.seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
  return result;
}

absl::Status RunScenarios(Engine& engine, const ScenarioLibrary& library,
                          const std::vector<const Scenario*>& scenarios, bool with_faults,
                          const Cancellation* cancellation, ScenarioObserver observer,
                          RankPlaces* places) {
  const auto check = [&] {
    return cancellation == nullptr ? absl::OkStatus() : cancellation->Check();
  };
  for (const Scenario* scenario : scenarios) {
    const ScenarioResult result = RunScenario(engine, *scenario, nullptr, cancellation, places);
    QG_RETURN_IF_ERROR(check());
    observer.on_scenario(result);
    if (!with_faults) continue;
    for (const std::string& fault : scenario->faults) {
      const FaultResult caught = RunFault(engine, library, *scenario, fault, cancellation, places);
      QG_RETURN_IF_ERROR(check());
      observer.on_fault(caught);
    }
  }
  return absl::OkStatus();
}

void ScenarioTally::Add(const ScenarioResult& result) {
  if (result.outcome == ScenarioOutcome::kLeftOut) {
    ++scenarios_left_out;
  } else {
    ++(result.outcome == ScenarioOutcome::kPassed ? good : bad);
  }
}

void ScenarioTally::Add(const FaultResult& result) {
  if (result.outcome == FaultOutcome::kLeftOut) {
    ++faults_left_out;
  } else {
    ++(result.outcome == FaultOutcome::kCaught ? good : bad);
  }
}

}  // namespace quantgate
