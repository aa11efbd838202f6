// Runs scenarios, and shows that each catches its faults.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/validate/scenarios/scenario.h"

namespace quantgate {

enum class ScenarioOutcome {
  kPassed,
  kFailed,   ///< Something does not hold.
  kError,    ///< It could not be looked at, or nothing was.
  kLeftOut,  ///< It needs what is not here: never a pass.
};
std::string_view ScenarioOutcomeName(ScenarioOutcome outcome);  ///< "passed", "left_out", ...

struct ScenarioResult {
  std::string scenario;
  ScenarioOutcome outcome = ScenarioOutcome::kError;
  int64_t checks = 0;
  int64_t difference_count = 0;
  std::vector<ScenarioDifference> differences = {};  ///< The first ones.
  std::string message = {};                          ///< Of an error, or why it was left out.
  std::vector<std::string> notes = {};               ///< What was measured on the way.
  RankPlacements rank_placements = {};               ///< Of the worlds that were made.
  CheckDigest digest = {};                           ///< Of all subjects, recipe by recipe.
  double seconds = 0;
};

enum class FaultOutcome {
  kCaught,
  kMissed,  ///< The scenario passed with the fault in place, or did not get to its end.
  kLeftOut,
};
std::string_view FaultOutcomeName(FaultOutcome outcome);

/// One fault in front of one scenario that must catch it.
struct FaultResult {
  std::string fault;
  std::string scenario;
  FaultOutcome outcome = FaultOutcome::kMissed;
  ScenarioDifference first = {};  ///< What gave it away.
  std::string message = {};       ///< Of one that was not caught.
  double seconds = 0;
};

/// A library of scenarios: the build's own, or a test's.
struct ScenarioLibrary {
  const std::vector<Scenario>* scenarios = nullptr;
  const std::vector<Fault>* faults = nullptr;
};
ScenarioLibrary BuiltInScenarios();

/// What a run reports as it goes; scenario by scenario, each followed by its faults.
struct ScenarioObserver {
  absl::FunctionRef<void(const ScenarioResult& result)> on_scenario;
  absl::FunctionRef<void(const FaultResult& result)> on_fault;
};

/// The scenarios of these names, in the library's order; all of none. NOT_FOUND names an unknown
/// one and lists what there is.
absl::StatusOr<std::vector<const Scenario*>> FindScenarios(const ScenarioLibrary& library,
                                                           const std::vector<std::string>& names);

/// One scenario under all its recipes, `fault` in place where not null. `places`: of a run on the
/// engine; null: every rank is virtual.
ScenarioResult RunScenario(Engine& engine, const Scenario& scenario, const Fault* fault,
                           const Cancellation* cancellation, RankPlaces* places = nullptr);

/// Runs scenarios on an engine. CANCELLED or DEADLINE_EXCEEDED, else OK whatever was found: a
/// ScenarioTally says whether the run passes. `places` as above.
absl::Status RunScenarios(Engine& engine, const ScenarioLibrary& library,
                          const std::vector<const Scenario*>& scenarios, bool with_faults,
                          const Cancellation* cancellation, ScenarioObserver observer,
                          RankPlaces* places = nullptr);

/// What a run's results come to.
struct ScenarioTally {
  int64_t good = 0;                                     ///< Passed, or caught.
  int64_t bad = 0;                                      ///< Failed, erred or missed.
  int64_t scenarios_left_out = 0, faults_left_out = 0;  ///< Neither.

  void Add(const ScenarioResult& result);
  void Add(const FaultResult& result);
  /// Whether the run passes: nothing is bad, and something was looked at.
  bool is_good() const { return bad == 0 && good > 0; }
};

}  // namespace quantgate
