// What the page shows: every value, hostile texts as text, lines where they belong.
#include "server/report/render_html.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_replace.h"
#include "server/report/element_types.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/report_view.h"
#include "tests/server/report/recorded_values.h"
#include "tests/server/report/sample_report.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

/// A run as a server gave it: tests/server/report/report_values_test.cc says where from.
ReportDocument Recorded(const std::string& name) {
  ReportDocument document;
  document.kind = "compare";
  document.has_run = true;
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(RecordedText(name + ".txtpb"), &document.run));
  for (v1::VariantReport& variant : *document.run.mutable_variants()) SetElementTypes(variant);
  document.verdict = document.run.verdict();
  return document;
}

TraceReport Trace(const std::string& variant, const std::string& tensor) {
  TraceReport report;
  report.variants = {"bf16", variant};
  report.steps = {{1, "forward", ""}};
  report.tensors = {{0, 1, {}}};
  report.tensors[0].comparison.tensor = tensor;
  report.tensors[0].comparison.difference = "not in it";
  report.quantizations = {{0, 1, -1, {}}};
  report.quantizations[0].record.set_tensor(tensor);
  report.overlaps = {{0, 1, 0, {}}};
  report.overlaps[0].report.set_stage(tensor);
  return report;
}

// What the page names and nobody made stands in it as the template has it.
TEST(RenderHtmlTest, EverythingThatThePageNamesIsThere) {
  for (const ReportDocument& document :
       {SampleCompare(), SampleDiff(), Recorded("mlp"), Recorded("ranks"), Recorded("delayed")}) {
    EXPECT_THAT(RenderHtml(document), Not(HasSubstr("{{")));
  }
  EXPECT_THAT(RenderHtml(Trace("fp8", "y")), Not(HasSubstr("{{")));
}

constexpr char kHostile[] =
    "<script>alert(1)</script>\x01\x1b[31m\xff\xc3{{style}}{{{style}}}{{>note}}";
constexpr char kShown[] =
    "&lt;script&gt;alert(1)&lt;/script&gt;??[31m\uFFFD\uFFFD{{style}}{{{style}}}{{&gt;note}}";

void ExpectHarmless(const std::string& html, int count_min) {
  int count = 0;
  for (size_t at = html.find(kShown); at != std::string::npos; at = html.find(kShown, at + 1)) {
    ++count;
  }
  EXPECT_GE(count, count_min);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  for (const char c : html) ASSERT_FALSE((c > 0 && c < ' ') || c == 0x7f);
  EXPECT_EQ(Json::parse(JsonText(html, -1)), html) << "no UTF-8";
}

TEST(RenderHtmlTest, HostileNamesAreText) {
  ReportDocument document = SampleCompare();
  document.title = document.command = kHostile;
  v1::VariantReport& variant = *document.run.mutable_variants(1);
  variant.set_label(kHostile);
  variant.mutable_outputs(0)->mutable_tensor()->set_name(kHostile);
  variant.mutable_gemms(0)->set_text(kHostile);
  variant.mutable_saved(0)->set_name(kHostile);
  // Of the title, the matrix, the variant's section and how to get it again.
  ExpectHarmless(RenderHtml(document), 8);
  ReportDocument diff = SampleDiff();
  diff.comparisons[0].tensor = diff.comparisons[0].subject_name = kHostile;
  ExpectHarmless(RenderHtml(diff), 3);
  ExpectHarmless(RenderHtml(Trace(kHostile, kHostile)), 6);
}

/// How the page writes the member of that name; empty where it does not show it as it is.
std::string TextOf(const std::string& name, const Json& value) {
  static const std::map<std::string, std::string (*)(double)> kReals = {
      {"sqnr_db", Decibels},       {"relative_frobenius", ShortReal},
      {"max_abs", ShortReal},      {"mean_abs", ShortReal},
      {"rms", ShortReal},          {"max_rel", ShortReal},
      {"mean_rel", ShortReal},     {"bias", ShortReal},
      {"worst_ratio", BoundShare}, {"amax", ExactReal},
      {"scale", ExactReal},        {"scale_inv", ExactReal},
      {"seconds", Seconds}};
  static const std::set<std::string> kTexts = {
      "label",   "recipe",  "arithmetic", "fingerprint", "exact_note", "derivation",
      "content", "at_save", "quantizer",  "text",        "a_source",   "b_source",
      "stage",   "digest",  "source",     "amax_group",  "name"};
  static const std::set<std::string> kCounts = {"count", "saturated_count", "normal", "saturated"};
  if (value.is_null()) return "";
  if (const auto real = kReals.find(name); real != kReals.end()) return real->second(RealIn(value));
  if (kTexts.contains(name) && value.is_string()) return value.get<std::string>();
  if (kCounts.contains(name) && value != 0) return Count(value.get<int64_t>());
  return "";
}

