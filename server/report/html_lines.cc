#include "server/report/html_lines.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/report/number_text.h"
#include "server/report/page_template.h"

namespace quantgate {
namespace {

constexpr int kColours = 8;
/// The plot within the picture of 320 x 150.
constexpr double kLeft = 46, kRight = 312, kTop = 10, kBottom = 130;
/// What finite values leave to infinite ones above them, where there are any.
constexpr double kInfiniteRoom = 20;

bool HasInfinity(const std::vector<ChartLine>& lines) {
  for (const ChartLine& line : lines) {
    for (const auto& [x, y] : line.points) {
      if (std::isinf(y) && y > 0) return true;
    }
  }
  return false;
}

std::string ColourClass(int colour) {
  // Beyond the palette the same colours come again, dashed.
  return absl::StrCat("k", colour % kColours, colour / kColours % 2 == 1 ? " again" : "");
}

class Plot {
 public:
  Plot(const LineChart& chart, ChartRange range, double top)
      : chart_(chart), range_(range), top_(top) {
    // A level line lies in the middle.
    if (range_.high > range_.low) return;
    const double room = range_.low == 0 ? 1 : std::fabs(range_.low) / 2;
    range_ = {range.low - room, range.high + room};
  }

  double X(double x) const {
    if (!(chart_.x_high > chart_.x_low)) return (kLeft + kRight) / 2;
    return kLeft + (kRight - kLeft) * (x - chart_.x_low) / (chart_.x_high - chart_.x_low);
  }
  double Y(double y) const {
    if (std::isinf(y)) return y > 0 ? kTop : kBottom;
    return kBottom - (kBottom - top_) * (y - range_.low) / (range_.high - range_.low);
  }
  std::string Line(const ChartLine& line) const;

 private:
  const LineChart& chart_;
  ChartRange range_;
  const double top_;  ///< Where the largest finite value lies.
};

std::string Plot::Line(const ChartLine& line) const {
  std::string path, marks;
  const char* move = "M";
  for (const auto& [x, y] : line.points) {
    if (std::isnan(y)) {
      move = "M";
      continue;
    }
    absl::StrAppendFormat(&path, "%s%.1f %.1f", move, X(x), Y(y));
    absl::StrAppendFormat(&marks,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.2\" class=\"%s\"><title>%s, step "
                          "%s: %s</title></circle>",
                          X(x), Y(y), ColourClass(line.colour), Escaped(line.name), ShortReal(x),
                          ShortReal(y));
    move = "L";
  }
  if (path.empty()) return "";
  return absl::StrCat("<path class=\"line ", ColourClass(line.colour), "\" d=\"", path, "\"/>",
                      marks);
}

}  // namespace

std::optional<ChartRange> RangeOf(const std::vector<ChartLine>& lines) {
  std::optional<ChartRange> range;
  for (const ChartLine& line : lines) {
    for (const auto& [x, y] : line.points) {
      if (!std::isfinite(y)) continue;
      if (!range) range = ChartRange{y, y};
      range = ChartRange{std::min(range->low, y), std::max(range->high, y)};
    }
  }
  return range;
}

std::string LineChartSvg(const LineChart& chart) {
  const std::optional<ChartRange> range = RangeOf(chart.lines);
  const bool has_infinity = HasInfinity(chart.lines);
  const Plot plot(chart, range.value_or(ChartRange{}), has_infinity ? kTop + kInfiniteRoom : kTop);
  std::string lines;
  for (const ChartLine& line : chart.lines) absl::StrAppend(&lines, plot.Line(line));
  if (lines.empty()) return "";
  std::string svg = absl::StrCat("<figure><figcaption>", Escaped(chart.title),
                                 "</figcaption><svg class=\"chart\" viewBox=\"0 0 320 150\" "
                                 "role=\"img\" aria-label=\"",
                                 Escaped(chart.title), " by step\">");
  for (const double y : {kTop, kBottom}) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.0f\" y1=\"%.0f\" x2=\"%.0f\" y2=\"%.0f\" "
                          "class=\"axis\"/>",
                          kLeft, y, kRight, y);
  }
  absl::StrAppend(&svg, lines);
  const auto label = [&](double value) {
    absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"%.1f\" class=\"tick low\">%s</text>",
                          kLeft - 4, plot.Y(value) + 3, ShortReal(value));
  };
  if (has_infinity) label(INFINITY);
  if (range.has_value()) {
    label(range->low);
    if (range->high > range->low) label(range->high);
  }
  absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"144\" class=\"tick first\">%s</text>", kLeft,
                        ShortReal(chart.x_low));
  absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"144\" class=\"tick last\">step %s</text>",
                        kRight, ShortReal(chart.x_high));
  return svg + "</svg></figure>";
}

std::string LineLegend(const std::vector<ChartLine>& lines) {
  std::string html = "<div class=\"legend\">";
  for (const ChartLine& line : lines) {
    absl::StrAppend(&html, "<span><i class=\"", ColourClass(line.colour), "\"></i>",
                    Escaped(line.name), "</span>");
  }
  return html + "</div>";
}

}  // namespace quantgate
