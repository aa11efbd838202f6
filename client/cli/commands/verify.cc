// quantgate verify: a user's own outputs against the engine's.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/commands/tensor_comparison.h"
#include "client/cli/layer_command.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/comparison_verdict.h"

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
  quantgate verify --subject y.safetensors --only y --input x.npy --weight w.npy --recipe bf16
  quantgate verify --tp 2 --parallel-mode column --input m.safetensors:fc1.x \
      --weight m.safetensors:fc1.weight --grad-output m.safetensors:fc1.dy \
      --requires-grad w --recipe mxfp8
  quantgate verify --subject ranks.safetensors --tp 2 --parallel-mode column \
      --input m.safetensors:fc1.x --weight m.safetensors:fc1.weight --recipe mxfp8

FILE.safetensors holds what your own code computed, under the names that `quantgate run -o`
writes: y, dx, dw, db, main_grad, dgamma, fc1.dw, dw.0, ...; of delayed scaling input.scale,
input.amax_history and so on too. Each is compared bit for bit with what the engine computes from
the same operands. One that FILE lacks fails; --only y,dw asks for these alone.
With --require bound all but the bias gradients and delayed scaling's state need only lie within
the error bound derived for what made them.
With --tp and no --subject the engine's own outputs on N ranks are checked: bit for bit against one
rank, or with --require bound against what sums over ranks may do. With both, FILE holds what
`quantgate run --tp N -o` writes, the outputs and each rank's part of them (rank0.y, rank1.y, ...),
and each is compared bit for bit with that of the engine's ranks.
With --junit FILE.xml each tensor is a test case.
Where something does not pass, the first line says why, as far as it can be told: "dw is twice the
expected", "fits mxfp8:scale_rule=floor in y, dw and db", "unknown: ...". Looking for that takes at
most as long again; --tried lists what does not fit.
Exits 0 when all pass, 1 when not, 2 when the file holds none of the outputs.)";

struct VerifyOptions {
  LayerCommand run;
  std::string subject;
  std::string require = "bitwise";
  std::vector<std::string> only;
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

ComparisonSide EngineSide(const v1::VariantReport& variant, const v1::NamedTensor& output) {
  ComparisonSide side;
  side.name = absl::StrCat(output.name(), " of ", variant.label());
  side.type = output.type();
  if (output.has_data()) {
    *side.source.mutable_inline_()->mutable_type() = output.type();
    side.source.mutable_inline_()->set_data(output.data());
  } else {
    *side.source.mutable_stored()->mutable_type() = output.type();
    *side.source.mutable_stored()->mutable_digest() = output.digest();
  }
  return side;
}

/// The computed tensors that --only names, or all of them.
absl::StatusOr<std::vector<v1::NamedTensor>> AskedFor(const std::vector<std::string>& only,
                                                      std::vector<v1::NamedTensor> computed) {
  if (only.empty()) return computed;
  std::vector<v1::NamedTensor> asked;
  for (const std::string& name : only) {
    const auto found =
        std::find_if(computed.begin(), computed.end(),
                     [&](const v1::NamedTensor& tensor) { return tensor.name() == name; });
    if (found == computed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--only: \"", name, "\" is no output of this layer; it has ",
          absl::StrJoin(computed, ", ", [](std::string* out, const v1::NamedTensor& tensor) {
            absl::StrAppend(out, tensor.name());
          })));
    }
    asked.push_back(*found);
  }
  return asked;
}

/// Tensors of the subject that nothing is compared with; they are listed so that a misspelt name
/// shows.
std::vector<std::string> UncomparedNames(const TensorFile& subject,
                                         const std::vector<v1::NamedTensor>& asked) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::none_of(asked.begin(), asked.end(),
                     [&](const v1::NamedTensor& output) { return output.name() == name; })) {
      names.push_back(name);
    }
  };
  for (const NamedTensor& tensor : subject.tensors) add(tensor.name);
  for (const auto& [name, dtype] : subject.unread) add(name);
  return names;
}

/// Compares an output of the engine with the subject's tensor of that name. An output that the
/// subject lacks is a difference: a gate that ignored it would pass when nobody computes it any
/// more.
/// Both sides are added to `diagnosis` where they are to be looked at.
absl::StatusOr<SubjectComparison> CompareOutput(Connection& connection, TensorSources& sources,
                                                const v1::VariantReport& variant,
                                                const v1::NamedTensor& output,
                                                const std::string& path, const TensorFile& subject,
                                                v1::DiagnoseRequest& diagnosis) {
  const absl::StatusOr<Tensor> tensor = subject.Find(output.name());
  if (!tensor.ok()) {
    SubjectComparison missing;
    missing.tensor = output.name();
    missing.dtype = output.type().dtype();
    missing.difference = absl::IsNotFound(tensor.status()) ? absl::StrCat("not in ", path)
                                                           : std::string(tensor.status().message());
    return missing;
  }
  ComparisonSide mine{absl::StrCat(path, ":", output.name()), DescriptorOf(*tensor), {}};
  QG_ASSIGN_OR_RETURN(mine.source, sources.Place(mine.name, *tensor));
  const ComparisonSide engines = EngineSide(variant, output);
  QG_ASSIGN_OR_RETURN(SubjectComparison comparison,
                      CompareSides(connection, output.name(), mine, engines));
  const v1::OutputReport* report = FindOutput(variant, output.name());
  if (report != nullptr && report->has_subject_bound()) {
    comparison.bound = report->subject_bound();
  }
  // What lies within its bound may have other bits, which are then no finding.
  const bool is_within = comparison.bound.has_value() && comparison.bound->pass();
  const bool is_equal = comparison.result.has_parity() && comparison.result.parity().equal();
  // Delayed scaling's states are no outputs of a layer that is computed again.
  if (report != nullptr && (is_equal || !is_within)) {
    AddPair(output.name(), mine, engines, diagnosis);
  }
  return comparison;
}

