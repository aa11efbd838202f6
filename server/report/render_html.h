// A report as one HTML file that needs nothing else: no scripts, no fonts, no network; light and
// dark by the reader's preference; every string from outside is escaped. It shows the report's JSON
// by the template page.html.
#pragma once

#include <string>

#include "server/report/report_document.h"
#include "server/report/trace_report.h"

namespace quantgate {

std::string RenderHtml(const ReportDocument& document);
std::string RenderHtml(const TraceReport& report);

}  // namespace quantgate
