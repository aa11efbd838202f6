// Line charts as inline SVG: one line for each variant over the steps of a trace.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quantgate {

/// A line through its points in order. A point of NaN is left out and parts the line; +infinity
/// lies above all numbers, -infinity on the lower edge.
struct ChartLine {
  std::string name;
  int colour = 0;  ///< Any index from 0: the same gives the same colour in every chart.
  std::vector<std::pair<double, double>> points;
};
struct LineChart {
  std::string title;  ///< "SQNR, dB".
  double x_low = 0, x_high = 1;
  std::vector<ChartLine> lines;
};

/// Empty where no line has a point.
std::string LineChartSvg(const LineChart& chart);

/// The names of lines beside their colours.
std::string LineLegend(const std::vector<ChartLine>& lines);

/// The least and largest finite y of all lines; absent where there is none.
struct ChartRange {
  double low = 0, high = 0;
};
std::optional<ChartRange> RangeOf(const std::vector<ChartLine>& lines);

}  // namespace quantgate
