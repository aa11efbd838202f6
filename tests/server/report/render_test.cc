// Reports as table, JSON and HTML, from one made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"
#include "tests/server/report/sample_report.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

std::string TableOf(const ReportDocument& document) {
  std::ostringstream out;
  PrintReport(document, /*uses_colour=*/false, out);
  return out.str();
}

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(RenderJsonTest, IsStrictJsonWithStableKeys) {
  const Json json = Json::parse(JsonDocument(SampleCompare()));
  EXPECT_EQ(json["schema_version"], 2);
  EXPECT_EQ(json["kind"], "compare");
  EXPECT_EQ(json["verdict"]["criterion"], "bound");
  EXPECT_EQ(json["verdict"]["pass"], false);
  const Json& run = json["run"];
  EXPECT_EQ(run["reference"], 0);
  ASSERT_EQ(run["variants"].size(), 2u);
  const Json& output = run["variants"][0]["outputs"][0];
  EXPECT_EQ(output["tensor"]["name"], "y");
  EXPECT_EQ(output["tensor"]["type"]["shape"], Json({1000, 1000}));
  EXPECT_EQ(output["against_exact"]["parity"]["mismatch_count"], 12);
  EXPECT_EQ(output["against_exact"]["error"], nullptr);
  EXPECT_EQ(run["variants"][1]["outputs"][2]["bound"], nullptr);
  EXPECT_EQ(run["pairs"][0]["mismatch_count"], 5);
  // The same keys whatever the values are.
  const Json& other = run["variants"][1]["outputs"][0];
  for (const auto& [key, value] : output.items()) EXPECT_TRUE(other.contains(key)) << key;
}

TEST(RenderJsonTest, NanAndInfinityAreStringsWithBitsBesideThem) {
  const Json json = Json::parse(JsonDocument(SampleCompare()));
  const Json& variant = json["run"]["variants"][1];
  const Json& worst = variant["outputs"][0]["against_exact"]["parity"]["worst"];
  EXPECT_EQ(worst["subject"], "NaN");
  EXPECT_EQ(worst["subject_bits"], "0x7fff");
  EXPECT_EQ(worst["reference"], -2.0);
  EXPECT_EQ(worst["reference_bits"], "0xc000");
  const Json& error = variant["outputs"][0]["against_unquantized"];
  EXPECT_EQ(error["max_rel"], "Infinity");
  EXPECT_EQ(error["max_rel_bits"], "0x7ff0000000000000");
  EXPECT_EQ(error["max_abs"], 0.5);
  EXPECT_EQ(error["max_abs_bits"], "0x3fe0000000000000");
  EXPECT_EQ(error["max_abs_at"]["reference_bits"], "0x40200000");
  EXPECT_EQ(variant["outputs"][2]["against_unquantized"]["sqnr_db"], "Infinity");
  EXPECT_EQ(variant["against_reference"][0]["error"]["sqnr_db"], "NaN");
  EXPECT_EQ(variant["quantizations"][0]["amax"], "Infinity");
  EXPECT_EQ(variant["quantizations"][0]["amax_bits"], "0x7f800000");
  EXPECT_EQ(variant["quantizations"][0]["scale"], "NaN");
}

TEST(RenderJsonTest, BadUtf8IsReplaced) {
  ReportDocument document = SampleDiff();
  document.title = "a\xFF\xC3";
  const Json json = Json::parse(JsonDocument(document));
  EXPECT_EQ(json["title"], "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(RenderJsonTest, LinesAreOneDocumentEach) {
  std::istringstream lines(JsonLines(SampleCompare()));
  std::vector<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json["schema_version"], 2);
    kinds.push_back(json["kind"]);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"variant", "variant", "pair", "pair", "verdict"}));
}

TEST(RenderTableTest, MatrixFitsAHundredColumns) {
  ReportDocument document = SampleCompare();
  document.remarks.clear();
  document.run.mutable_variants(1)->clear_notes();
  const std::string label(120, 'L');
  document.run.mutable_variants(1)->set_label(label);
  std::istringstream lines(TableOf(document));
  bool has_full_label = false;
  for (std::string line; std::getline(lines, line);) {
    // A label that the matrix cuts is given in full below it.
    if (line.find(label) != std::string::npos) {
      has_full_label = true;
      continue;
    }
    EXPECT_LE(line.size(), static_cast<size_t>(kTableColumns)) << line;
  }
  EXPECT_TRUE(has_full_label);
}

