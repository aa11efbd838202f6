// Reports as text for a terminal, at most 100 columns wide for up to eight tensors and nine
// variants.
#pragma once

#include <ostream>

#include "server/report/report_document.h"

namespace quantgate {

/// Prints PASS or FAIL with what was required and what was found.
void PrintVerdict(const v1::Verdict& verdict, bool uses_colour, std::ostream& out);

void PrintReport(const ReportDocument& document, bool uses_colour, std::ostream& out);

}  // namespace quantgate
