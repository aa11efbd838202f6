// What a verdict says, and that every form of a report says the same.
#include "server/report/verdict_text.h"
#include "server/report/comparison_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/output.h"
#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/report_junit.h"
#include "tests/server/report/sample_report.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

SubjectComparison Compared(const std::string& tensor, int64_t mismatches, int64_t elements) {
  SubjectComparison comparison{tensor, "bf16", "bf16", "a:" + tensor, "b:" + tensor,
                               {},     {},     "",     false,         ""};
  v1::ParityReport& parity = *comparison.result.mutable_parity();
  parity.set_element_count(elements);
  parity.set_mismatch_count(mismatches);
  parity.set_equal(mismatches == 0);
  parity.set_worst_ulp(mismatches == 0 ? 0 : 17);
  if (mismatches > 0) parity.mutable_first()->add_coordinate(3);
  return comparison;
}

void AddClass(SubjectComparison& comparison, const char* subject, const char* reference,
              int64_t count) {
  v1::ClassConfusion& cell = *comparison.result.mutable_parity()->add_class_confusion();
  cell.set_subject_class(subject);
  cell.set_reference_class(reference);
  cell.set_count(count);
}

ReportDocument Document(std::vector<SubjectComparison> comparisons,
                        std::optional<int64_t> ulp_max = {}) {
  ReportDocument document;
  document.kind = "diff";
  document.title = "a against b";
  document.comparisons = std::move(comparisons);
  document.verdict = JudgeComparisons(document.comparisons, ulp_max);
  return document;
}

constexpr char kFailure[] =
    "required: 0 differing elements (bitwise); found: 63,363 in y, 31,623 in dx";

TEST(VerdictTextTest, EveryFormSaysWhatWasRequiredAndFound) {
  const ReportDocument document = Document(
      {Compared("y", 63363, 65536), Compared("dx", 31623, 65536), Compared("dw", 0, 65536)});
  EXPECT_FALSE(document.verdict.pass());
  EXPECT_EQ(VerdictLine(document.verdict), kFailure);
  std::ostringstream table;
  PrintReport(document, /*uses_colour=*/false, table);
  EXPECT_THAT(table.str(), HasSubstr(std::string("FAIL  ") + kFailure));
  EXPECT_THAT(RenderHtml(document), HasSubstr(kFailure));
  EXPECT_EQ(Json::parse(JsonDocument(document))["verdict"]["text"], kFailure);
  EXPECT_THAT(ReportJunit(document, JunitRun{}), HasSubstr(kFailure));
}

TEST(VerdictTextTest, APassSaysSoToo) {
  EXPECT_EQ(VerdictLine(Document({Compared("y", 0, 4)}).verdict),
            "required: 0 differing elements (bitwise); found: 0");
  EXPECT_EQ(VerdictLine(Document({Compared("y", 2, 4)}, 20).verdict),
            "required: every element within 20 ulp (given on the command line); found: y up to 17 "
            "ulp");
  EXPECT_EQ(VerdictLine(Document({Compared("y", 2, 4)}, 1).verdict),
            "required: every element within 1 ulp (given on the command line); found: y up to 17 "
            "ulp");
  SubjectComparison absent{"dw", "bf16", "", "", "", {}, {}, "not in mine", false, ""};
  EXPECT_THAT(VerdictLine(Document({absent}).verdict), HasSubstr("found: dw not in mine"));
}

TEST(VerdictTextTest, NothingRequiredHasNoLine) {
  v1::Verdict verdict;
  verdict.set_finding("informs");
  verdict.set_non_finite("y of L1: 3 NaN of 8 elements, exact has all of them too");
  verdict.set_non_finite_inputs("x has 1 NaN");
  EXPECT_EQ(VerdictLine(verdict), "");
  EXPECT_EQ(VerdictWord(verdict), "REPORT");
  EXPECT_THAT(VerdictDetails(verdict),
              testing::ElementsAre("informs",
                                   "not finite: y of L1: 3 NaN of 8 elements, exact has all of "
                                   "them too; inputs: x has 1 NaN"));
}

// An infinity of x that quantization saturated stands in the line, since no output shows it.
TEST(VerdictTextTest, InputsThatAreNotFiniteStandInTheLine) {
  ReportDocument document = Document({Compared("y", 0, 4)});
  document.verdict.set_non_finite_inputs("x has 1 infinite");
  EXPECT_EQ(VerdictLine(document.verdict),
            "required: 0 differing elements (bitwise); found: 0; inputs: x has 1 infinite");
  std::ostringstream table;
  PrintReport(document, /*uses_colour=*/false, table);
  EXPECT_THAT(table.str(), HasSubstr("inputs: x has 1 infinite"));
  document.verdict.set_non_finite_inputs("no input has any");
  EXPECT_THAT(VerdictLine(document.verdict), Not(HasSubstr("inputs")));
  v1::Verdict report;
  report.set_non_finite_inputs("x has 1 infinite");
  EXPECT_THAT(VerdictDetails(report), testing::ElementsAre("inputs: x has 1 infinite"));
}

