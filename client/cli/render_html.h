// A report as one HTML file that needs nothing else: no scripts, no fonts, no network; light and
// dark by the reader's preference; every string from outside is escaped.
#pragma once

#include <string>

#include "client/cli/report_document.h"

namespace quantgate {

std::string RenderHtml(const ReportDocument& document);

}  // namespace quantgate
