#include "client/cli/output.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/blob_transfer.h"
#include "client/cli/exit.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/file_bytes.h"
#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/report_junit.h"

namespace quantgate {
namespace {
namespace fs = std::filesystem;

JunitRun JunitRunOf(const Invocation& invocation) {
  const std::string& server = invocation.options().server;
  return {server.empty() ? "localhost" : server, invocation.start()};
}

}  // namespace

absl::Status CheckOutput(const std::string& option, const std::string& path,
                         const std::vector<std::string>& suffixes,
                         const std::set<std::string>& inputs) {
  const auto refuse = [&](const std::string& rule) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": \"", path, "\" ", rule));
  };
  bool has_suffix = false;
  for (const std::string& suffix : suffixes) has_suffix |= absl::EndsWith(path, suffix);
  if (!has_suffix) return refuse(absl::StrCat("must end in ", absl::StrJoin(suffixes, " or ")));
  std::error_code error;
  fs::path directory = fs::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!fs::is_directory(directory, error)) return refuse("lies in no existing directory");
  if (fs::is_directory(path, error)) return refuse("is a directory");
  for (const std::string& input : inputs) {
    if (fs::equivalent(path, input, error)) return refuse("is an input of this command");
  }
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  return ReplaceFile(path, {std::as_bytes(std::span(text))});
}

absl::StatusOr<std::vector<NamedTensor>> FetchAndWrite(
    Connection& connection, const std::vector<v1::NamedTensor>& tensors, const std::string& path,
    const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> fetched;
  for (const v1::NamedTensor& tensor : tensors) {
    QG_ASSIGN_OR_RETURN(Tensor value, FetchTensor(connection, tensor));
    if (CodesPerElement(value.dtype()) == 2) {
      // Two codes a byte: the files' own F4 counts codes, and few readers know it.
      QG_ASSIGN_OR_RETURN(value, value.Reinterpret(DType::kU8, value.shape()));
    }
    fetched.push_back({tensor.name(), std::move(value)});
  }
  QG_RETURN_IF_ERROR(WriteSafetensors(path, fetched, metadata));
  return fetched;
}

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

void AddTriedOption(CLI::App& command, bool& lists_tried) {
  command.add_flag(
      "--tried", lists_tried,
      "With a diagnosis, list what was tried and does not fit, and what was not tried");
}

absl::Status CheckReports(const ReportOptions& options, const std::set<std::string>& inputs) {
  for (const std::string& path : options.reports) {
    QG_RETURN_IF_ERROR(CheckOutput("--report", path, {".json", ".html"}, inputs));
  }
  if (options.junit.empty()) return absl::OkStatus();
  return CheckOutput("--junit", options.junit, {".xml"}, inputs);
}

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
