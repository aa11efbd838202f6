// The style sheet of HTML reports.
#pragma once

namespace quantgate {

extern const char kReportStyle[];

}  // namespace quantgate
