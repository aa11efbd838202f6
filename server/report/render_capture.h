// The layers of a captured training step as text: one line each.
#pragma once

#include <ostream>

#include "server/report/report_document.h"

namespace quantgate {

void PrintCapturedLayers(const ReportDocument& document, bool uses_colour, std::ostream& out);

}  // namespace quantgate