/// Looks for each member in the page; how many there are.
int ExpectShown(const Json& json, const std::string& html) {
  int count = 0;
  for (const auto& [name, value] : json.items()) {
    // The map is drawn, classes are shown where they disagree.
    if (name == "heat_map" || name == "class_confusion") continue;
    if (value.is_structured()) {
      count += ExpectShown(value, html);
      continue;
    }
    std::string text = TextOf(name, value);
    if (text.empty()) continue;
    text =
        absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&apos;"}});
    const bool is_shown =
        html.find(">" + text) != std::string::npos || html.find(" " + text) != std::string::npos;
    EXPECT_TRUE(is_shown) << name << ": " << text;
    ++count;
  }
  return count;
}

TEST(RenderHtmlTest, ShowsTheValuesOfTheReport) {
  const std::pair<const char*, int> kRuns[] = {{"mlp", 100}, {"delayed", 100}, {"ranks", 50}};
  for (const auto& [name, count_min] : kRuns) {
    const ReportDocument document = Recorded(name);
    const std::string html = RenderHtml(document);
    Json run = JsonOf(document)["run"];
    for (Json& variant : run["variants"]) {
      // Against exact the page tells bits and elements, not errors.
      for (Json& output : variant["outputs"]) output["against_exact"].erase("error");
    }
    int count = ExpectShown(run["inputs"], html);
    for (const Json& variant : run["variants"]) {
      for (const char* part :
           {"outputs", "against_reference", "saved", "quantizations", "gemms", "stages"}) {
        count += ExpectShown(variant[part], html);
      }
      for (const Json& rank : variant["ranks"]) {
        count += ExpectShown(rank["outputs"], html) + ExpectShown(rank["stages"], html);
      }
    }
    EXPECT_GE(count, count_min) << name;
  }
}

TEST(RenderHtmlTest, RampsHaveTheirStepsInOrder) {
  EXPECT_EQ(SqnrLevel(-3), 0);
  EXPECT_EQ(SqnrLevel(9.99), 0);
  EXPECT_EQ(SqnrLevel(10), 1);
  EXPECT_EQ(SqnrLevel(49.9), 4);
  EXPECT_EQ(SqnrLevel(INFINITY), 5);
  EXPECT_EQ(SqnrLevel(NAN), 0);
  EXPECT_EQ(HeatLevel(0, {0, 1}), 0);
  EXPECT_EQ(HeatLevel(NAN, {0, 1}), 0);
  EXPECT_EQ(HeatLevel(0.5, {0.5, 1}), 1);
  EXPECT_EQ(HeatLevel(1, {0.5, 1}), 9);
  EXPECT_EQ(HeatLevel(1, {1, 1}), 1);
  EXPECT_EQ(HeatLevel(INFINITY, {0, 1}), 9);
}

// Two rows of 0.1, 0.4 and 0, NaN; the worst block is the second of the first row.
TEST(RenderHtmlTest, HeatMapsAreLinesThroughTheirBlocks) {
  const std::string html = RenderHtml(SampleCompare());
  const std::string svg = html.substr(html.find("viewBox=\"0 -0.5 2 2\""));
  EXPECT_THAT(svg, HasSubstr("<path class=\"h0\" d=\"M0 1h2\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"h3\" d=\"M0 0h1\"/>"));  // 1 + floor(9 / 4)
  EXPECT_THAT(svg, HasSubstr("<path class=\"h9\" d=\"M1 0h1\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"worst\" d=\"M1 -0.5h1v1h-1z\"><title>rows 0–7, columns "
                             "4–7: rms 0.4, max 0.5</title>"));
}

// The first variant has dx at 27.75 dB, the second at 15.6 and beyond its bound.
TEST(RenderHtmlTest, VariantsBeyondABoundComeFirstAndTheFurthestCellIsMarked) {
  ReportDocument document = SampleCompare();
  document.verdict.set_found("17 beyond it in dx");
  const std::string html = RenderHtml(document);
  const size_t broken = html.find("<details open><summary><h3>fp8_current / none / ");
  const size_t within = html.find("<details><summary><h3>bf16 / none / sm90</h3>");
  ASSERT_NE(within, std::string::npos);
  EXPECT_LT(broken, within);
  const size_t furthest = html.find("the furthest of all");
  EXPECT_EQ(html.rfind("<td ", furthest), html.find("<td class=\"q1 broken\"><b>15.6</b>"));
  EXPECT_EQ(html.find("the furthest of all", furthest + 1), std::string::npos);
  EXPECT_THAT(html,
              HasSubstr("Asked whether outputs lie within their derived bounds: found 17 beyond "
                        "it in dx; the furthest from unquantized operands is dx of "
                        "fp8_current / none / "));
  // Two that lie within theirs are one row.
  *document.run.add_variants() = document.run.variants(0);
  EXPECT_THAT(RenderHtml(document), HasSubstr("<h3>2 variants lie within their bounds</h3>"));
  document.verdict.set_criterion(v1::REQUIREMENT_UNSPECIFIED);
  EXPECT_THAT(RenderHtml(document), Not(HasSubstr("lie within their bounds</h3>")));
}

