#include "server/report/junit.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace quantgate {
namespace {

/// Escapes text for XML. Control characters other than tab, line feed and CR become '?', since XML
/// 1.0 has no others, not even escaped.
std::string XmlEscaped(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"&", "&amp;"},
                                                   {"<", "&lt;"},
                                                   {">", "&gt;"},
                                                   {"\"", "&quot;"},
                                                   {"'", "&apos;"},
                                                   {"\t", "&#9;"},
                                                   {"\n", "&#10;"},
                                                   {"\r", "&#13;"}});
  for (char& c : escaped) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return escaped;
}

std::string CaseXml(const JunitCase& test) {
  const std::string head = absl::StrFormat("  <testcase classname=\"%s\" name=\"%s\" time=\"%.3f\"",
                                           test.class_name, XmlEscaped(test.name), test.seconds);
  if (test.element.empty()) return absl::StrCat(head, "/>\n");
  return absl::StrCat(
      head, ">\n    <", test.element, " type=\"", test.type, "\" message=\"",
      XmlEscaped(test.message), "\"",
      test.body.empty() ? "/>" : absl::StrCat(">", XmlEscaped(test.body), "</", test.element, ">"),
      "\n  </testcase>\n");
}

}  // namespace

std::string JunitText(const JunitSuite& suite, const JunitRun& run) {
  std::string cases, properties, notes;
  int failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
  for (const JunitCase& test : suite.cases) {
    failures += test.element == "failure";
    errors += test.element == "error";
    skipped += test.element == "skipped";
    seconds += test.seconds;
    absl::StrAppend(&cases, CaseXml(test));
  }
  for (const auto& [name, value] : suite.properties) {
    if (value.empty()) continue;
    absl::StrAppend(&properties, "    <property name=\"", XmlEscaped(name), "\" value=\"",
                    XmlEscaped(value), "\"/>\n");
  }
  for (const std::string& note : suite.notes) absl::StrAppend(&notes, XmlEscaped(note), "\n");
  return absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"%s\" "
      "timestamp=\"%s\" hostname=\"%s\" tests=\"%d\" failures=\"%d\" errors=\"%d\" "
      "skipped=\"%d\" time=\"%.3f\">\n  <properties>\n%s  </properties>\n%s"
      "  <system-out>%s</system-out>\n  <system-err/>\n</testsuite>\n",
      XmlEscaped(suite.name), absl::FormatTime("%Y-%m-%dT%H:%M:%S", run.begin, absl::UTCTimeZone()),
      XmlEscaped(run.host), suite.cases.size(), failures, errors, skipped, seconds, properties,
      cases, notes);
}

}  // namespace quantgate
