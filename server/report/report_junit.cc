#include "server/report/report_junit.h"

#include "absl/strings/str_cat.h"
#include "server/report/verdict_text.h"

namespace quantgate {
namespace {

/// A captured layer as a test case: skipped where nothing of it was judged.
JunitCase LayerCase(const CapturedLayer& layer) {
  JunitCase test{absl::StrCat("quantgate.capture.step", layer.step, ".rank", layer.rank),
                 absl::StrCat(layer.module, " call ", layer.call)};
  if (!layer.passes) {
    test.element = "failure";
    test.type = "difference";
    test.message = layer.finding;
  } else if (layer.comparison_count == 0) {
    test.element = "skipped";
    test.type = "left out";
    test.message = layer.remark;
  }
  return test;
}

JunitCase VerdictCase(const std::string& class_name, const std::string& name, bool passes,
                      const std::string& finding, const v1::Verdict& verdict) {
  JunitCase test{class_name, name};
  if (passes) return test;
  test.element = "failure";
  test.type = "difference";
  test.message = finding;
  test.body = absl::StrCat(VerdictLine(verdict), "\n");
  return test;
}

}  // namespace

std::string ReportJunit(const ReportDocument& document, const JunitRun& run) {
  const std::string class_name = absl::StrCat("quantgate.", document.kind);
  JunitSuite suite{absl::StrCat("quantgate ", document.kind), {}, {}, document.remarks};
  suite.properties = {{"title", document.title},
                      {"criterion", RequiredText(document.verdict)},
                      {"found", document.verdict.found()},
                      {"diagnosis", document.diagnosis ? document.diagnosis->sentence() : ""},
                      {"first_divergence", document.first_divergence},
                      {"non_finite", document.verdict.non_finite()},
                      {"non_finite_inputs", document.verdict.non_finite_inputs()},
                      {"command", document.command},
                      {"reproduce", document.run.reproduce()},
                      {"version", document.run.environment().version()}};
  for (const CapturedLayer& layer : document.layers) suite.cases.push_back(LayerCase(layer));
  if (!document.layers.empty()) return JunitText(suite, run);
  for (const SubjectComparison& comparison : document.comparisons) {
    suite.cases.push_back(VerdictCase(class_name, comparison.tensor, comparison.passes,
                                      comparison.finding, document.verdict));
  }
  if (document.comparisons.empty()) {
    suite.cases.push_back(VerdictCase(class_name, document.title, document.verdict.pass(),
                                      document.verdict.finding(), document.verdict));
    suite.cases.back().seconds = document.run.seconds();
  }
  return JunitText(suite, run);
}

}  // namespace quantgate
