#include "server/report/report_junit.h"
#include "server/report/comparison_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/output.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::Not;

const JunitRun kRun{"here:7470",
                    absl::FromCivil(absl::CivilSecond(2026, 2, 3, 4, 5, 6), absl::UTCTimeZone())};

SubjectComparison Compared(const std::string& tensor, int64_t mismatches) {
  SubjectComparison comparison;
  comparison.tensor = tensor;
  comparison.dtype = comparison.reference_dtype = "bf16";
  v1::ParityReport& parity = *comparison.result.mutable_parity();
  parity.set_equal(mismatches == 0);
  parity.set_element_count(8);
  parity.set_mismatch_count(mismatches);
  parity.set_worst_ulp(mismatches);
  parity.mutable_first()->add_coordinate(3);
  return comparison;
}

TEST(ReportJunitTest, EveryTensorIsACaseAndFailsAsTheVerdictDoes) {
  ReportDocument document;
  document.kind = "verify";
  document.title = "a & b";
  SubjectComparison absent;
  absent.tensor = "dw<1>";
  absent.difference = "not in \"mine\"";
  document.comparisons = {Compared("y", 0), Compared("dx", 1), absent};
  document.remarks = {"in the subject, but no output of this layer: dW"};
  document.verdict = JudgeComparisons(document.comparisons, /*ulp_max=*/std::nullopt);
  EXPECT_FALSE(document.verdict.pass());
  std::string xml = ReportJunit(document, kRun);
  EXPECT_THAT(xml,
              HasSubstr(R"(<testsuite name="quantgate verify" timestamp="2026-02-03T04:05:06" )"
                        R"(hostname="here:7470" tests="3" failures="2" errors="0" )"));
  EXPECT_THAT(xml, HasSubstr(R"(<property name="title" value="a &amp; b"/>)"));
  EXPECT_THAT(xml, HasSubstr(R"(<testcase classname="quantgate.verify" name="y" time="0.000"/>)"));
  EXPECT_THAT(xml, HasSubstr("name=\"dx\" time=\"0.000\">\n    <failure type=\"difference\" "
                             "message=\"dx differs in 1 of 8 elements, first at (3): "));
  EXPECT_THAT(xml, HasSubstr("message=\"dw&lt;1&gt;: not in &quot;mine&quot;\">required: 0 "
                             "differing elements (bitwise); found: 1 in dx, dw&lt;1&gt; not in "
                             "&quot;mine&quot;"));
  EXPECT_THAT(xml, HasSubstr("<system-out>in the subject, but no output of this layer: dW\n"));

  document.comparisons.pop_back();
  document.verdict = JudgeComparisons(document.comparisons, /*ulp_max=*/1);
  EXPECT_TRUE(document.verdict.pass());
  xml = ReportJunit(document, kRun);
  EXPECT_THAT(xml, HasSubstr(R"(tests="2" failures="0")"));
  EXPECT_THAT(xml, Not(HasSubstr("<failure")));
}

TEST(ReportJunitTest, ARunIsOneCase) {
  ReportDocument document;
  document.kind = "run";
  document.title = "linear: bf16 / none / auto";
  document.run.set_seconds(1.5);
  document.verdict.set_pass(false);
  document.verdict.set_finding("y exceeds its bound");
  document.verdict.set_non_finite("y has 1 NaN");
  document.verdict.set_non_finite_inputs("x has 1 NaN");
  EXPECT_THAT(ReportJunit(document, kRun), HasSubstr("x has 1 NaN"));
  EXPECT_THAT(ReportJunit(document, kRun),
              HasSubstr(R"(tests="1" failures="1" errors="0" skipped="0" time="1.500">)"));
  document.verdict.set_pass(true);
  EXPECT_THAT(
      ReportJunit(document, kRun),
      HasSubstr(
          R"(<testcase classname="quantgate.run" name="linear: bf16 / none / auto" time="1.500"/>)"));
}

TEST(ReportFileTest, ErrorsHaveTheCodeOfTheirCause) {
  EXPECT_TRUE(absl::IsNotFound(WriteTextFile("/no/such/directory/report.json", "{}")));
  EXPECT_TRUE(absl::IsInvalidArgument(WriteTextFile("/dev/null/report.json", "{}")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
