#include "client/cli/scenario_junit.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/number_text.h"

namespace quantgate {
namespace {

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"},
                                    {"<", "&lt;"},
                                    {">", "&gt;"},
                                    {"\"", "&quot;"},
                                    {"'", "&apos;"},
                                    {"\n", "&#10;"}});
}

/// One test case and, where it is not good, what follows it.
struct TestCase {
  std::string class_name, name;
  double seconds = 0;
  std::string element;  ///< failure | error | skipped; empty: good.
  std::string message;
  std::string body;
  std::string digest = {};
};

TestCase CaseOf(const v1::ScenarioResult& result) {
  TestCase test{"quantgate.scenario", result.scenario(), result.seconds(), "", "", ""};
  test.digest = result.digest();
  if (result.outcome() == "failed") {
    test.element = "failure";
    test.message = result.differences_size() == 0 ? "" : DifferenceText(result.differences(0));
    for (const v1::ScenarioDifference& difference : result.differences()) {
      absl::StrAppend(&test.body, DifferenceText(difference), "\n");
    }
    absl::StrAppend(&test.body, result.difference_count(), " differences in ", result.checks(),
                    " checks\n");
  } else if (result.outcome() != "passed") {
    test.element = result.outcome() == "left_out" ? "skipped" : "error";
    test.message = result.message();
  }
  return test;
}

TestCase CaseOf(const v1::FaultResult& result) {
  TestCase test{"quantgate.fault",
                absl::StrCat(result.scenario(), " catches ", result.fault()),
                result.seconds(),
                "",
                "",
                ""};
  if (result.outcome() == "missed") {
    test.element = "failure";
    test.message = result.message();
  } else if (result.outcome() == "left_out") {
    test.element = "skipped";
    test.message = result.message();
  }
  return test;
}

std::string CaseXml(const TestCase& test) {
  const std::string head = absl::StrFormat("  <testcase classname=\"%s\" name=\"%s\" time=\"%.3f\"",
                                           test.class_name, Escaped(test.name), test.seconds);
  if (test.element.empty() && test.digest.empty()) return absl::StrCat(head, "/>\n");
  std::string xml = absl::StrCat(head, ">\n");
  if (!test.digest.empty()) {
    absl::StrAppend(&xml, "    <properties><property name=\"digest\" value=\"", test.digest,
                    "\"/></properties>\n");
  }
  if (!test.element.empty()) {
    absl::StrAppend(
        &xml, "    <", test.element, " message=\"", Escaped(test.message), "\"",
        test.body.empty() ? "/>" : absl::StrCat(">", Escaped(test.body), "</", test.element, ">"),
        "\n");
  }
  return absl::StrCat(xml, "  </testcase>\n");
}

}  // namespace

std::string DifferenceText(const v1::ScenarioDifference& difference) {
  std::string text =
      absl::StrCat(difference.recipe(), ", step ", difference.step(), ": ", difference.tensor());
  if (difference.coordinate_size() > 0) {
    absl::StrAppend(&text, " ", CoordinateText(difference.coordinate()));
  }
  return absl::StrCat(text, " is ", difference.subject(), ", expected ", difference.expected());
}

std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events) {
  std::string cases;
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
  for (const v1::ScenarioEvent& event : events) {
    if (event.has_finished()) continue;
    const TestCase test = event.has_scenario() ? CaseOf(event.scenario()) : CaseOf(event.fault());
    ++tests;
    failures += test.element == "failure";
    errors += test.element == "error";
    skipped += test.element == "skipped";
    seconds += test.seconds;
    absl::StrAppend(&cases, CaseXml(test));
  }
  return absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"quantgate scenarios\" "
      "tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\" time=\"%.3f\">\n%s</testsuite>\n",
      tests, failures, errors, skipped, seconds, cases);
}

}  // namespace quantgate
