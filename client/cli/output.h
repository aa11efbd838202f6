// What a command writes: files, each whole or not at all and never over an input, and its report.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/options/invocation.h"
#include "client/connection.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/report_document.h"

namespace quantgate {

/// Checks an output path before the work begins. INVALID_ARGUMENT when `path`, the value of
/// `option`, does not end in one of `suffixes`, is one of the files `inputs` under any name, is a
/// directory, or lies in none.
absl::Status CheckOutput(const std::string& option, const std::string& path,
                         const std::vector<std::string>& suffixes,
                         const std::set<std::string>& inputs);

/// Writes text by way of a temporary file beside it and a rename.
absl::Status WriteTextFile(const std::string& path, const std::string& text);

/// Fetches `tensors` and writes them as safetensors, FP4 codes as U8. Returns what was written.
absl::StatusOr<std::vector<NamedTensor>> FetchAndWrite(
    Connection& connection, const std::vector<v1::NamedTensor>& tensors, const std::string& path,
    const std::map<std::string, std::string>& metadata);

/// Where a report goes besides stdout.
struct ReportOptions {
  std::vector<std::string> reports;  ///< FILE.json or FILE.html.
  std::string junit;                 ///< FILE.xml; empty: none.
};

/// Adds --report.
void AddReportOptions(CLI::App& command, ReportOptions& options);
/// Adds --report and --junit.
void AddGateReportOptions(CLI::App& command, ReportOptions& options);

/// Adds --tried, which sets ReportDocument::lists_tried.
void AddTriedOption(CLI::App& command, bool& lists_tried);

/// CheckOutput for every report file.
absl::Status CheckReports(const ReportOptions& options, const std::set<std::string>& inputs);

/// Writes the report to stdout in the format of --format and to every report file. Returns kExitOk,
/// or kExitCriterionFailed when the verdict is a failure.
absl::StatusOr<int> EmitReport(Invocation& invocation, const ReportOptions& options,
                               const ReportDocument& document);

}  // namespace quantgate