TEST(RenderTableTest, SaysWhatMatters) {
  const std::string table = TableOf(SampleCompare());
  EXPECT_THAT(table, HasSubstr("55.5"));
  EXPECT_THAT(table, HasSubstr("inf"));
  EXPECT_THAT(table, HasSubstr("FAIL  required: ratio <= 1 (derived)"));
  EXPECT_THAT(table, HasSubstr("dx of variant 1"));
  EXPECT_THAT(table, HasSubstr("0.0151"));
  EXPECT_THAT(table, Not(HasSubstr("\033")));
}

TEST(RenderTableTest, SaysWhatTheErrorsLeaveOut) {
  ReportDocument document = SampleDiff();
  EXPECT_THAT(TableOf(document), HasSubstr("y: SQNR and errors leave out 1 of 1,000,000 elements"));
  document.comparisons[0].result.mutable_error()->set_non_finite_count(0);
  EXPECT_THAT(TableOf(document), Not(HasSubstr("leave out")));
}

/// A run of one variant, whose last output lies between operations and was made by no GEMM.
ReportDocument SampleRun() {
  ReportDocument document = SampleCompare();
  document.kind = "run";
  document.run.mutable_variants()->DeleteSubrange(1, 1);
  document.run.clear_pairs();
  document.run.clear_reference();
  v1::VariantReport& variant = *document.run.mutable_variants(0);
  v1::OutputReport& between = *variant.add_outputs();
  between = variant.outputs(0);
  between.mutable_tensor()->set_name("fc2.x");
  between.set_intermediate(true);
  between.set_arithmetic("fp32 operations");
  between.mutable_bound()->set_factor(0);
  between.mutable_bound()->set_derivation("9 levels");
  variant.mutable_quantizations(0)->set_tensor("fc2.weight");
  variant.mutable_gemms(0)->set_output("fc1.y");
  return document;
}

TEST(RenderTableTest, SaysWhatIsSavedBesideTheError) {
  ReportDocument document = SampleCompare();
  document.run.mutable_variants(1)->set_label("fp8_current / none / sm90");
  EXPECT_THAT(TableOf(document), ContainsRegex("0  bf16 / none / sm90 +55.5 +27.8 +3.1 MiB"));
  EXPECT_THAT(TableOf(document),
              ContainsRegex("1  fp8_current / none / sm90 +3.1 MiB +3.1 MiB +2.0 KiB +3.0 MiB"));
  // Reports of version 0.1.0 do not know.
  for (v1::VariantReport& variant : *document.run.mutable_variants()) variant.clear_saved_bytes();
  EXPECT_THAT(TableOf(document), Not(HasSubstr("saved")));
  EXPECT_THAT(TableOf(document), Not(HasSubstr("Saved")));
}

TEST(RenderTableTest, ARunSaysWhatEachOperandTakes) {
  ReportDocument document = SampleRun();
  v1::VariantReport& variant = *document.run.mutable_variants(0);
  EXPECT_THAT(TableOf(document),
              ContainsRegex("x +mxfp8 +f8_e4m3 columnwise codes +66.0 KiB +2.0 KiB +0 B"));
  EXPECT_THAT(TableOf(document),
              ContainsRegex("weight +bf16 +bf16 as given +3.0 MiB +0 B +3.0 MiB"));
  EXPECT_THAT(TableOf(document), ContainsRegex("together +3.1 MiB +2.0 KiB +3.0 MiB"));
  variant.mutable_saved(1)->set_counted_bytes(0);
  EXPECT_THAT(TableOf(document), ContainsRegex("weight \\* +bf16 +bf16 as given +0 B"));
  EXPECT_THAT(TableOf(document), HasSubstr("* without what an operand before it has too."));
}

TEST(RenderTableTest, SaysWhatRanksSaveAndGather) {
  ReportDocument document = SampleCompare();
  v1::VariantReport& variant = *document.run.mutable_variants(1);
  for (int i = 0; i < 2; ++i) {
    v1::RankReport& rank = *variant.add_ranks();
    rank.set_rank(i);
    rank.mutable_saved()->Swap(variant.mutable_saved());
    *rank.mutable_saved_bytes() = variant.saved_bytes();
    rank.set_gathered_peak_bytes(8192);
    rank.set_gathered_held_bytes(i == 0 ? 0 : 512);
  }
  EXPECT_THAT(TableOf(document),
              ContainsRegex("\n0 +3.1 MiB +3.1 MiB +2.0 KiB +3.0 MiB +8.0 KiB +0 B"));
  EXPECT_THAT(TableOf(document), ContainsRegex("\n1 +3.1 MiB +.* +8.0 KiB +512 B"));
  const std::string html = RenderHtml(document);
  EXPECT_THAT(html, HasSubstr("Saved for backward by rank"));
  EXPECT_THAT(html, HasSubstr("rank 1 at most 8.0 KiB at a time, 512 B after the step"));
}

