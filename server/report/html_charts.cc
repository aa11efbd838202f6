#include "server/report/html_charts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/report/number_text.h"
#include "server/report/page_template.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kHeatLevels = 10;

struct UlpBar {
  int64_t lower = 0, upper = 0, count = 0;

  /// On the axis: 0, +-1, +-2, +-3 for [3,4], +-4 for [5,8], ...
  int Position() const {
    const auto magnitude = [](int64_t ulp) {
      return ulp < 0 ? 0 - static_cast<uint64_t>(ulp) : static_cast<uint64_t>(ulp);
    };
    const uint64_t far = std::max(magnitude(lower), magnitude(upper));
    if (far == 0) return 0;
    const int position = 1 + std::bit_width(far - 1);
    return upper < 0 ? -position : position;
  }
  std::string Text() const {
    if (lower == upper) return absl::StrCat(lower, " ulp");
    return absl::StrCat(lower, " to ", upper, " ulp");
  }
};

std::string PositionLabel(int position) {
  const int steps = std::abs(position);
  const std::string sign = position < 0 ? "\u2212" : position > 0 ? "+" : "";
  if (steps <= 2) return absl::StrCat(sign, steps);
  if (steps <= 10) return absl::StrCat(sign, int64_t{1} << (steps - 1));
  if (steps <= 20) return absl::StrCat(sign, int64_t{1} << (steps - 11), "Ki");
  if (steps <= 30) return absl::StrCat(sign, int64_t{1} << (steps - 21), "Mi");
  return absl::StrCat(sign, "2^", steps - 1);
}

std::string CellText(const Json& cell) {
  const auto at = [&](const char* key) { return cell[key].get<int64_t>(); };
  return absl::StrCat("rows ", at("row_begin"), "\u2013", at("row_end") - 1, ", columns ",
                      at("column_begin"), "\u2013", at("column_end") - 1, ": rms ",
                      ShortReal(RealIn(cell["rms_error"])), ", max ",
                      ShortReal(RealIn(cell["max_abs_error"])));
}

/// Of the block row or column that begins there; -1: none.
int FindEdge(const std::vector<int64_t>& edges, int64_t begin) {
  const auto found = std::find(edges.begin(), edges.end() - 1, begin);
  return found == edges.end() - 1 ? -1 : static_cast<int>(found - edges.begin());
}

/// Cells of each level as one path: runs of equal cells in a row are one rectangle.
std::array<std::string, kHeatLevels> LevelPaths(int rows, int columns,
                                                const std::vector<double>& errors,
                                                HeatRange range) {
  std::array<std::string, kHeatLevels> paths;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns;) {
      const int level = HeatLevel(errors[row * columns + column], range);
      const int begin = column;
      while (column < columns && HeatLevel(errors[row * columns + column], range) == level) {
        ++column;
      }
      absl::StrAppend(&paths[level], "M", begin, " ", row, "h", column - begin, "v1h-",
                      column - begin, "z");
    }
  }
  return paths;
}

}  // namespace

int HeatLevel(double value, HeatRange range) {
  if (!(value > 0)) return 0;
  if (std::isinf(value)) return kHeatLevels - 1;
  if (!(range.high > range.low)) return 1;
  const double share = (value - range.low) / (range.high - range.low);
  return std::clamp(1 + static_cast<int>(share * (kHeatLevels - 1)), 1, kHeatLevels - 1);
}

int SqnrLevel(double sqnr_db) {
  if (std::isnan(sqnr_db)) return 0;
  return std::clamp(static_cast<int>(std::floor(std::clamp(sqnr_db, 0.0, 60.0) / 10)), 0, 5);
}

std::string UlpHistogramSvg(const Json& parity) {
  int reach = 4;  // Never narrower, so that pictures of different tensors compare at a glance.
  int64_t most = 1;
  std::vector<UlpBar> bars;
  for (const Json& bucket : parity["ulp_histogram"]) {
    bars.push_back({bucket["lower"], bucket["upper"], bucket["count"]});
    reach = std::max(reach, std::abs(bars.back().Position()));
    most = std::max(most, bars.back().count);
  }
  if (bars.empty()) return "<p class=\"dim\">no comparable element</p>";
  constexpr double kLeft = 12, kWidth = 296, kTop = 16, kBase = 172;
  const double step = kWidth / (2 * reach + 1);
  std::string svg = absl::StrFormat(
      "<svg class=\"chart\" viewBox=\"0 0 320 190\" role=\"img\" aria-label=\"ULP histogram\">"
      "<line x1=\"0\" y1=\"%.0f\" x2=\"320\" y2=\"%.0f\" class=\"axis\"/>",
      kBase, kBase);
  for (const UlpBar& bar : bars) {
    if (bar.count <= 0) continue;
    const int position = bar.Position();
    const double share =
        std::log1p(static_cast<double>(bar.count)) / std::log1p(static_cast<double>(most));
    const double height = std::max(2.0, (kBase - kTop) * share);
    const double x = kLeft + (position + reach) * step;
    absl::StrAppendFormat(
        &svg,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"1\" class=\"%s\"><title>"
        "%s: %s (%s)</title></rect>",
        x + step * 0.1, kBase - height, step * 0.8, height, position == 0 ? "zero" : "off",
        bar.Text(), Count(bar.count), Escaped(Percent(bar.count, parity["element_count"])));
    if (step >= 30) {
      absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" class=\"tick\">%s</text>",
                            x + step / 2, kBase - height - 4, Count(bar.count));
    }
  }
  const int stride = std::max(1, static_cast<int>(std::ceil(34 / step)));
  for (int position = -reach; position <= reach; ++position) {
    if (position % stride != 0) continue;
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"186\" class=\"tick\">%s</text>",
                          kLeft + (position + reach + 0.5) * step, PositionLabel(position));
  }
  return svg + "</svg>";
}

