// What a trace's report says: rates, drifts, JSON, HTML; and how it is made of events.
#include "server/report/trace_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/report/comparison_verdict.h"
#include "server/report/render_html.h"
#include "server/report/trace_events.h"
#include "tests/server/report/recorded_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TraceQuantization Quantized(int step, int variant, float scale, int64_t flushed) {
  TraceQuantization quantization{step, variant, -1, {}};
  quantization.record.set_tensor("fc1.x");
  quantization.record.set_role("input");
  quantization.record.set_rowwise(true);
  quantization.record.set_scale(scale);
  quantization.record.mutable_counts()->set_flushed_to_zero(flushed);
  quantization.record.mutable_counts()->set_saturated(1);
  quantization.record.mutable_counts()->set_normal(7 - flushed);
  return quantization;
}

TraceTensor Compared(int step, bool is_equal) {
  TraceTensor tensor{step, 1, {}};
  tensor.comparison.tensor = "y";
  tensor.comparison.dtype = tensor.comparison.reference_dtype = "bf16";
  v1::ParityReport& parity = *tensor.comparison.result.mutable_parity();
  parity.set_equal(is_equal);
  parity.set_element_count(8);
  parity.set_mismatch_count(is_equal ? 0 : 3);
  parity.set_worst_ulp(is_equal ? 0 : 5);
  v1::ErrorReport& error = *tensor.comparison.result.mutable_error();
  error.set_sqnr_db(is_equal ? INFINITY : 20);
  error.set_relative_frobenius(is_equal ? 0 : 0.1);
  error.set_cosine(is_equal ? 1 - 0x1p-53 : 0.9375);
  return tensor;
}

TraceReport Sample() {
  TraceReport report;
  report.command = "quantgate session run <trace>.json";
  report.variants = {"bf16 / none / auto", "fp8_delayed<&> / none / auto"};
  report.steps = {{1, "forward", ""}, {2, "forward", "b"}};
  report.tensors = {Compared(0, true), Compared(1, false)};
  report.quantizations = {Quantized(0, 1, 1, 2), Quantized(1, 1, 8, 0)};
  report.notes = {"a note"};
  return report;
}

TEST(TraceReportTest, DriftsAgainstTheFirstOfTheSameVariantAndTensor) {
  TraceReport report = Sample();
  report.quantizations.push_back(Quantized(1, 0, 0.5f, 0));
  report.quantizations.push_back(Quantized(2, 0, 0.25f, 0));
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  ASSERT_EQ(drifts.size(), 4u);
  EXPECT_EQ(drifts[0].scale, 0.0);
  EXPECT_EQ(drifts[1].scale, 3.0);  // log2(8 / 1)
  EXPECT_EQ(drifts[2].scale, 0.0);
  EXPECT_EQ(drifts[3].scale, -1.0);
  EXPECT_FALSE(drifts[0].mean_code.has_value());
}

TEST(TraceReportTest, DriftsOfBlockScalesAreThoseOfTheirMeanCode) {
  TraceReport report;
  report.variants = {"mxfp8 / none / auto"};
  for (const int code : {120, 124}) {
    TraceQuantization quantization;
    (*quantization.record.mutable_scale_codes())[code] = 3;
    (*quantization.record.mutable_scale_codes())[code + 4] = 1;
    report.quantizations.push_back(quantization);
  }
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  EXPECT_EQ(drifts[0].mean_code, 121.0);  // (3 x 120 + 124) / 4
  EXPECT_EQ(drifts[1].code, 4.0);
  EXPECT_FALSE(drifts[1].scale.has_value());
}

