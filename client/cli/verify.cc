// quantgate verify: a user's own outputs against the engine's.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/layer_command.h"
#include "client/cli/subcommand.h"
#include "client/cli/tensor_comparison.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {
namespace {

constexpr char kVerifyExamples[] = R"(Examples:
  quantgate verify --subject mine.safetensors --input m.safetensors:fc1.x \
      --weight m.safetensors:fc1.weight --grad-output m.safetensors:fc1.dy \
      --recipe fp8_current --arithmetic sm90 --report verify.html
  quantgate verify --subject mlp.safetensors --layer layernorm_mlp --activation swiglu \
      --input m.safetensors:ln2.x --gamma m.safetensors:ln2.weight --beta m.safetensors:ln2.bias \
      --fc1-weight w.safetensors:fc1 --fc2-weight w.safetensors:fc2 \
      --recipe fp8_current --require bound

  quantgate verify --tp 2 --parallel-mode column --input m.safetensors:fc1.x \
      --weight m.safetensors:fc1.weight --grad-output m.safetensors:fc1.dy \
      --requires-grad w --recipe mxfp8

FILE.safetensors holds what your own code computed, under the names that `quantgate run -o`
writes: y, dx, dw, db, main_grad, dgamma, fc1.dw, dw.0, ... Each is compared bit for bit with what
the engine computes from the same operands.
With --require bound all but the bias gradients need only lie within the error bound derived for
what made them.
With --tp in place of --subject the engine's own outputs on N ranks are checked: bit for bit against
one rank, or with --require bound against what sums over ranks may do.
Exits 0 when all pass, 1 when not, 2 when the file holds none of the outputs.)";

struct VerifyOptions {
  LayerCommand run;
  std::string subject;
  std::string require = "bitwise";
};

/// Names that RunSpec.subjects takes: outputs with a derived bound, all but bias gradients.
/// "fc1.dw" and "dw.0" are dw of one weight each.
bool HasBound(const std::string& name) {
  std::vector<std::string> words = absl::StrSplit(name, '.');
  int expert = 0;
  if (words.size() > 1 && absl::SimpleAtoi(words.back(), &expert)) words.pop_back();
  static constexpr const char* kBounded[] = {"y",      "dx",    "dw",      "main_grad",
                                             "dgamma", "dbeta", "norm_out"};
  return std::any_of(std::begin(kBounded), std::end(kBounded),
                     [&](const char* word) { return words.back() == word; });
}

ComparisonSide EngineSide(const v1::VariantReport& variant, const v1::OutputReport& output) {
  ComparisonSide side;
  side.name = absl::StrCat(output.tensor().name(), " of ", variant.label());
  side.type = output.tensor().type();
  if (output.tensor().has_data()) {
    *side.source.mutable_inline_()->mutable_type() = output.tensor().type();
    side.source.mutable_inline_()->set_data(output.tensor().data());
  } else {
    *side.source.mutable_stored()->mutable_type() = output.tensor().type();
    *side.source.mutable_stored()->mutable_digest() = output.tensor().digest();
  }
  return side;
}

/// Outputs that the subject lacks and tensors that are no outputs, so that a misspelt name is seen.
void RemarkNames(const TensorFile& subject, const v1::VariantReport& variant,
                 ReportDocument& document) {
  std::vector<std::string> absent, ignored;
  for (const v1::OutputReport& output : variant.outputs()) {
    if (output.intermediate()) continue;
    if (!subject.Find(output.tensor().name()).ok()) absent.push_back(output.tensor().name());
  }
  for (const NamedTensor& tensor : subject.tensors) {
    if (FindOutput(variant, tensor.name) == nullptr) ignored.push_back(tensor.name);
  }
  if (!absent.empty()) {
    document.remarks.push_back(
        absl::StrCat("not in the subject, so not checked: ", absl::StrJoin(absent, ", ")));
  }
  if (!ignored.empty()) {
    document.remarks.push_back(absl::StrCat("in the subject, but no output of this layer: ",
                                            absl::StrJoin(ignored, ", ")));
  }
}

/// Several ranks against one, the engine's own outputs both.
absl::StatusOr<int> VerifyRanks(Invocation& invocation, const VerifyOptions& options) {
  LayerCommand run = options.run;
  run.layer.require = options.require;
  QG_ASSIGN_OR_RETURN(const ReportDocument document, ExecuteLayer(invocation, run, "verify"));
  return EmitReport(invocation, run.report, document);
}

absl::StatusOr<int> Verify(Invocation& invocation, const VerifyOptions& options) {
  if (options.subject.empty() == !options.run.layer.wants_ranks()) {
    return absl::InvalidArgumentError(options.subject.empty()
                                          ? "--subject: absent; give your outputs, or --tp or --ep "
                                            "to check several ranks against "
                                            "one"
                                          : "--subject: given with --tp or --ep; your outputs are "
                                            "those of one rank, so leave one out");
  }
  if (options.subject.empty()) return VerifyRanks(invocation, options);
  // A bad subject is found before the engine works for it.
  QG_ASSIGN_OR_RETURN(const TensorFile subject, ReadSafetensors(options.subject));
  LayerCommand run = options.run;
  run.keep_outputs = true;
  const bool by_bound = options.require == "bound";
  if (by_bound) {
    for (const NamedTensor& tensor : subject.tensors) {
      if (HasBound(tensor.name)) run.subjects[tensor.name] = tensor.tensor;
    }
  }
  run.more_inputs = {options.subject};
  QG_ASSIGN_OR_RETURN(ReportDocument document, ExecuteLayer(invocation, run, "verify"));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  const v1::VariantReport& variant = document.run.variants(0);
  for (const v1::OutputReport& output : variant.outputs()) {
    const std::string& name = output.tensor().name();
    const absl::StatusOr<Tensor> tensor = subject.Find(name);
    if (output.intermediate() || !tensor.ok()) continue;
    ComparisonSide mine{absl::StrCat(options.subject, ":", name), DescriptorOf(*tensor), {}};
    QG_ASSIGN_OR_RETURN(mine.source, sources.Place(mine.name, *tensor));
    QG_ASSIGN_OR_RETURN(SubjectComparison comparison,
                        CompareSides(*connection, name, mine, EngineSide(variant, output)));
    if (output.has_subject_bound()) comparison.bound = output.subject_bound();
    document.comparisons.push_back(std::move(comparison));
  }
  RemarkNames(subject, variant, document);
  if (document.comparisons.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--subject: ", options.subject,
                                                   " holds none of this layer's outputs; ",
                                                   absl::StrJoin(document.remarks, "; ")));
  }
  document.title = absl::StrCat(options.subject, " against ", variant.label());
  document.verdict =
      by_bound ? JudgeBounds(document.comparisons) : JudgeComparisons(document.comparisons, 0);
  return EmitReport(invocation, run.report, document);
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "verify", "Check your own y, dx, dw, ... against the engine's bits",
      kVerifyExamples, Verify);
  command->add_option("--subject", options->subject, "safetensors with your outputs")
      ->type_name("FILE");
  AddLayerOptions(*command, options->run.layer);
  AddSingleVariantOptions(*command, options->run.layer);
  AddParallelOptions(*command, options->run.layer);
  command->add_option("--require", options->require, "What passes")
      ->check(CLI::IsMember({"bitwise", "bound"}))
      ->capture_default_str();
  AddReportOptions(*command, options->run.report);
}

}  // namespace quantgate
