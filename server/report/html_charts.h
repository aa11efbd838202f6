// Pictures and tables of the JSON of reports, as markup that page.html cannot form itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace quantgate {

/// Bars over the signed ULP distance, 0 in the middle; heights are logarithmic, so that one element
/// in a million shows. Of a ParityReport.
std::string UlpHistogramSvg(const nlohmann::ordered_json& parity);

/// RMS error by row block and column block in ten steps from nothing to the largest; the worst
/// blocks are outlined. Of an ErrorReport.
std::string HeatMapSvg(const nlohmann::ordered_json& error);

/// Subject classes down, reference classes across; only classes that occur. Of a ParityReport.
std::string ConfusionTable(const nlohmann::ordered_json& parity);

/// Step of the SQNR ramp, 0 (under 10 dB) to 5 (50 dB and more).
int SqnrLevel(double sqnr_db);

struct HeatRange {
  double low = 0;
  double high = 0;
};
/// 0 for no error at all (or NaN), 1 to 9 from the low to the high end of the range, linear.
int HeatLevel(double value, HeatRange range);

}  // namespace quantgate
