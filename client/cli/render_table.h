// Reports as text for a terminal, at most 100 columns wide for up to eight tensors and nine
// variants.
#pragma once

#include <ostream>

#include "client/cli/report_document.h"

namespace quantgate {

inline constexpr int kTableColumns = 100;

void PrintReport(const ReportDocument& document, bool uses_colour, std::ostream& out);

}  // namespace quantgate
