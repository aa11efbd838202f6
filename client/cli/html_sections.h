// Sections of an HTML report about one variant or one tensor.
#pragma once

#include <string>

#include "client/cli/report_document.h"

namespace quantgate {

/// Everything about one variant, folded up unless `is_open`.
std::string VariantSection(const v1::VariantReport& variant, int index, bool is_open);

/// Of stages that communicate beside their GEMMs, which all ranks have in one order: figures of
/// each rank, and when their tasks ran. Of one rank at least.
std::string OverlapCharts(const google::protobuf::RepeatedPtrField<v1::RankReport>& ranks);

/// One tensor of a user against what it should be.
std::string SubjectCard(const SubjectComparison& comparison);

/// Step of the SQNR ramp, 0 (under 10 dB) to 5 (50 dB and more).
int SqnrLevel(double sqnr_db);

}  // namespace quantgate
