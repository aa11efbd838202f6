// The data that page.html shows: a report's JSON, to which pictures, rows of matrices and shares
// are added. The page formats the numbers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/report/report_document.h"
#include "server/report/trace_report.h"

namespace quantgate {

nlohmann::ordered_json ViewOf(const ReportDocument& document);
nlohmann::ordered_json ViewOf(const TraceReport& report);

/// A line through its points in order. A point of NaN is left out and interrupts the line;
/// +infinity lies above all numbers, -infinity on the lower edge.
struct ChartLine {
  std::string name;
  std::string colour;  ///< CSS class of the line and its marks.
  std::vector<std::pair<double, double>> points;
};

/// {title, last, lines: [{class, path, marks: [{x, y, text}]}], labels: [{y, text}]} in 320 x 150,
/// over steps from 1 to `last`; null where no line has a point.
nlohmann::ordered_json LineChart(const std::string& title, double last,
                                 const std::vector<ChartLine>& lines);

/// Step of the SQNR ramp, 0 (under 10 dB) to 5 (50 dB and more).
int SqnrLevel(double sqnr_db);

struct HeatRange {
  double low = 0;
  double high = 0;
};
/// 0 for no error at all (or NaN), 1 to 9 from the low to the high end of the range, linear.
int HeatLevel(double value, HeatRange range);

}  // namespace quantgate