TEST(TraceReportTest, JsonHasEveryFigure) {
  const auto json = nlohmann::json::parse(TraceJson(Sample()));
  EXPECT_EQ(json["kind"], "trace");
  EXPECT_EQ(json["steps"][1]["round"], 2);
  EXPECT_EQ(json["tensors"][0]["error"]["sqnr_db"], "Infinity");
  EXPECT_EQ(json["tensors"][1]["parity"]["mismatch_count"], 3);
  EXPECT_EQ(json["tensors"][1]["parity"]["worst_ulp"], 5);
  EXPECT_EQ(json["tensors"][1]["error"]["cosine"], 0.9375);
  EXPECT_EQ(json["quantizations"][0]["underflow_rate"], 0.25);    // 2 of 8
  EXPECT_EQ(json["quantizations"][0]["saturation_rate"], 0.125);  // 1 of 8
  EXPECT_EQ(json["quantizations"][1]["scale_drift_log2"], 3.0);
  EXPECT_TRUE(json["quantizations"][1]["mean_scale_code"].is_null());
}

TEST(TraceReportTest, JsonLosesNoValueOfSchemaVersion1) {
  const auto recorded = nlohmann::ordered_json::parse(RecordedText("sample_trace.json"));
  EXPECT_GE(CountValues(recorded), 60);
  EXPECT_THAT(LostValues(recorded, JsonOf(Sample())), testing::IsEmpty());
}

TEST(TraceReportTest, JsonLinesAreOneEntryEach) {
  std::istringstream lines(TraceJsonLines(Sample()));
  std::vector<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    kinds.push_back(nlohmann::json::parse(line)["kind"]);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"trace_tensor", "trace_tensor", "trace_quantization",
                                             "trace_quantization", "trace"}));
}