TEST(RenderTableTest, DiffNamesTheFirstElementInHexAndDecimal) {
  const std::string table = TableOf(SampleDiff());
  EXPECT_THAT(table, HasSubstr("y: first (0, 7): 1.5 [0x3fc0] against 1.5078125 [0x3fc1]"));
  EXPECT_THAT(table, HasSubstr("worst (3, 1): nan [0x7fff] against -2 [0xc000]"));
  EXPECT_THAT(table, HasSubstr("only in "));
}

TEST(RenderTableTest, ColourOnlyWhenAsked) {
  std::ostringstream out;
  PrintReport(SampleDiff(), /*uses_colour=*/true, out);
  EXPECT_THAT(out.str(), HasSubstr("\033[31m"));
}

TEST(RenderTableTest, MarksWhatLiesBetweenOperations) {
  const std::string table = TableOf(SampleRun());
  EXPECT_THAT(table, HasSubstr("fc2.x *"));
  EXPECT_THAT(table, HasSubstr("* no output: what one operation of the layer gave the next."));
  EXPECT_THAT(table, HasSubstr("fc2.weight"));
  EXPECT_THAT(table, HasSubstr("fprop fc1.y: m=8"));
  ReportDocument compare = SampleRun();
  compare.kind = "compare";
  EXPECT_THAT(TableOf(compare), Not(HasSubstr("fc2.x")));
  EXPECT_THAT(TableOf(SampleCompare()), Not(HasSubstr("*")));
}

TEST(RenderTableTest, ManyOutputsTakeSeveralTables) {
  ReportDocument document = SampleCompare();
  document.remarks.clear();
  for (v1::VariantReport& variant : *document.run.mutable_variants()) {
    variant.clear_notes();
    variant.set_label("bf16 / none / sm90");
    for (int i = 0; i < 20; ++i) {
      *variant.add_outputs() = variant.outputs(0);
      variant.mutable_outputs()->rbegin()->mutable_tensor()->set_name("dw." + std::to_string(i));
    }
  }
  std::istringstream lines(TableOf(document));
  size_t last = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), static_cast<size_t>(kTableColumns)) << line;
    last += line.find("dw.19") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(last, 4u);  // One of each matrix.
}

TEST(RenderJsonTest, SaysWhatLiesBetweenOperations) {
  const Json variant = Json::parse(JsonDocument(SampleRun()))["run"]["variants"][0];
  EXPECT_EQ(variant["outputs"][0]["intermediate"], false);
  EXPECT_EQ(variant["outputs"][2]["intermediate"], true);
  EXPECT_EQ(variant["quantizations"][0]["tensor"], "fc2.weight");
  EXPECT_EQ(variant["gemms"][0]["output"], "fc1.y");
}

/// Every element that opens also closes, in order: the page is well-formed.
void ExpectBalanced(const std::string& html) {
  static const std::regex kTag(R"(<(/?)([a-z][a-z0-9]*)[^>]*?(/?)>)");
  std::vector<std::string> open;
  const std::string body = html.substr(html.find("</style>") + 8);
  for (auto it = std::sregex_iterator(body.begin(), body.end(), kTag); it != std::sregex_iterator();
       ++it) {
    const std::string name = (*it)[2];
    if (name == "br" || name == "meta" || (*it)[3] == "/") continue;
    if ((*it)[1] != "/") {
      open.push_back(name);
      continue;
    }
    if (name == "head" || name == "html") continue;  // Opened before the style sheet ends.
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.back(), name) << it->prefix().str().substr(0, 200);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(RenderHtmlTest, MarksWhatLiesBetweenOperations) {
  const std::string html = RenderHtml(SampleRun());
  ExpectBalanced(html);
  EXPECT_THAT(html, HasSubstr("between operations"));
  EXPECT_THAT(html, HasSubstr("its own fp32 roundings + half ulp; 9 levels"));
  EXPECT_THAT(html, Not(HasSubstr("<th scope=\"col\">fc2.x</th>")));
}

TEST(RenderHtmlTest, IsOneSelfContainedPage) {
  for (const ReportDocument& document : {SampleCompare(), SampleDiff()}) {
    const std::string html = RenderHtml(document);
    EXPECT_EQ(html.rfind("<!DOCTYPE html>", 0), 0u);
    EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
    for (const char* banned : {"<script", "http://", "https://", "src=", "@import", "url("}) {
      EXPECT_THAT(html, Not(HasSubstr(banned)));
    }
    ExpectBalanced(html);
  }
}

TEST(RenderHtmlTest, EscapesEverything) {
  for (const ReportDocument& document : {SampleCompare(), SampleDiff()}) {
    const std::string html = RenderHtml(document);
    EXPECT_THAT(html, Not(HasSubstr("alert('1')")));
    EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&apos;1&apos;)&lt;/script&gt;&amp;&quot;"));
  }
}

