// Reports as text for a terminal, at most 100 columns wide for up to eight tensors and nine
// variants.
#pragma once

#include <ostream>

#include "server/report/report_document.h"

namespace quantgate {

/// Prints PASS or FAIL with what was required and what was found.
/// The sentence, its figures and, with `lists_tried`, what does not fit and what was not tried; an
/// empty line ends it.
void PrintDiagnosis(const v1::Diagnosis& diagnosis, bool lists_tried, std::ostream& out);
void PrintVerdict(const v1::Verdict& verdict, bool uses_colour, std::ostream& out);

void PrintReport(const ReportDocument& document, bool uses_colour, std::ostream& out);

}  // namespace quantgate
