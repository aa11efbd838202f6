#include "client/cli/scenario_junit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace {

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
                                           ScenarioOf("fell", "error", "a < b & \"c\""),
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
  const std::string difference_text = "nvfp4, step 3: dw (0, 7) is 1, expected 2";
  const std::vector<std::string> lines = {
      R"(<?xml version="1.0" encoding="UTF-8"?>)",
      R"(<testsuite name="quantgate scenarios" tests="5" failures="2" errors="1" skipped="1" time="1.000">)",
      R"(  <testcase classname="quantgate.scenario" name="good" time="0.250">)",
      R"(    <properties><property name="digest" value="0123abcd"/></properties>)",
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.scenario" name="bad" time="0.250">)",
      R"(    <properties><property name="digest" value="4567"/></properties>)",
      absl::StrCat(R"(    <failure message=")", difference_text, "\">", difference_text,
                   "&#10;2 differences in 7 checks&#10;</failure>"),
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.scenario" name="fell" time="0.250">)",
      R"(    <error message="a &lt; b &amp; &quot;c&quot;"/>)",
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.scenario" name="elsewhere" time="0.250">)",
      R"(    <skipped message="needs a device"/>)",
      R"(  </testcase>)",
      R"(  <testcase classname="quantgate.fault" name="good catches bug" time="0.000">)",
      R"(    <failure message="the scenario passed with the fault in place"/>)",
      R"(  </testcase>)",
      R"(</testsuite>)",
  };
  EXPECT_EQ(ScenarioJunit(events), absl::StrJoin(lines, "\n") + "\n");
}

}  // namespace
}  // namespace quantgate