TEST(RenderHtmlTest, FailuresComeFirstAndPassesAreOneRow) {
  ReportDocument document = SampleDiff();
  std::swap(document.comparisons[0], document.comparisons[1]);
  document.comparisons[0].passes = true;
  const std::string html = RenderHtml(document);
  EXPECT_THAT(html, HasSubstr("Asked whether tensors agree, a against b: 2 of 3 do not, y first."));
  const size_t failed = html.find("<h3>y</h3>"), fold = html.find("<h3>1 of 3 tensors pass</h3>");
  const size_t passed = html.find("<h3>dx</h3>");
  ASSERT_NE(passed, std::string::npos);
  EXPECT_LT(failed, fold);
  EXPECT_LT(fold, passed);
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">1 of 3 pass</th>"));
}

// Who has no mouse scrolls by keyboard.
TEST(RenderHtmlTest, EveryScrollingPartCanBeReached) {
  const std::string html = RenderHtml(SampleCompare());
  const std::string part = "<div class=\"scroll\"";
  int count = 0;
  for (size_t at = html.find(part); at != std::string::npos; at = html.find(part, at + 1)) {
    EXPECT_EQ(html.substr(at + part.size(), 13), " tabindex=\"0\"");
    ++count;
  }
  EXPECT_GT(count, 10);
}

TEST(RenderHtmlTest, ATraceSaysWhatWasAskedAndFound) {
  TraceReport report = Trace("fp8", "y");
  v1::ErrorReport& error = *report.tensors[0].comparison.result.mutable_error();
  error.set_sqnr_db(21.5);
  report.verdict.emplace();
  report.verdict->set_criterion(v1::REQUIREMENT_BITWISE);
  report.verdict->set_threshold("0 differing elements");
  const std::string html = RenderHtml(report);
  EXPECT_THAT(html,
              HasSubstr("Asked how 1 step, 2 variants differ from bf16: 0 of 1 tensors have its "
                        "bits; the furthest is y of fp8 in step 1 at 21.5 dB."));
  EXPECT_THAT(html, HasSubstr("<strong>FAIL</strong><div><p>required: 0 differing elements"));
}

using Points = std::vector<std::pair<double, double>>;
std::string PathOf(double last, const Points& points) {
  return LineChart("t", last, {{"a", "k0", points}})["lines"][0]["path"];
}
std::vector<std::string> LabelsOf(double last, const Points& points) {
  const Json chart = LineChart("t", last, {{"a", "k0", points}});
  std::vector<std::string> labels;
  for (const Json& label : chart["labels"]) labels.push_back(label["text"]);
  return labels;
}

// The plot reaches from (46, 130) to (312, 10).
TEST(LineChartTest, PointsLieWhereStepsAndValuesSay) {
  const Points points = {{1, 0}, {2, 5}, {3, 10}};
  EXPECT_EQ(PathOf(3, points), "M46.0 130.0L179.0 70.0L312.0 10.0");
  EXPECT_THAT(LabelsOf(3, points), testing::UnorderedElementsAre("0", "10"));
  const Json mark = LineChart("t", 3, {{"a", "k0", points}})["lines"][0]["marks"][1];
  EXPECT_EQ(mark, Json({{"x", "179.0"}, {"y", "70.0"}, {"text", "a, step 2: 5"}}));
}

TEST(LineChartTest, NanPartsALineAndInfinityLiesAboveAllNumbers) {
  const Points points = {{1, 0}, {2, NAN}, {3, 2}, {4, INFINITY}, {5, -INFINITY}};
  EXPECT_EQ(PathOf(5, points), "M46.0 130.0M179.0 30.0L245.5 10.0L312.0 130.0");
  EXPECT_THAT(LabelsOf(5, points), testing::UnorderedElementsAre("inf", "0", "2"));
}

TEST(LineChartTest, ALevelLineLiesInTheMiddleAndOneStepToo) {
  EXPECT_EQ(PathOf(2, {{1, -4}, {2, -4}}), "M46.0 70.0L312.0 70.0");
  EXPECT_EQ(PathOf(1, {{1, 0}}), "M179.0 70.0");
}

TEST(LineChartTest, NothingToDrawIsNoChart) {
  EXPECT_EQ(LineChart("t", 2, {}), nullptr);
  EXPECT_EQ(LineChart("t", 2, {{"a", "k0", {{1, NAN}}}}), nullptr);
  // No error at all in any step is worth a line: SQNR is infinite.
  EXPECT_EQ(PathOf(2, {{1, INFINITY}, {2, INFINITY}}), "M46.0 10.0L312.0 10.0");
}

TEST(LineChartTest, ColoursComeAgainDashed) {
  TraceReport report = Trace("b", "y");
  report.variants.resize(11, "b");
  report.quantizations[0].variant = 2;
  report.quantizations.push_back(report.quantizations[0]);
  report.quantizations[1].variant = 10;
  const std::string html = RenderHtml(report);
  EXPECT_THAT(html, HasSubstr("class=\"line k2\""));
  EXPECT_THAT(html, HasSubstr("class=\"line k2 again\""));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
