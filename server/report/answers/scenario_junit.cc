#include "server/report/answers/scenario_junit.h"

#include "absl/strings/str_cat.h"
#include "server/report/answers/render_scenarios.h"

namespace quantgate {
namespace {

JunitCase CaseOf(const v1::ScenarioResult& result) {
  JunitCase test{"quantgate.scenario", result.scenario(), result.seconds()};
  if (result.outcome() == "failed") {
    test.element = "failure";
    test.type = "difference";
    test.message = result.differences_size() == 0 ? "" : DifferenceText(result.differences(0));
    for (const v1::ScenarioDifference& difference : result.differences()) {
      absl::StrAppend(&test.body, DifferenceText(difference), "\n");
    }
    absl::StrAppend(&test.body, result.difference_count(), " differences in ", result.checks(),
                    " checks\n");
  } else if (result.outcome() != "passed") {
    const bool is_left_out = result.outcome() == "left_out";
    test.element = is_left_out ? "skipped" : "error";
    test.type = is_left_out ? "left out" : "error";
    test.message = result.message();
  }
  return test;
}

JunitCase CaseOf(const v1::FaultResult& result) {
  JunitCase test{"quantgate.fault", absl::StrCat(result.scenario(), " catches ", result.fault()),
                 result.seconds()};
  if (result.outcome() == "missed") {
    test.element = "failure";
    test.type = "missed fault";
    test.message = result.message();
  } else if (result.outcome() == "left_out") {
    test.element = "skipped";
    test.type = "left out";
    test.message = result.message();
  }
  return test;
}

void AddEnvironment(const v1::Environment& environment, JunitSuite& suite) {
  suite.properties.emplace_back("version", environment.version());
  suite.properties.emplace_back("build", environment.build());
  for (const v1::DeviceDescription& device : environment.devices()) {
    suite.properties.emplace_back(absl::StrCat("device ", device.id()), device.name());
  }
}

}  // namespace

std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events, const JunitRun& run) {
  JunitSuite suite{"quantgate scenarios", {}, {}, {}};
  for (const v1::ScenarioEvent& event : events) {
    const v1::ScenarioResult& scenario = event.scenario();
    if (event.has_finished()) AddEnvironment(event.finished().environment(), suite);
    suite.properties.emplace_back(absl::StrCat("digest of ", scenario.scenario()),
                                  scenario.digest());
    for (const std::string& note : scenario.notes()) {
      suite.notes.push_back(absl::StrCat(scenario.scenario(), ": ", note));
    }
    if (event.has_finished()) continue;
    if (event.fault().has_first()) {
      suite.notes.push_back(
          absl::StrCat(CaseOf(event.fault()).name, ": ", DifferenceText(event.fault().first())));
    }
    suite.cases.push_back(event.has_scenario() ? CaseOf(scenario) : CaseOf(event.fault()));
  }
  return JunitText(suite, run);
}

}  // namespace quantgate