TEST(RenderHtmlTest, ShowsMatrixCardsAndVerdict) {
  const std::string html = RenderHtml(SampleCompare());
  EXPECT_THAT(html, HasSubstr("<strong>FAIL</strong>"));
  EXPECT_THAT(html, HasSubstr("class=\"q5\"><b>55.5</b> dB"));
  EXPECT_THAT(html, HasSubstr("class=\"q1 broken\"><b>15.6</b> dB"));
  EXPECT_THAT(html, HasSubstr("beyond its bound: 3.5 of it"));
  EXPECT_THAT(html, HasSubstr("<code>0x7fff</code>"));
  EXPECT_THAT(html, HasSubstr("changed: 00000000000000050000000000000007"));
  // Bars of y, dx of both, db and y of the second's reference.
  EXPECT_EQ(CountOf(html, "class=\"bars ulp\""), 6);
  EXPECT_THAT(html,
              HasSubstr("<span>-8 to -5</span><b><i style=\"width:calc(100%*log(1 + 3)/log(1 + "
                        "999988.0))\"></i></b><span class=\"r\">3</span>"));
  EXPECT_EQ(CountOf(html, "class=\"heat\""), 5);
  EXPECT_EQ(CountOf(html, "class=\"worst\""), 5);
}

TEST(RenderHtmlTest, ShowsBytesSavedForBackward) {
  const std::string html = RenderHtml(SampleCompare());
  // In the matrix, of each variant; in the variants' tables, of each operand and together.
  EXPECT_EQ(CountOf(html, "<td><b>3.1 MiB</b>"), 2);
  EXPECT_EQ(CountOf(html, "<small>3.0 MiB held anyway</small>"), 2);
  EXPECT_EQ(CountOf(html,
                    "<td>mxfp8</td><td class=\"r\">64.0 KiB</td><td class=\"r\">2.0 KiB</td>"
                    "<td class=\"r\">66.0 KiB</td><td class=\"r\">0 B</td>"),
            2);
  EXPECT_EQ(CountOf(html, "together 3.1 MiB"), 2);
  ReportDocument before = SampleCompare();
  for (v1::VariantReport& variant : *before.run.mutable_variants()) variant.clear_saved_bytes();
  EXPECT_THAT(RenderHtml(before), Not(HasSubstr("held anyway</small>")));
  EXPECT_THAT(RenderHtml(before), Not(HasSubstr("bytes kept for backward")));
}

TEST(RenderHtmlTest, EmptyPartsDoNotBreakThePage) {
  ReportDocument document;
  document.kind = "run";
  document.has_run = true;
  document.run.add_variants()->add_outputs();
  ExpectBalanced(RenderHtml(document));
  EXPECT_FALSE(TableOf(document).empty());
  EXPECT_FALSE(Json::parse(JsonDocument(document)).empty());
}

TEST(RenderHtmlTest, OverlapsAreBarsOverTimeByRankAndResource) {
  ReportDocument document;
  document.kind = "run";
  document.has_run = true;
  v1::VariantReport& variant = *document.run.add_variants();
  const auto add_rank = [&](int rank, double copy_end) {
    v1::RankReport& report = *variant.add_ranks();
    report.set_rank(rank);
    v1::OverlapReport& overlap = *report.add_overlaps();
    const auto add = [&](const char* name, const char* resource, double begin, double end) {
      v1::OverlapTask& task = *overlap.add_tasks();
      task.set_name(name);
      task.set_resource(resource);
      task.set_begin_seconds(begin);
      task.set_end_seconds(end);
    };
    add("gemm <own>", "compute", 0, 1);
    add("copy", "receive", 0, copy_end);
  };
  add_rank(0, 2);
  add_rank(1, 4);
  const std::string html = RenderHtml(document);
  ExpectBalanced(html);
  // All are drawn over the 4 s to the last end.
  const std::string drawn = html.substr(html.find("tasks over time"));
  EXPECT_THAT(drawn,
              HasSubstr("<span>rank 0</span><div><i class=\"compute\" style=\"left:calc(100%*0.0/"
                        "4.0);width:calc(100%*(1.0 - 0.0)/4.0)\" title=\"rank 0, compute, gemm "
                        "&lt;own&gt;: 0 us to 1.00 s\">"));
  EXPECT_THAT(drawn,
              HasSubstr("width:calc(100%*(4.0 - 0.0)/4.0)\" title=\"rank 1, receive, copy: 0 "
                        "us to 4.00 s\">"));
  EXPECT_THAT(drawn, Not(HasSubstr("class=\"send\" style")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
