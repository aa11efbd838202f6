// What a trace's report says: rates, drifts, JSON, HTML; and which traces are refused.
#include "server/report/trace_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/commands/session_trace.h"
#include "server/report/render_html.h"
#include "tests/server/report/recorded_values.h"

namespace quantgate {
namespace {

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

v1::SessionTrace Trace() {
  v1::SessionTrace trace;
  trace.add_variants()->mutable_recipe()->set_name("bf16");
  v1::SessionTrace::Step& step = *trace.add_steps();
  step.mutable_forward();
  step.set_x("x.npy");
  return trace;
}

std::string Refusal(const v1::SessionTrace& trace) {
  return std::string(CheckTrace(trace).message());
}

TEST(CheckTraceTest, NamesWhatIsWrong) {
  EXPECT_TRUE(CheckTrace(Trace()).ok());
  EXPECT_THAT(Refusal(v1::SessionTrace()), HasSubstr("steps: none"));
  v1::SessionTrace trace = Trace();
  trace.set_rounds(kTraceStepsMax + 1);
  EXPECT_THAT(Refusal(trace), HasSubstr("rounds: 100001"));
  trace = Trace();
  trace.set_reference(1);
  EXPECT_THAT(Refusal(trace), HasSubstr("reference: 1 is no variant; there are 1"));
  trace = Trace();
  trace.mutable_spec()->mutable_recipe()->set_name("bf16");
  EXPECT_THAT(Refusal(trace), HasSubstr("spec.recipe: given beside variants"));
  trace.clear_variants();
  EXPECT_TRUE(CheckTrace(trace).ok());
  trace.mutable_spec()->clear_recipe();
  EXPECT_THAT(Refusal(trace), HasSubstr("variants: none"));
}

TEST(CheckTraceTest, ChecksEveryStep) {
  v1::SessionTrace trace = Trace();
  trace.add_steps()->set_x("x.npy");
  EXPECT_THAT(Refusal(trace), HasSubstr("steps[1]: none of forward"));
  trace.mutable_steps(1)->mutable_wgrad();
  EXPECT_THAT(Refusal(trace), HasSubstr("steps[1].x: of forward only"));
  trace.mutable_steps(1)->clear_x();
  trace.mutable_steps(1)->set_grad_output("d.npy");
  EXPECT_THAT(Refusal(trace), HasSubstr("steps[1].grad_output: of backward only"));
  trace.mutable_steps(1)->mutable_backward()->mutable_grad_output()->mutable_generate();
  EXPECT_THAT(Refusal(trace), HasSubstr("steps[1].grad_output: a backward takes one"));
  trace.mutable_steps(1)->clear_grad_output();
  EXPECT_TRUE(CheckTrace(trace).ok());
  trace.mutable_steps(0)->clear_x();
  EXPECT_THAT(Refusal(trace), HasSubstr("steps[0].x: a forward takes one"));
}

TEST(JudgeTrace, WantsTheReferencesBitsAndRanksThatAgree) {
  TraceReport report;
  report.variants = {"bf16", "bf16 / tp2"};
  report.tensors = {Compared(0, true)};
  EXPECT_TRUE(JudgeTrace(report).pass());
  report.rank_differences = {"step 1 of bf16 / tp2: y: ranks 0 and 1 have other bits"};
  EXPECT_FALSE(JudgeTrace(report).pass());
  EXPECT_EQ(JudgeTrace(report).finding(), report.rank_differences[0]);
  report.rank_differences.clear();
  report.tensors.push_back(Compared(1, false));
  EXPECT_FALSE(JudgeTrace(report).pass());
}

}  // namespace
}  // namespace quantgate