TEST(TraceReportTest, TableAndHtmlShowStepsVariantsAndDrift) {
  std::ostringstream table;
  PrintTrace(Sample(), /*uses_colour=*/false, table);
  EXPECT_THAT(table.str(), HasSubstr("37.5 %"));  // 3 of 8 differ
  EXPECT_THAT(table.str(), HasSubstr("note: a note"));
  const std::string html = RenderHtml(Sample());
  EXPECT_THAT(html, HasSubstr("<h3>y</h3>"));
  EXPECT_THAT(html, HasSubstr("<h3>fc1.x (input, rowwise)</h3>"));
  // One line of two points in each chart; SQNR's first is infinite: it lies above.
  EXPECT_THAT(html, HasSubstr("scale drift, log2</figcaption>"));
  const std::string turned = html.substr(html.find("1 \u2212 cosine</figcaption>"));
  EXPECT_THAT(turned, HasSubstr("none / auto, step 1: 0</title>"));
  EXPECT_LT(turned.find("step 1: 0</title>"), turned.find("</figure>"));
  EXPECT_THAT(html, HasSubstr("d=\"M46.0 130.0L312.0 10.0\""));
  EXPECT_THAT(html, HasSubstr("fp8_delayed&lt;&amp;&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("<trace>")));
  for (const char* outside : {"http:", "https:", "<script", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

TraceReport WithDiagnosis() {
  TraceReport report = Sample();
  TraceDiagnosis& one = report.diagnoses.emplace_back(TraceDiagnosis{1, 1, {}});
  one.diagnosis.set_sentence("y is twice the <expected>");
  one.diagnosis.add_figures("y: 8 of 8 elements differ");
  one.diagnosis.add_tried("y: is zero");
  one.diagnosis.add_not_tried("mxfp8 (no time)");
  return report;
}

TEST(TraceReportTest, SaysWhySubjectsFail) {
  TraceReport report = WithDiagnosis();
  std::ostringstream text, all;
  PrintTrace(report, /*uses_colour=*/false, text);
  EXPECT_THAT(text.str(), HasSubstr("step 2 forward b of fp8_delayed<&> / none / auto: y is twice "
                                    "the <expected>\n  y: 8 of 8 elements differ\n  1 more tried, "
                                    "1 not tried; --tried lists them\n"));
  report.lists_tried = true;
  PrintTrace(report, /*uses_colour=*/false, all);
  EXPECT_THAT(all.str(), HasSubstr("  does not fit: y: is zero\n  not tried: mxfp8 (no time)\n"));
  const auto json = nlohmann::json::parse(TraceJson(report));
  ASSERT_EQ(json["diagnoses"].size(), 1u);
  const auto& one = json["diagnoses"][0];
  EXPECT_EQ(one["step"], 2);
  EXPECT_EQ(one["variant"], 1);
  EXPECT_EQ(one["label"], "fp8_delayed<&> / none / auto");
  EXPECT_EQ(one["sentence"], "y is twice the <expected>");
  EXPECT_EQ(one["is_unknown"], false);
  EXPECT_EQ(one["not_tried"][0], "mxfp8 (no time)");
  EXPECT_THAT(TraceJsonLines(report), HasSubstr(R"("kind":"trace_diagnosis")"));
  const std::string html = RenderHtml(report);
  EXPECT_THAT(html, HasSubstr("<h3>Step 2 forward of fp8_delayed&lt;&amp;&gt; / none / auto</h3>"));
  EXPECT_THAT(html, HasSubstr("<strong>y is twice the &lt;expected&gt;</strong>"));
  EXPECT_THAT(RenderHtml(Sample()), Not(HasSubstr("Why subjects fail")));
}

TraceMemory Held(int step, int variant, int64_t saved, int64_t on_host, int64_t peak) {
  TraceMemory memory{step, variant, {}};
  memory.memory.set_saved_bytes(saved);
  memory.memory.set_held_bytes(512);
  memory.memory.set_added_bytes(saved - 512);
  memory.memory.set_host_bytes(on_host);
  memory.memory.set_peak_bytes(peak);
  memory.memory.add_operands()->set_operand("x");
  return memory;
}

TEST(TraceReportTest, SaysWhatIsSavedAfterEachStep) {
  TraceReport report = Sample();
  const auto table = [&] {
    std::ostringstream out;
    PrintTrace(report, /*uses_colour=*/false, out);
    return out.str();
  };
  EXPECT_THAT(table(), Not(HasSubstr("Saved for backward")));
  EXPECT_THAT(RenderHtml(report), Not(HasSubstr("bytes saved for backward")));
  report.memories = {Held(0, 0, 4096, 0, 3584), Held(0, 1, 2560, 0, 2048),
                     Held(1, 0, 4096, 0, 3584), Held(1, 1, 512, 2048, 2048)};
  EXPECT_THAT(table(), HasSubstr("Saved for backward after each step"));
  EXPECT_THAT(table(),
              ContainsRegex("1 forward +bf16 / none / auto +4.0 KiB +0 B +512 B +3.5 KiB"));
  EXPECT_THAT(table(), ContainsRegex("2 forward b +fp8[^ ]+ / none / auto +512 B +0 B +512 B +0 B "
                                     "+2.0 KiB +0 B +2.0 KiB"));
  // What a step leaves as it was is not told again.
  EXPECT_THAT(table(), Not(ContainsRegex("2 forward b +bf16 / none / auto +4.0 KiB")));
  const std::string html = RenderHtml(report);
  EXPECT_THAT(html, HasSubstr("<h3>bytes saved for backward</h3>"));
  EXPECT_THAT(html, HasSubstr("added on the device, MiB</figcaption>"));
  EXPECT_THAT(html, HasSubstr("offloaded to the host, MiB</figcaption>"));
  EXPECT_THAT(html, Not(HasSubstr("left to recomputation, MiB")));
  EXPECT_THAT(html, HasSubstr("<td class=\"r\">3.5 KiB</td>"));
  const auto json = nlohmann::json::parse(TraceJson(report));
  EXPECT_EQ(json["memories"][3]["step"], 2);
  EXPECT_EQ(json["memories"][3]["host_bytes"], 2048);
  EXPECT_EQ(json["memories"][3]["operands"][0]["operand"], "x");
  EXPECT_THAT(TraceJsonLines(report), HasSubstr("\"kind\":\"trace_memory\""));
}

v1::RunEvent StepEvent(int step, int variant, const std::string& tensor) {
  v1::RunEvent event;
  v1::TraceStep& report = *event.mutable_trace_step();
  report.set_step(step);
  report.set_round(1 + (step - 1) / 2);
  report.set_variant(variant);
  report.set_kind("forward");
  report.add_notes("the same note");
  report.mutable_memory()->set_saved_bytes(100 * step + variant);
  v1::QuantizationRecord& record = *report.add_quantizations()->mutable_record();
  record.set_tensor("x");
  record.set_scale(2);
  if (tensor.empty()) return event;
  report.mutable_quantizations(0)->set_scale_against_reference_log2(1.5);
  v1::StepComparison& comparison = *report.add_against_reference();
  comparison.set_tensor(tensor);
  comparison.mutable_type()->set_dtype("bf16");
  comparison.mutable_reference_type()->set_dtype("bf16");
  comparison.mutable_parity()->set_mismatch_count(3);
  comparison.mutable_parity()->set_element_count(8);
  comparison.set_pass(true);
  return event;
}

// The reference variant is the last one here; its events come first in each step.
TEST(TraceEventsTest, MakeTheReportInTheOrderOfStepsAndVariants) {
  TraceEvents events;
  v1::RunEvent event;
  v1::TraceStarted& started = *event.mutable_trace();
  for (const char* label : {"bf16 / none / auto", "mxfp8 / none / auto"}) {
    started.add_variants(label);
  }
  started.set_reference(1);
  started.set_step_count(3);
  events.Take(event);
  EXPECT_EQ(events.count(), 6);
  for (const int step : {1, 2, 3}) {
    events.Take(StepEvent(step, 1, ""));
    event = StepEvent(step, 0, step == 3 ? "fc.weight" : "y");
    if (step == 2) {
      *event.mutable_trace_step()->add_rank_differences() = "y: ranks 0 and 1 differ";
      event.mutable_trace_step()->set_label("bf16 / none / auto / tp2");
      event.mutable_trace_step()->mutable_checkpoint()->set_sha256(std::string(32, '\x11'));
      *event.mutable_trace_step()->add_subjects() = event.trace_step().against_reference(0);
    }
    events.Take(event);
  }
  EXPECT_EQ(events.taken(), 6);
  v1::RunReport run;
  run.mutable_verdict()->set_criterion(v1::REQUIREMENT_BITWISE);
  const TraceReport report = events.Finish(run);
  EXPECT_EQ(report.reference, 1);
  ASSERT_EQ(report.steps.size(), 3u);
  EXPECT_EQ(report.steps[2].round, 2);
  ASSERT_EQ(report.tensors.size(), 3u);
  EXPECT_EQ(report.tensors[2].comparison.tensor, "fc.weight");
  EXPECT_EQ(report.tensors[0].comparison.subject_name, "y of bf16 / none / auto");
  EXPECT_EQ(report.tensors[0].comparison.reference_name, "y of mxfp8 / none / auto");
  ASSERT_EQ(report.subjects.size(), 1u);
  EXPECT_EQ(report.subjects[0].comparison.reference_name, "y of bf16 / none / auto / tp2");
  std::vector<std::pair<int, int>> order;
  for (const TraceMemory& memory : report.memories) order.emplace_back(memory.step, memory.variant);
  EXPECT_EQ(order,
            (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}));
  EXPECT_EQ(report.quantizations[0].scale_against_reference, 1.5);
  EXPECT_FALSE(report.quantizations[1].scale_against_reference.has_value());
  ASSERT_EQ(report.rank_differences.size(), 1u);
  EXPECT_EQ(report.rank_differences[0], "step 2 of bf16 / none / auto: y: ranks 0 and 1 differ");
  ASSERT_EQ(report.notes.size(), 5u);  // Each variant's note once, by each of its labels.
  EXPECT_EQ(report.notes[4], "bf16 / none / auto / tp2: the same note");
  EXPECT_THAT(report.notes[3],
              testing::StartsWith("step 2 of bf16 / none / auto: goes on as bf16 / none / auto / "
                                  "tp2 from checkpoint 1111"));
  EXPECT_TRUE(report.verdict.has_value());
  const auto json = nlohmann::json::parse(TraceJson(report));
  EXPECT_EQ(json["subjects"][0]["tensor"], "y");
  // Each row has its variant's label of that step.
  EXPECT_EQ(json["tensors"][0]["label"], "bf16 / none / auto");
  EXPECT_EQ(json["tensors"][1]["label"], "bf16 / none / auto / tp2");
  EXPECT_EQ(json["tensors"][2]["label"], "bf16 / none / auto / tp2");
  EXPECT_EQ(json["quantizations"][0]["scale_against_reference_log2"], 1.5);
  std::ostringstream table;
  PrintTrace(report, /*uses_colour=*/false, table);
  EXPECT_THAT(table.str(), HasSubstr("Subjects, each against its variant's tensor"));
  EXPECT_THAT(RenderHtml(report), HasSubstr("<h2>Subjects, each against its variant"));
}

TEST(TraceEventsTest, OtherTypesAreADifference) {
  v1::StepComparison comparison;
  comparison.mutable_type()->set_dtype("bf16");
  comparison.mutable_type()->add_shape(2);
  comparison.mutable_reference_type()->set_dtype("f32");
  comparison.mutable_reference_type()->add_shape(2);
  EXPECT_EQ(SubjectComparisonOf(comparison).difference, "bf16[2] against f32[2]");
  comparison.mutable_parity()->set_equal(true);
  EXPECT_EQ(SubjectComparisonOf(comparison).difference, "");
}

TEST(ComparisonJudgeTest, WantsTheReferencesBitsAndRanksThatAgree) {
  ComparisonJudge judge = ComparisonJudge::Bitwise();
  SubjectComparison equal = Compared(0, true).comparison;
  judge.Add(equal);
  EXPECT_TRUE(equal.passes);
  EXPECT_TRUE(judge.Verdict().pass());
  EXPECT_EQ(judge.Verdict().found(), "0");
  ComparisonJudge of_ranks = judge;
  of_ranks.AddDifference("step 1 of bf16 / tp2: y: ranks 0 and 1 have other bits");
  EXPECT_FALSE(of_ranks.Verdict().pass());
  EXPECT_EQ(of_ranks.Verdict().finding(), "step 1 of bf16 / tp2: y: ranks 0 and 1 have other bits");
  SubjectComparison other = Compared(1, false).comparison;
  judge.Add(other);
  EXPECT_FALSE(other.passes);
  EXPECT_FALSE(judge.Verdict().pass());
  EXPECT_EQ(judge.Verdict().found(), "3 in y");
  // The first eight are named; the rest is counted.
  for (int i = 0; i < 10; ++i) judge.Add(other);
  EXPECT_THAT(judge.Verdict().found(), HasSubstr("3 in y, and 3 more"));
  EXPECT_THAT(judge.Verdict().finding(), HasSubstr("; and 10 more of 12 tensors"));
}

TEST(ComparisonJudgeTest, SaysWhichTensorsHadABound) {
  ComparisonJudge judge = ComparisonJudge::ByBounds();
  SubjectComparison by_bits = Compared(0, true).comparison;
  judge.Add(by_bits);
  EXPECT_TRUE(judge.Verdict().pass());
  EXPECT_EQ(judge.Verdict().finding(), "1 tensor without a bound equal bit for bit");
  SubjectComparison bounded = Compared(1, false).comparison;
  bounded.bound.emplace().set_pass(true);
  judge.Add(bounded);
  judge.Add(bounded);
  EXPECT_EQ(judge.Verdict().finding(),
            "2 tensors within their bounds, 1 tensor without a bound equal bit for bit");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
