#include "client/cli/html_charts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/html_text.h"
#include "client/cli/number_text.h"

namespace quantgate {
namespace {

constexpr int kHeatLevels = 10;

/// Position of a ULP bucket on the axis: 0, +-1, +-2, +-3 for [3,4], +-4 for [5,8], ...
int BucketPosition(const v1::UlpBucket& bucket) {
  const auto magnitude = [](int64_t ulp) {
    return ulp < 0 ? 0 - static_cast<uint64_t>(ulp) : static_cast<uint64_t>(ulp);
  };
  const uint64_t far = std::max(magnitude(bucket.lower()), magnitude(bucket.upper()));
  if (far == 0) return 0;
  const int position = 1 + std::bit_width(far - 1);
  return bucket.upper() < 0 ? -position : position;
}

std::string PositionLabel(int position) {
  const int steps = std::abs(position);
  const std::string sign = position < 0 ? "\u2212" : position > 0 ? "+" : "";
  if (steps <= 2) return absl::StrCat(sign, steps);
  if (steps <= 10) return absl::StrCat(sign, int64_t{1} << (steps - 1));
  if (steps <= 20) return absl::StrCat(sign, int64_t{1} << (steps - 11), "Ki");
  if (steps <= 30) return absl::StrCat(sign, int64_t{1} << (steps - 21), "Mi");
  return absl::StrCat(sign, "2^", steps - 1);
}

std::string BucketText(const v1::UlpBucket& bucket) {
  if (bucket.lower() == bucket.upper()) return absl::StrCat(bucket.lower(), " ulp");
  return absl::StrCat(bucket.lower(), " to ", bucket.upper(), " ulp");
}

std::string CellText(const v1::HeatMapCell& cell) {
  return absl::StrCat("rows ", cell.row_begin(), "\u2013", cell.row_end() - 1, ", columns ",
                      cell.column_begin(), "\u2013", cell.column_end() - 1, ": rms ",
                      ShortReal(cell.rms_error()), ", max ", ShortReal(cell.max_abs_error()));
}

/// Whether the lists have the lengths that rows and columns say, and there is a block.
bool IsWhole(const v1::HeatMap& map) {
  const int blocks = map.rows() * map.columns();
  return map.rows() > 0 && map.columns() > 0 && map.row_edges_size() == map.rows() + 1 &&
         map.column_edges_size() == map.columns() + 1 && map.rms_error_size() == blocks;
}

/// Index of the block row or column that begins there; -1: none.
int FindEdge(const google::protobuf::RepeatedField<int64_t>& edges, int64_t begin) {
  const auto found = std::find(edges.begin(), edges.end() - 1, begin);
  return found == edges.end() - 1 ? -1 : static_cast<int>(found - edges.begin());
}

/// Cells of each level as one path: runs of equal cells in a row are one rectangle.
std::array<std::string, kHeatLevels> LevelPaths(const v1::HeatMap& map, HeatRange range) {
  std::array<std::string, kHeatLevels> paths;
  for (int row = 0; row < map.rows(); ++row) {
    for (int column = 0; column < map.columns();) {
      const int level = HeatLevel(map.rms_error(row * map.columns() + column), range);
      const int begin = column;
      while (column < map.columns() &&
             HeatLevel(map.rms_error(row * map.columns() + column), range) == level) {
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

std::string UlpHistogramSvg(const v1::ParityReport& parity) {
  if (parity.ulp_histogram().empty()) return "<p class=\"dim\">no comparable element</p>";
  int reach = 4;  // Never narrower, so that pictures of different tensors compare at a glance.
  int64_t most = 1;
  for (const v1::UlpBucket& bucket : parity.ulp_histogram()) {
    reach = std::max(reach, std::abs(BucketPosition(bucket)));
    most = std::max(most, bucket.count());
  }
  constexpr double kLeft = 12, kWidth = 296, kTop = 16, kBase = 172;
  const double step = kWidth / (2 * reach + 1);
  std::string svg = absl::StrFormat(
      "<svg class=\"chart\" viewBox=\"0 0 320 190\" role=\"img\" aria-label=\"ULP histogram\">"
      "<line x1=\"0\" y1=\"%.0f\" x2=\"320\" y2=\"%.0f\" class=\"axis\"/>",
      kBase, kBase);
  for (const v1::UlpBucket& bucket : parity.ulp_histogram()) {
    if (bucket.count() <= 0) continue;
    const int position = BucketPosition(bucket);
    const double share =
        std::log1p(static_cast<double>(bucket.count())) / std::log1p(static_cast<double>(most));
    const double height = std::max(2.0, (kBase - kTop) * share);
    const double x = kLeft + (position + reach) * step;
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"1\" "
                          "class=\"%s\"><title>%s: %s (%s)</title></rect>",
                          x + step * 0.1, kBase - height, step * 0.8, height,
                          position == 0 ? "zero" : "off", BucketText(bucket), Count(bucket.count()),
                          Escaped(Percent(bucket.count(), parity.element_count())));
    if (step >= 30) {
      absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" class=\"tick\">%s</text>",
                            x + step / 2, kBase - height - 4, Count(bucket.count()));
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

std::string HeatMapSvg(const v1::ErrorReport& error) {
  const v1::HeatMap& map = error.heat_map();
  if (!IsWhole(map)) return "<p class=\"dim\">no blocks</p>";
  HeatRange range{INFINITY, 0};
  for (const double rms_error : map.rms_error()) {
    if (!std::isfinite(rms_error)) continue;
    range.low = std::min(range.low, rms_error);
    range.high = std::max(range.high, rms_error);
  }
  // A few rows or columns still fill a readable square.
  std::string svg = absl::StrCat("<svg class=\"", map.rows() == 1 ? "heat strip" : "heat",
                                 "\" viewBox=\"0 0 ", map.columns(), " ", map.rows(),
                                 "\" preserveAspectRatio=\"none\" role=\"img\" "
                                 "aria-label=\"error by block\" shape-rendering=\"crispEdges\">");
  const std::array<std::string, kHeatLevels> paths = LevelPaths(map, range);
  for (int level = 0; level < kHeatLevels; ++level) {
    if (!paths[level].empty()) {
      absl::StrAppend(&svg, "<path class=\"h", level, "\" d=\"", paths[level], "\"/>");
    }
  }
  for (const v1::HeatMapCell& worst : error.worst_blocks()) {
    const int row = FindEdge(map.row_edges(), worst.row_begin());
    const int column = FindEdge(map.column_edges(), worst.column_begin());
    if (row < 0 || column < 0 || !(worst.rms_error() > 0)) continue;
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

std::string StackedBar(const std::vector<BarPart>& parts) {
  int64_t total = 0;
  for (const BarPart& part : parts) total += part.count;
  if (total == 0) return "<p class=\"dim\">no elements</p>";
  std::string bar = "<div class=\"stack\">", legend = "<div class=\"legend\">";
  for (const BarPart& part : parts) {
    if (part.count == 0) continue;
    const double percent = 100.0 * static_cast<double>(part.count) / static_cast<double>(total);
    // At least a hair, so that one NaN in a million is not invisible.
    absl::StrAppendFormat(&bar, "<i class=\"%s\" style=\"flex:%.4f 0 3px\"></i>", part.css_class,
                          percent);
    absl::StrAppend(&legend, "<span><i class=\"", part.css_class, "\"></i>", Escaped(part.name),
                    " ", Count(part.count), " ", Span("dim", Percent(part.count, total)),
                    "</span>");
  }
  return absl::StrCat(bar, "</div>", legend, "</div>");
}

std::string BudgetBars(const v1::ErrorBudget& budget) {
  double largest = 0;
  for (const v1::BudgetTerm& term : budget.terms()) {
    largest = std::max(largest, std::fabs(term.share()));
  }
  std::string html = "<div class=\"bars\">";
  for (const v1::BudgetTerm& term : budget.terms()) {
    // Zero stands in the middle.
    const double half = largest > 0 ? 50 * std::fabs(term.share()) / largest : 0;
    absl::StrAppendFormat(&html,
                          "<span>%s</span><b><i style=\"width:%.1f%%;margin-left:%.1f%%\"></i></b>"
                          "<span class=\"r\">%.2f %%</span>",
                          Escaped(term.stage()), half, term.share() < 0 ? 50 - half : 50.0,
                          100 * term.share());
  }
  return html + "</div>";
}

namespace {

constexpr const char* kResources[] = {"compute", "send", "receive", "reduce"};

/// A resource of a rank that did something in the stage.
struct TaskLine {
  int rank = 0;
  size_t resource = 0;
  std::vector<const v1::OverlapTask*> tasks;
};

std::vector<TaskLine> TaskLinesOf(const google::protobuf::RepeatedPtrField<v1::RankReport>& ranks,
                                  int stage) {
  std::vector<TaskLine> lines;
  for (const v1::RankReport& rank : ranks) {
    if (stage >= rank.overlaps_size()) continue;
    for (size_t resource = 0; resource < std::size(kResources); ++resource) {
      TaskLine line{rank.rank(), resource, {}};
      for (const v1::OverlapTask& task : rank.overlaps(stage).tasks()) {
        if (task.resource() == kResources[resource]) line.tasks.push_back(&task);
      }
      if (!line.tasks.empty()) lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace

std::string OverlapSvg(const google::protobuf::RepeatedPtrField<v1::RankReport>& ranks, int stage) {
  const std::vector<TaskLine> lines = TaskLinesOf(ranks, stage);
  double end = 0;
  for (const TaskLine& line : lines) {
    for (const v1::OverlapTask* task : line.tasks) end = std::max(end, task->end_seconds());
  }
  if (lines.empty()) return "";
  constexpr double kLeft = 86, kWidth = 540, kTop = 4, kStep = 13, kBar = 10;
  const double bottom = kTop + kStep * static_cast<double>(lines.size());
  const auto x = [&](double seconds) { return end > 0 ? kLeft + kWidth * seconds / end : kLeft; };
  std::string svg = absl::StrFormat(
      "<svg class=\"chart\" viewBox=\"0 0 640 %.0f\" role=\"img\" "
      "aria-label=\"tasks over time by rank\">",
      bottom + 16);
  double y = kTop;
  for (const TaskLine& line : lines) {
    absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"%.1f\" class=\"tick low\">rank %d %s</text>",
                          kLeft - 6, y + kBar - 2, line.rank, kResources[line.resource]);
    for (const v1::OverlapTask* task : line.tasks) {
      // At least a hair, so that a short copy is not invisible.
      const double width = std::max(0.6, x(task->end_seconds()) - x(task->begin_seconds()));
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" "
                            "class=\"task%d\"><title>rank %d, %s: %s to %s</title></rect>",
                            x(task->begin_seconds()), y, width, kBar, line.resource, line.rank,
                            Escaped(task->name()), Seconds(task->begin_seconds()),
                            Seconds(task->end_seconds()));
    }
    y += kStep;
  }
  absl::StrAppendFormat(&svg,
                        "<line x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\" class=\"axis\"/>"
                        "<text x=\"%.0f\" y=\"%.1f\" class=\"tick first\">0</text>"
                        "<text x=\"%.0f\" y=\"%.1f\" class=\"tick low\">%s</text></svg>",
                        kLeft, bottom, kLeft + kWidth, bottom, kLeft, bottom + 12, kLeft + kWidth,
                        bottom + 12, Seconds(end));
  return svg;
}

std::string StageBars(const std::vector<std::pair<std::string, double>>& stages) {
  double longest = 0, total = 0;
  for (const auto& [stage, seconds] : stages) {
    longest = std::max(longest, seconds);
    total += seconds;
  }
  std::string html = "<div class=\"bars\">";
  for (const auto& [stage, seconds] : stages) {
    const double percent = longest > 0 ? 100 * seconds / longest : 0;
    absl::StrAppendFormat(&html,
                          "<span>%s</span><b><i style=\"width:%.1f%%\"></i></b><span class=\"r\">%s"
                          "</span>",
                          Escaped(stage), percent, Seconds(seconds));
  }
  absl::StrAppend(&html, "<span class=\"dim\">together</span><span></span><span class=\"r dim\">",
                  Seconds(total), "</span></div>");
  return html;
}

}  // namespace quantgate
