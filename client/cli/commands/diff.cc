// quantgate diff: parity and error report of two files.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/capture.h"
#include "client/capture_report.h"
#include "client/cli/commands/captures.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/output.h"
#include "client/tensor_comparison.h"
#include "client/tensor_name.h"
#include "client/tensor_source.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/comparison_verdict.h"

namespace quantgate {
namespace {

constexpr char kDiffExamples[] = R"(Examples:
  quantgate diff mine.safetensors theirs.safetensors
  quantgate diff mine.safetensors:y theirs.npy
  quantgate diff a.safetensors:codes@f8_e4m3 b.safetensors:codes@f8_e4m3 --report diff.html
  quantgate diff out.safetensors:y digest:SHA256/SIZE --max-ulp 1
  quantgate diff --capture run1 run2

Two whole safetensors files are compared by the names of their tensors; a tensor that one of
them lacks is a difference.
With --capture A and B are captures of training steps (docs/capture.md), whose calls are compared by
rank, step, module and number, one line each; the first line names the module and tensor that
differ first in the order of execution.
With --junit FILE.xml each tensor, or each captured call, is a test case.
Where tensors differ, the first line says why, as far as it can be told: "y is transposed",
"dw is twice the expected", "unknown: ..."; --tried lists what does not fit.
Under --max-ulp an infinity is within no distance of a number, nor is a NaN.
Exits 0 when every bit is equal, 1 when not, 2 when there is nothing to compare.)";

struct DiffOptions {
  std::string subject, reference;
  std::optional<int64_t> ulp_max;
  bool lists_tried = false;
  bool are_captures = false;
  ReportOptions report;
};

/// "FILE.safetensors" without a tensor name.
bool IsWholeFile(const std::string& text) {
  return absl::EndsWith(text, ".safetensors") && text.rfind("digest:", 0) != 0;
}

absl::StatusOr<ComparisonSide> SideOf(Connection& connection, TensorSources& sources,
                                      std::string_view field, const std::string& text) {
  ComparisonSide side;
  side.name = text;
  QG_ASSIGN_OR_RETURN(side.source, sources.Resolve(field, text));
  if (side.source.has_inline_()) {
    side.type = side.source.inline_().type();
  } else if (side.source.has_generate()) {
    side.type = side.source.generate().type();
  } else if (side.source.stored().has_type()) {
    side.type = side.source.stored().type();
  } else {
    v1::DescribeTensorRequest request;
    *request.mutable_tensor() = side.source;
    QG_ASSIGN_OR_RETURN(const v1::TensorRecord record, connection.DescribeTensor(request));
    side.type = record.type();
  }
  return side;
}

absl::StatusOr<int> DiffOfCaptures(Invocation& invocation, const DiffOptions& options) {
  QG_ASSIGN_OR_RETURN(const Capture subject, ReadCapture("--capture: A", options.subject));
  QG_ASSIGN_OR_RETURN(const Capture reference, ReadCapture("--capture: B", options.reference));
  std::set<std::string> files = FilesOf(subject);
  files.merge(FilesOf(reference));
  QG_RETURN_IF_ERROR(CheckReports(options.report, files));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, {});
  QG_ASSIGN_OR_RETURN(ReportDocument document,
                      DiffCaptures(*connection, sources, subject, reference, options.ulp_max,
                                   CaptureProgressOf(invocation)));
  document.command = invocation.CommandLine();
  document.lists_tried = options.lists_tried;
  return EmitReport(invocation, options.report, document);
}

absl::StatusOr<int> Diff(Invocation& invocation, const DiffOptions& options) {
  if (options.are_captures) return DiffOfCaptures(invocation, options);
  const bool is_whole = IsWholeFile(options.subject) && IsWholeFile(options.reference);
  std::set<std::string> files;
  if (is_whole) files = {options.subject, options.reference};
  QG_RETURN_IF_ERROR(CheckReports(options.report, files));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  const absl::Time start = SteadyNow();
  v1::DiagnoseRequest diagnosis;
  ReportDocument document;
  document.kind = "diff";
  document.title = absl::StrCat(options.subject, " against ", options.reference);
  document.command = invocation.CommandLine();
  if (is_whole) {
    QG_ASSIGN_OR_RETURN(const TensorFile subject, ReadTensorFile("A", options.subject));
    QG_ASSIGN_OR_RETURN(const TensorFile reference, ReadTensorFile("B", options.reference));
    if (subject.tensors.empty() && reference.tensors.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("A: ", options.subject, " and ", options.reference,
                       " hold no tensors; there is nothing to compare"));
    }
    QG_ASSIGN_OR_RETURN(document.comparisons,
                        CompareFiles(*connection, sources, {options.subject, subject},
                                     {options.reference, reference}, diagnosis));
  } else {
    QG_ASSIGN_OR_RETURN(const ComparisonSide subject,
                        SideOf(*connection, sources, "A", options.subject));
    QG_ASSIGN_OR_RETURN(const ComparisonSide reference,
                        SideOf(*connection, sources, "B", options.reference));
    QG_RETURN_IF_ERROR(CheckReports(options.report, sources.files()));
    QG_ASSIGN_OR_RETURN(SubjectComparison comparison,
                        CompareSides(*connection, "tensor", subject, reference));
    AddPair("tensor", subject, reference, diagnosis);
    document.comparisons.push_back(std::move(comparison));
  }
  document.verdict = JudgeComparisons(document.comparisons, options.ulp_max);
  AddDiagnosis(*connection, std::move(diagnosis), start, document);
  document.lists_tried = options.lists_tried;
  return EmitReport(invocation, options.report, document);
}

}  // namespace

void AddDiffCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "diff", "Parity and error report of two files or tensors", kDiffExamples, Diff);
  command->add_flag("--capture", options->are_captures,
                    "A and B are captures of training steps: their directories");
  command->add_option("A", options->subject, "The subject: a file or a tensor")->required();
  command->add_option("B", options->reference, "The reference: a file or a tensor")->required();
  command
      ->add_option("--max-ulp", options->ulp_max,
                   "Pass when no element is further apart than this, instead of bitwise")
      ->check(CLI::Range(int64_t{0}, INT64_MAX - 1));
  AddTriedOption(*command, options->lists_tried);
  AddGateReportOptions(*command, options->report);
}

}  // namespace quantgate