// PASS beside NaN says how many there are.
TEST(VerdictTextTest, NanAndInfinitiesStandInTheVerdict) {
  SubjectComparison y = Compared("y", 0, 8);
  AddClass(y, "nan", "nan", 3);
  AddClass(y, "+inf", "+inf", 1);
  AddClass(y, "positive", "positive", 4);
  SubjectComparison dx = Compared("dx", 2, 8);
  AddClass(dx, "nan", "positive", 2);
  const ReportDocument document = Document({y, dx});
  constexpr char kText[] =
      "not finite: y: 3 NaN and 1 infinite of 8 elements, the reference has all of them too; dx: 2 "
      "NaN of 8 elements, the reference has none of them";
  std::ostringstream table;
  PrintReport(document, /*uses_colour=*/false, table);
  EXPECT_THAT(table.str(), HasSubstr(kText));
  EXPECT_THAT(RenderHtml(document), HasSubstr(kText));
}

// What the reference alone has stands there too, in every form, and passes no bound.
TEST(VerdictTextTest, NanOfTheReferenceAloneStandsInTheVerdict) {
  SubjectComparison y = Compared("y", 3, 8), dx = Compared("dx", 0, 8);
  AddClass(y, "positive", "nan", 2);
  AddClass(y, "negative", "-inf", 1);
  AddClass(dx, "nan", "nan", 1);
  const ReportDocument document = Document({y, dx});
  constexpr char kLine[] =
      "found: 3 in y, not finite: 1 NaN, in the reference 3 NaN and 1 infinite";
  constexpr char kText[] =
      "not finite: y: none of 8 elements, the reference has 2 NaN and 1 infinite; dx: 1 NaN of 8 "
      "elements, the reference has all of them too";
  EXPECT_THAT(VerdictLine(document.verdict), HasSubstr(kLine));
  std::ostringstream table;
  PrintReport(document, /*uses_colour=*/false, table);
  for (const std::string& form : {table.str(), RenderHtml(document), JsonDocument(document),
                                  ReportJunit(document, JunitRun{})}) {
    EXPECT_THAT(form,
                AllOf(HasSubstr(kLine), HasSubstr("none of 8 elements, the reference has 2")));
  }
  EXPECT_THAT(table.str(), HasSubstr(kText));
  // By a bound, or within some ulp.
  y.bound.emplace();
  y.bound->set_violation_count(3);
  y.bound->set_worst_ratio(INFINITY);
  std::vector<SubjectComparison> comparisons = {y};
  EXPECT_THAT(JudgeBounds(comparisons).finding(),
              HasSubstr("not finite: none, in the reference 2 NaN and 1 infinite, where both must "
                        "have the same"));
  y.bound->set_pass(true);  // Exact, which the bound is of, may have numbers there.
  comparisons = {y};
  EXPECT_THAT(VerdictLine(JudgeBounds(comparisons)),
              HasSubstr("found: 0, not finite: none, in the reference 2 NaN and 1 infinite"));
  comparisons = {Compared("y", 2, 8)};
  comparisons[0].result.mutable_parity()->set_worst_ulp(INT64_MAX);
  AddClass(comparisons[0], "positive", "nan", 2);
  const v1::Verdict verdict = JudgeComparisons(comparisons, INT64_MAX - 1);
  EXPECT_FALSE(verdict.pass());
  EXPECT_THAT(verdict.found(), HasSubstr("a NaN against a number, not finite: none, in the"));
}

TEST(VerdictTextTest, ABoundNextToZeroIsSaid) {
  SubjectComparison y = Compared("y", 1, 8);
  AddClass(y, "positive", "+0", 1);
  AddClass(y, "positive", "positive", 7);
  y.bound.emplace();
  y.bound->set_violation_count(1);
  y.bound->set_worst_ratio(5.15e37);
  std::vector<SubjectComparison> comparisons = {y};
  const v1::Verdict verdict = JudgeBounds(comparisons);
  EXPECT_THAT(VerdictLine(verdict), HasSubstr("found: 1 beyond it in y"));
  EXPECT_THAT(verdict.finding(),
              AllOf(HasSubstr("the bound is next to 0"),
                    HasSubstr("1 are not 0 where the reference is"), Not(HasSubstr("e+37"))));
}

// A report on a subject opens with the subject, and names the reference's own matrix as that.
TEST(VerdictTextTest, TheSubjectStandsBeforeTheReference) {
  ReportDocument document = SampleCompare();
  document.kind = "verify";
  document.comparisons = {Compared("y", 63363, 65536)};
  document.verdict = JudgeComparisons(document.comparisons, std::nullopt);
  const std::string html = RenderHtml(document);
  const size_t subject = html.find("<h2>Subject against the reference</h2>");
  const size_t reference = html.find("<h2>The reference itself, not the subject</h2>");
  ASSERT_NE(subject, std::string::npos);
  ASSERT_NE(reference, std::string::npos);
  EXPECT_LT(subject, reference);
  EXPECT_THAT(html, AllOf(HasSubstr("<b>63,363 differ</b>"), Not(HasSubstr("Recipe matrix"))));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
