// Line charts: where points lie, what is left out, what a reader sees of hostile names.
#include "server/report/html_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quantgate {
namespace {

using testing::HasSubstr;
using testing::Not;

// The plot reaches from (46, 130) to (312, 10).
TEST(LineChartTest, PointsLieWhereStepsAndValuesSay) {
  const LineChart chart{"SQNR, dB", 1, 3, {{"a", 0, {{1, 0}, {2, 5}, {3, 10}}}}};
  const std::string svg = LineChartSvg(chart);
  EXPECT_THAT(svg, HasSubstr("d=\"M46.0 130.0L179.0 70.0L312.0 10.0\""));
  EXPECT_THAT(svg, HasSubstr("<title>a, step 2: 5</title>"));
  EXPECT_THAT(svg, HasSubstr("class=\"tick low\">0</text>"));
  EXPECT_THAT(svg, HasSubstr("class=\"tick low\">10</text>"));
  EXPECT_THAT(svg, HasSubstr("step 3</text>"));
}

TEST(LineChartTest, NanPartsALineAndInfinityLiesAboveAllNumbers) {
  const LineChart chart{
      "t", 1, 5, {{"a", 0, {{1, 0}, {2, NAN}, {3, 2}, {4, INFINITY}, {5, -INFINITY}}}}};
  EXPECT_THAT(LineChartSvg(chart),
              HasSubstr("d=\"M46.0 130.0M179.0 30.0L245.5 10.0L312.0 130.0\""));
  EXPECT_THAT(LineChartSvg(chart), HasSubstr("class=\"tick low\">inf</text>"));
  const auto range = RangeOf(chart.lines);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->low, 0);
  EXPECT_EQ(range->high, 2);
}

TEST(LineChartTest, ALevelLineLiesInTheMiddleAndOneStepToo) {
  const LineChart level{"t", 1, 2, {{"a", 0, {{1, -4}, {2, -4}}}}};
  EXPECT_THAT(LineChartSvg(level), HasSubstr("d=\"M46.0 70.0L312.0 70.0\""));
  const LineChart single{"t", 1, 1, {{"a", 0, {{1, 0}}}}};
  EXPECT_THAT(LineChartSvg(single), HasSubstr("d=\"M179.0 70.0\""));
}

TEST(LineChartTest, NothingToDrawIsNoChart) {
  EXPECT_EQ(LineChartSvg({"t", 1, 2, {}}), "");
  EXPECT_EQ(LineChartSvg({"t", 1, 2, {{"a", 0, {{1, NAN}}}}}), "");
  // No error at all in any step is worth a line: SQNR is infinite.
  EXPECT_THAT(LineChartSvg({"t", 1, 2, {{"a", 0, {{1, INFINITY}, {2, INFINITY}}}}}),
              HasSubstr("M46.0 10.0L312.0 10.0"));
}

TEST(LineChartTest, ColoursComeAgainDashedAndNamesAreEscaped) {
  const std::vector<ChartLine> lines = {{"<b>", 1, {{1, 0}}}, {"c", 9, {{1, 0}}}};
  const std::string svg = LineChartSvg({"t", 1, 1, lines});
  EXPECT_THAT(svg, HasSubstr("class=\"line k1\""));
  EXPECT_THAT(svg, HasSubstr("class=\"line k1 again\""));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
  EXPECT_THAT(LineLegend(lines), HasSubstr("&lt;b&gt;"));
}

}  // namespace
}  // namespace quantgate
