// Pictures of a report as inline SVG and CSS bars.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// Bars over the signed ULP distance, 0 in the middle; heights are logarithmic, so that one element
/// in a million shows.
std::string UlpHistogramSvg(const v1::ParityReport& parity);

/// RMS error by row block and column block in ten steps from nothing to the largest; the worst
/// blocks are outlined.
std::string HeatMapSvg(const v1::ErrorReport& error);

/// One bar cut into named parts, with a legend of the parts that are not zero.
struct BarPart {
  std::string name;
  int64_t count = 0;
  std::string css_class;
};
std::string StackedBar(const std::vector<BarPart>& parts);

/// One horizontal bar per term of an error budget, to the right where it adds to the error and to
/// the left where it cancels some of it.
std::string BudgetBars(const v1::ErrorBudget& budget);

/// One horizontal bar per stage, all to one scale.
std::string StageBars(const std::vector<std::pair<std::string, double>>& stages);

/// When the tasks of one overlapped stage ran on each rank, `stage` counting the ranks' overlaps: a
/// line for each resource of each rank, all to one scale. Empty where no rank has such a stage.
std::string OverlapSvg(const google::protobuf::RepeatedPtrField<v1::RankReport>& ranks, int stage);

struct HeatRange {
  double low = 0;
  double high = 0;
};
/// 0 for no error at all (or NaN), 1 to 9 from the low to the high end of the range, linear.
int HeatLevel(double value, HeatRange range);

}  // namespace quantgate
