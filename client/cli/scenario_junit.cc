#include "client/cli/scenario_junit.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/number_text.h"

namespace quantgate {
namespace {

/// XML 1.0 has no control characters but these two, not even escaped.
std::string Escaped(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"&", "&amp;"},
                                                   {"<", "&lt;"},
                                                   {">", "&gt;"},
                                                   {"\"", "&quot;"},
                                                   {"'", "&apos;"},
                                                   {"\t", "&#9;"},
                                                   {"\n", "&#10;"}});
  for (char& c : escaped) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return escaped;
}

/// One test case and, where it is not good, what follows it.
struct TestCase {
  std::string class_name, name;
  double seconds = 0;
  std::string element = {};  ///< failure | error | skipped; empty: good.
  std::string type = {};     ///< Of that: "difference", "missed fault", "error", "left out".
  std::string message = {};
  std::string body = {};
};

TestCase CaseOf(const v1::ScenarioResult& result) {
  TestCase test{"quantgate.scenario", result.scenario(), result.seconds()};
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

TestCase CaseOf(const v1::FaultResult& result) {
  TestCase test{"quantgate.fault", absl::StrCat(result.scenario(), " catches ", result.fault()),
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

std::string CaseXml(const TestCase& test) {
  const std::string head = absl::StrFormat("  <testcase classname=\"%s\" name=\"%s\" time=\"%.3f\"",
                                           test.class_name, Escaped(test.name), test.seconds);
  if (test.element.empty()) return absl::StrCat(head, "/>\n");
  return absl::StrCat(
      head, ">\n    <", test.element, " type=\"", test.type, "\" message=\"", Escaped(test.message),
      "\"",
      test.body.empty() ? "/>" : absl::StrCat(">", Escaped(test.body), "</", test.element, ">"),
      "\n  </testcase>\n");
}

void AddProperty(const std::string& name, const std::string& value, std::string& properties) {
  if (value.empty()) return;
  absl::StrAppend(&properties, "    <property name=\"", Escaped(name), "\" value=\"",
                  Escaped(value), "\"/>\n");
}

void AddEnvironment(const v1::Environment& environment, std::string& properties) {
  AddProperty("version", environment.version(), properties);
  AddProperty("build", environment.build(), properties);
  for (const v1::DeviceDescription& device : environment.devices()) {
    AddProperty(absl::StrCat("device ", device.id()), device.name(), properties);
  }
}

}  // namespace

std::string PlaceText(const v1::ScenarioDifference& difference) {
  if (difference.coordinate_size() == 0) return difference.tensor();
  return absl::StrCat(difference.tensor(), " ", CoordinateText(difference.coordinate()));
}

std::string ValuesText(const v1::ScenarioDifference& difference) {
  return absl::StrCat("is ", difference.subject(), ", expected ", difference.expected());
}

std::string DifferenceText(const v1::ScenarioDifference& difference) {
  return absl::StrCat(difference.recipe(), ", step ", difference.step(), ": ",
                      PlaceText(difference), " ", ValuesText(difference));
}

std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events, const JunitRun& run) {
  std::string cases, properties, notes;
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
  for (const v1::ScenarioEvent& event : events) {
    const v1::ScenarioResult& scenario = event.scenario();
    if (event.has_finished()) AddEnvironment(event.finished().environment(), properties);
    AddProperty(absl::StrCat("digest of ", scenario.scenario()), scenario.digest(), properties);
    for (const std::string& note : scenario.notes()) {
      absl::StrAppend(&notes, Escaped(absl::StrCat(scenario.scenario(), ": ", note)), "\n");
    }
    if (event.has_finished()) continue;
    if (event.fault().has_first()) {
      absl::StrAppend(&notes,
                      Escaped(absl::StrCat(CaseOf(event.fault()).name, ": ",
                                           DifferenceText(event.fault().first()))),
                      "\n");
    }
    const TestCase test = event.has_scenario() ? CaseOf(scenario) : CaseOf(event.fault());
    ++tests;
    failures += test.element == "failure";
    errors += test.element == "error";
    skipped += test.element == "skipped";
    seconds += test.seconds;
    absl::StrAppend(&cases, CaseXml(test));
  }
  return absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"quantgate scenarios\" "
      "timestamp=\"%s\" hostname=\"%s\" tests=\"%d\" failures=\"%d\" errors=\"%d\" "
      "skipped=\"%d\" time=\"%.3f\">\n  <properties>\n%s  </properties>\n%s"
      "  <system-out>%s</system-out>\n  <system-err/>\n</testsuite>\n",
      absl::FormatTime("%Y-%m-%dT%H:%M:%S", run.begin, absl::UTCTimeZone()), Escaped(run.host),
      tests, failures, errors, skipped, seconds, properties, cases, notes);
}

}  // namespace quantgate
