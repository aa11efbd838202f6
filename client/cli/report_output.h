// Where a report goes: to stdout in the asked format, and to every --report file.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/options/invocation.h"
#include "server/report/report_document.h"

namespace quantgate {

struct ReportOptions {
  std::vector<std::string> reports;  ///< FILE.json or FILE.html.
  std::string junit;                 ///< FILE.xml; empty: none.
};

/// --report alone.
void AddReportOptions(CLI::App& command, ReportOptions& options);
/// --report and --junit.
void AddGateReportOptions(CLI::App& command, ReportOptions& options);

/// Before the work: whether the report files can be written.
absl::Status CheckReports(const ReportOptions& options, const std::set<std::string>& inputs);

/// After the work. Returns 0, or kExitCriterionFailed when the verdict is a failure.
absl::StatusOr<int> EmitReport(Invocation& invocation, const ReportOptions& options,
                               const ReportDocument& document);

}  // namespace quantgate
