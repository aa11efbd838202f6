#include "server/report/answers/scenario_junit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace QG_TEST_FILE {

v1::ScenarioEvent ScenarioOf(const std::string& name, const std::string& outcome,
                             const std::string& message) {
  v1::ScenarioEvent event;
  event.mutable_scenario()->set_scenario(name);
  event.mutable_scenario()->set_outcome(outcome);
  event.mutable_scenario()->set_message(message);
  event.mutable_scenario()->set_seconds(0.25);
  return event;
}

TEST(ScenarioJunitTest, HasACaseForEveryResult) {
  std::vector<v1::ScenarioEvent> events = {ScenarioOf("good", "passed", ""),
                                           ScenarioOf("bad", "failed", ""),
                                           ScenarioOf("fell", "error", "a < b & \"c\"\x1b\td"),
                                           ScenarioOf("elsewhere", "left_out", "needs a device")};
  events[0].mutable_scenario()->set_digest("0123abcd");
  v1::ScenarioResult& bad = *events[1].mutable_scenario();
  bad.set_digest("4567");
  bad.set_checks(7);
  bad.set_difference_count(2);
  v1::ScenarioDifference& difference = *bad.add_differences();
  difference.set_recipe("nvfp4");
  difference.set_step(3);
  difference.set_tensor("dw");
  difference.add_coordinate(0);
  difference.add_coordinate(7);
  difference.set_subject("1");
  difference.set_expected("2");
  v1::ScenarioEvent missed;
  missed.mutable_fault()->set_fault("bug");
  missed.mutable_fault()->set_scenario("good");
  missed.mutable_fault()->set_outcome("missed");
  missed.mutable_fault()->set_message("the scenario passed with the fault in place");
  events.push_back(missed);
  v1::ScenarioEvent caught;
  caught.mutable_fault()->set_fault("other bug");
  caught.mutable_fault()->set_scenario("good");
  caught.mutable_fault()->set_outcome("caught");
  *caught.mutable_fault()->mutable_first() = difference;
  events.push_back(caught);
  events[0].mutable_scenario()->add_notes("nvfp4: 3 of 4");
  v1::ScenarioEvent finished;
  v1::Environment& environment = *finished.mutable_finished()->mutable_environment();
  environment.set_version("1.2");
  environment.add_devices()->set_id("cpu");
  environment.mutable_devices(0)->set_name("A \"fast\" one");
  events.push_back(finished);
  const std::string difference_text = "nvfp4, step 3: dw (0, 7) is 1, expected 2";
  const std::vector<std::string> lines = {
      R"(<?xml version="1.0" encoding="UTF-8"?>)",
      R"(<testsuite name="quantgate scenarios" timestamp="2026-02-03T04:05:06" hostname="here:7470" )"
      R"(tests="6" failures="2" errors="1" skipped="1" time="1.000">)",
      R"(  <properties>)",
      R"(    <property name="digest of good" value="0123abcd"/>)",
      R"(    <property name="digest of bad" value="4567"/>)",
      R"(    <property name="version" value="1.2"/>)",
      R"(    <property name="device cpu" value="A &quot;fast&quot; one"/>)",
      R"(  </properties>)",
      R"(  <testcase classname="quantgate.scenario" name="good" time="0.250"/>)",
      R"(  <testcase classname="quantgate.scenario" name="bad" time="0.250">)",
      absl::StrCat(R"(    <failure type="difference" message=")", difference_text, "\">",
                   difference_text, "&#10;2 differences in 7 checks&#10;</failure>"),
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.scenario" name="fell" time="0.250">)",
      R"(    <error type="error" message="a &lt; b &amp; &quot;c&quot;?&#9;d"/>)",
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.scenario" name="elsewhere" time="0.250">)",
      R"(    <skipped type="left out" message="needs a device"/>)",
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.fault" name="good catches bug" time="0.000">)",
      R"(    <failure type="missed fault" message="the scenario passed with the fault in place"/>)",
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.fault" name="good catches other bug" time="0.000"/>)",
      absl::StrCat("  <system-out>good: nvfp4: 3 of 4\ngood catches other bug: ", difference_text,
                   "\n</system-out>"),
      R"(  <system-err/>)",
      R"(</testsuite>)",
  };
  const JunitRun run{"here:7470",
                     absl::FromCivil(absl::CivilSecond(2026, 2, 3, 4, 5, 6), absl::UTCTimeZone())};
  EXPECT_EQ(ScenarioJunit(events, run), absl::StrJoin(lines, "\n") + "\n");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
