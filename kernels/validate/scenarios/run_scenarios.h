// Running scenarios, and showing that each catches its faults.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/validate/scenarios/scenario.h"

namespace quantgate {

enum class ScenarioOutcome {
  kPassed,
  kFailed,   ///< A check does not hold.
  kError,    ///< The scenario could not run to its end, or checked nothing.
  kLeftOut,  ///< The scenario needs something that is not here. Never counts as a pass.
};
std::string_view ScenarioOutcomeName(ScenarioOutcome outcome);  ///< "passed", "left_out", ...

struct ScenarioResult {
  std::string scenario;
  ScenarioOutcome outcome = ScenarioOutcome::kError;
  int64_t checks = 0;
  int64_t difference_count = 0;
  std::vector<ScenarioDifference> differences = {};  ///< The first ones.
  std::string message = {};                          ///< The error, or why it was left out.
  std::vector<std::string> notes = {};               ///< Measurements.
  RankPlacements rank_placements = {};               ///< How the ranks of worlds were placed.
  CheckDigest digest = {};                           ///< Over all subjects, recipe by recipe.
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
  ScenarioDifference first = {};  ///< The first difference that it caused.
  std::string message = {};       ///< Why it was not caught.
  double seconds = 0;
};

/// A library of scenarios and faults: the build's own, or a test's.
struct ScenarioLibrary {
  const std::vector<Scenario>* scenarios = nullptr;
  const std::vector<Fault>* faults = nullptr;
};
ScenarioLibrary BuiltInScenarios();

/// Called as a run goes on: for each scenario, then for each of its faults.
struct ScenarioObserver {
  absl::FunctionRef<void(const ScenarioResult& result)> on_scenario;
  absl::FunctionRef<void(const FaultResult& result)> on_fault;
};

/// The scenarios of these names, in the library's order; all scenarios if `names` is empty.
/// NOT_FOUND naming an unknown name and listing the known ones.
absl::StatusOr<std::vector<const Scenario*>> FindScenarios(const ScenarioLibrary& library,
                                                           const std::vector<std::string>& names);

/// Runs one scenario under all of its recipes, with `fault` in place if it is not null. `places`
/// says where ranks are; if it is null, every rank is virtual.
ScenarioResult RunScenario(Engine& engine, const Scenario& scenario, const Fault* fault,
                           const Cancellation* cancellation, RankPlaces* places = nullptr);

/// Runs scenarios on an engine, with their faults if `with_faults`. CANCELLED or DEADLINE_EXCEEDED;
/// otherwise OK, whatever was found: a ScenarioTally says whether the run passes. `places` as
/// above.
absl::Status RunScenarios(Engine& engine, const ScenarioLibrary& library,
                          const std::vector<const Scenario*>& scenarios, bool with_faults,
                          const Cancellation* cancellation, ScenarioObserver observer,
                          RankPlaces* places = nullptr);

/// Counts of a run's results.
struct ScenarioTally {
  int64_t good = 0;  ///< Scenarios passed and faults caught.
  int64_t bad = 0;   ///< Scenarios failed or erred, faults missed.
  int64_t scenarios_left_out = 0, faults_left_out = 0;  ///< Neither good nor bad.

  void Add(const ScenarioResult& result);
  void Add(const FaultResult& result);
  /// Whether the run passes: nothing is bad, and something is good.
  bool is_good() const { return bad == 0 && good > 0; }
};

}  // namespace quantgate
