#include "client/cli/report_output.h"

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "client/cli/output.h"
#include "kernels/base/status_macros.h"
#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/report_junit.h"

namespace quantgate {

void AddReportOptions(CLI::App& command, ReportOptions& options) {
  command
      .add_option("--report", options.reports,
                  "Write the report as FILE.json or FILE.html; may be repeated")
      ->allow_extra_args(false)
      ->type_name("FILE");
}

void AddGateReportOptions(CLI::App& command, ReportOptions& options) {
  AddReportOptions(command, options);
  command.add_option("--junit", options.junit, "Also write the verdict as JUnit XML: FILE.xml")
      ->type_name("FILE");
}

absl::Status CheckReports(const ReportOptions& options, const std::set<std::string>& inputs) {
  for (const std::string& path : options.reports) {
    QG_RETURN_IF_ERROR(CheckOutput("--report", path, {".json", ".html"}, inputs));
  }
  if (options.junit.empty()) return absl::OkStatus();
  return CheckOutput("--junit", options.junit, {".xml"}, inputs);
}

namespace {

JunitRun JunitRunOf(const Invocation& invocation) {
  const std::string& server = invocation.options().server;
  return {server.empty() ? "localhost" : server, invocation.start()};
}

}  // namespace

absl::StatusOr<int> EmitReport(Invocation& invocation, const ReportOptions& options,
                               const ReportDocument& document) {
  invocation.progress().Clear();
  for (const std::string& path : options.reports) {
    const std::string text =
        absl::EndsWith(path, ".html") ? RenderHtml(document) : JsonDocument(document);
    QG_RETURN_IF_ERROR(WriteTextFile(path, text));
    invocation.Say(absl::StrCat("report: ", path));
  }
  if (!options.junit.empty()) {
    QG_RETURN_IF_ERROR(WriteTextFile(options.junit, ReportJunit(document, JunitRunOf(invocation))));
    invocation.Say(absl::StrCat("report: ", options.junit));
  }
  if (invocation.is_json()) {
    invocation.out() << JsonDocument(document);
  } else if (invocation.is_jsonl()) {
    invocation.out() << JsonLines(document);
  } else {
    PrintReport(document, invocation.uses_colour(), invocation.out());
  }
  return document.verdict.pass() ? kExitOk : kExitCriterionFailed;
}

}  // namespace quantgate