/// Compares the engine's outputs on several ranks with those on one.
absl::StatusOr<int> VerifyRanks(Invocation& invocation, const VerifyOptions& options) {
  LayerCommand run = options.run;
  run.layer.require = options.require;
  // With more variants, each would be compared with exact in place of its twin on one rank.
  run.variants = 2;
  QG_ASSIGN_OR_RETURN(const ReportDocument document, ExecuteLayer(invocation, run, "verify"));
  return EmitReport(invocation, run.report, document);
}

absl::StatusOr<int> Verify(Invocation& invocation, const VerifyOptions& options) {
  const bool has_ranks = options.run.layer.wants_ranks();
  if (options.subject.empty() && !has_ranks) {
    return absl::InvalidArgumentError(
        "--subject: absent; give your outputs, or --tp or --ep to check several ranks against one");
  }
  const bool by_bound = options.require == "bound";
  if (!options.subject.empty() && has_ranks && by_bound) {
    return absl::InvalidArgumentError(
        "--require: bound, given with --subject and --tp or --ep; what several ranks computed is "
        "compared bit for bit, and the outputs of one rank alone are held to a bound");
  }
  if (options.subject.empty()) {
    if (options.only.empty()) return VerifyRanks(invocation, options);
    return absl::InvalidArgumentError("--only: given without --subject, whose outputs it names");
  }
  const absl::Time start = SteadyNow();
  // A bad subject is found before the engine works for it.
  QG_ASSIGN_OR_RETURN(const TensorFile subject, ReadKnownTensors("--subject", options.subject));
  LayerCommand run = options.run;
  run.keep_outputs = true;
  run.variants = has_ranks ? 2 : 1;  // The second is its twin on several ranks.
  if (by_bound) {
    for (const NamedTensor& tensor : subject.tensors) {
      if (HasBound(tensor.name)) run.subjects[tensor.name] = tensor.tensor;
    }
  }
  run.more_inputs = {options.subject};
  QG_ASSIGN_OR_RETURN(ReportDocument document, ExecuteLayer(invocation, run, "verify"));
  // The subject is diagnosed here, not the engine's own outputs.
  document.diagnosis.reset();
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  const v1::VariantReport& variant = document.run.variants(has_ranks ? 1 : 0);
  QG_ASSIGN_OR_RETURN(const std::vector<v1::NamedTensor> asked,
                      AskedFor(options.only, OutputTensors(variant)));
  const bool has_any = std::any_of(asked.begin(), asked.end(), [&](const v1::NamedTensor& output) {
    return subject.Find(output.name()).ok();
  });
  const std::vector<std::string> uncompared = UncomparedNames(subject, asked);
  if (!has_any) {
    return absl::InvalidArgumentError(
        absl::StrCat("--subject: ", options.subject, " holds none of this layer's outputs",
                     uncompared.empty() ? "" : "; it has ", absl::StrJoin(uncompared, ", ")));
  }
  v1::DiagnoseRequest diagnosis;
  for (const v1::NamedTensor& output : asked) {
    QG_ASSIGN_OR_RETURN(
        SubjectComparison comparison,
        CompareOutput(*connection, sources, variant, output, options.subject, subject, diagnosis));
    document.comparisons.push_back(std::move(comparison));
  }
  if (!uncompared.empty()) {
    document.remarks.push_back(absl::StrCat(
        "in the subject, but ", options.only.empty() ? "no output of this layer" : "not in --only",
        ": ", absl::StrJoin(uncompared, ", ")));
  }
  document.title = absl::StrCat(options.subject, " against ", variant.label());
  document.verdict = by_bound ? JudgeBounds(document.comparisons)
                              : JudgeComparisons(document.comparisons, std::nullopt);
  document.verdict.set_non_finite_inputs(document.run.verdict().non_finite_inputs());
  if (!document.verdict.pass()) {
    for (const std::string& name : uncompared) {
      const absl::StatusOr<Tensor> related = subject.Find(name);
      if (!related.ok() || !CanBeDiagnosed(name)) continue;
      QG_ASSIGN_OR_RETURN((*diagnosis.mutable_related())[name], sources.Place(name, *related));
    }
    if (variant.ranks().empty()) {
      // The layer is computed under a mistake on one rank alone.
      *diagnosis.mutable_spec() = document.run.request();
      diagnosis.mutable_spec()->clear_subjects();
    }
    AddDiagnosis(*connection, std::move(diagnosis), start, document);
  }
  return EmitReport(invocation, run.report, document);
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "verify", "Check your own y, dx, dw, ... against the engine's bits",
      kVerifyExamples, Verify);
  command->add_option("--subject", options->subject, "safetensors with your outputs")
      ->type_name("FILE");
  command
      ->add_option("--only", options->only,
                   "Outputs that the subject must hold, such as y,dx; default: every one")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LIST");
  AddLayerOptions(*command, options->run.layer);
  AddSingleVariantOptions(*command, options->run.layer);
  AddParallelOptions(*command, options->run.layer);
  command->add_option("--require", options->require, "What passes")
      ->check(CLI::IsMember({"bitwise", "bound"}))
      ->capture_default_str();
  AddTriedOption(*command, options->run.lists_tried);
  AddGateReportOptions(*command, options->run.report);
}

}  // namespace quantgate