std::string HeatMapSvg(const Json& error) {
  const Json map = error.is_object() ? error["heat_map"] : Json();
  if (!map.is_object()) return "<p class=\"dim\">no blocks</p>";
  const int rows = map["rows"], columns = map["columns"];
  const auto row_edges = map["row_edges"].get<std::vector<int64_t>>();
  const auto column_edges = map["column_edges"].get<std::vector<int64_t>>();
  std::vector<double> errors;
  HeatRange range{INFINITY, 0};
  for (const Json& one : map["rms_error"]) {
    errors.push_back(RealIn(one));
    if (!std::isfinite(errors.back())) continue;
    range.low = std::min(range.low, errors.back());
    range.high = std::max(range.high, errors.back());
  }
  const bool is_whole = rows > 0 && columns > 0 && std::ssize(row_edges) == rows + 1 &&
                        std::ssize(column_edges) == columns + 1 &&
                        std::ssize(errors) == rows * columns;
  if (!is_whole) return "<p class=\"dim\">no blocks</p>";
  // A few rows or columns still fill a readable square.
  std::string svg = absl::StrCat("<svg class=\"", rows == 1 ? "heat strip" : "heat",
                                 "\" viewBox=\"0 0 ", columns, " ", rows,
                                 "\" preserveAspectRatio=\"none\" role=\"img\" "
                                 "aria-label=\"error by block\" shape-rendering=\"crispEdges\">");
  const std::array<std::string, kHeatLevels> paths = LevelPaths(rows, columns, errors, range);
  for (int level = 0; level < kHeatLevels; ++level) {
    if (paths[level].empty()) continue;
    absl::StrAppend(&svg, "<path class=\"h", level, "\" d=\"", paths[level], "\"/>");
  }
  for (const Json& worst : error["worst_blocks"]) {
    const int row = FindEdge(row_edges, worst["row_begin"]);
    const int column = FindEdge(column_edges, worst["column_begin"]);
    if (row < 0 || column < 0 || !(RealIn(worst["rms_error"]) > 0)) continue;
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%d\" y=\"%d\" width=\"1\" height=\"1\" "
                          "class=\"worst\"><title>%s</title></rect>",
                          column, row, Escaped(CellText(worst)));
  }
  absl::StrAppend(&svg, "</svg><div class=\"ramp\"><span>", ShortReal(range.low), "</span>");
  for (int level = 1; level < kHeatLevels; ++level) {
    absl::StrAppend(&svg, "<i class=\"b", level, "\"></i>");
  }
  return absl::StrCat(svg, "<span>", ShortReal(range.high), "</span></div>");
}

std::string ConfusionTable(const Json& parity) {
  std::vector<std::string> order = {"-inf", "negative", "-0", "+0", "positive", "+inf", "nan"};
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  std::set<std::string> subjects, references;
  bool agrees = true;
  for (const Json& cell : parity["class_confusion"]) {
    const std::string subject = cell["subject_class"], reference = cell["reference_class"];
    counts[{subject, reference}] = cell["count"];
    subjects.insert(subject);
    references.insert(reference);
    agrees &= subject == reference;
    for (const std::string& name : {subject, reference}) {
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    }
  }
  if (agrees) {
    return "<p class=\"dim\">Classes agree: no NaN, infinity, zero or sign on one side only.</p>";
  }
  std::string html =
      "<h4>Class confusion</h4><div class=\"scroll\"><table><thead><tr>"
      "<th>subject \\ reference</th>";
  for (const std::string& name : order) {
    if (references.contains(name)) {
      absl::StrAppend(&html, "<th class=\"r\">", Escaped(name), "</th>");
    }
  }
  absl::StrAppend(&html, "</tr></thead><tbody>");
  for (const std::string& subject : order) {
    if (!subjects.contains(subject)) continue;
    absl::StrAppend(&html, "<tr><td>", Escaped(subject), "</td>");
    for (const std::string& reference : order) {
      if (!references.contains(reference)) continue;
      const int64_t count = counts[{subject, reference}];
      absl::StrAppend(&html, "<td class=\"r",
                      count == 0             ? " dim"
                      : subject != reference ? " bad"
                                             : "",
                      "\">", Count(count), "</td>");
    }
    absl::StrAppend(&html, "</tr>");
  }
  return html + "</tbody></table></div>";
}

}  // namespace quantgate
