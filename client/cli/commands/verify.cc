// quantgate verify: a user's own outputs against the engine's.
#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/capture.h"
#include "client/capture_report.h"
#include "client/cli/commands/captures.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/layer_report.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/tensor/files/tensor_file.h"

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
  quantgate verify --capture steps --layers '.*fc1' --junit capture.xml

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
With --capture every layer of captured training steps (docs/capture.md) is computed from its own
operands, by default as bf16 or what its module ran, and y, dx, dw and main_grad are held to their
bounds, with --require bitwise to the engine's bits: one line each, and above them the first module,
in the order of execution, that differs. Nothing that can be judged is an error.
With --junit FILE.xml each tensor, or each captured layer, is a test case.
Where something does not pass, the first line says why, as far as it can be told: "dw is twice the
expected", "fits mxfp8:scale_rule=floor in y, dw and db", "unknown: ...". Looking for that takes at
most as long again; --tried lists what does not fit.
Exits 0 when all pass, 1 when not, 2 when the file holds none of the outputs.)";

struct VerifyOptions {
  LayerCommand run;
  std::string subject;
  std::string require;  ///< Empty: bitwise, and bound for a capture.
  std::vector<std::string> only;
  std::string capture;  ///< A capture, in place of a subject; empty: none.
  std::string layers;   ///< The modules of it, as CaptureCriterion::layers.
  std::vector<const CLI::Option*> not_of_captures;  ///< Options that do not go with a capture.
};

/// Compares the engine's outputs on several ranks with those on one.
absl::StatusOr<int> VerifyRanks(Invocation& invocation, const VerifyOptions& options) {
  LayerCommand run = options.run;
  run.layer.require = options.require.empty() ? "bitwise" : options.require;
  // With more variants, each would be compared with exact in place of its twin on one rank.
  run.variants = 2;
  QG_ASSIGN_OR_RETURN(const ReportDocument document, ExecuteLayer(invocation, run, "verify"));
  return EmitReport(invocation, run.report, document);
}

absl::StatusOr<int> VerifyCaptured(Invocation& invocation, const VerifyOptions& options) {
  for (const CLI::Option* option : options.not_of_captures) {
    if (option->count() == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--capture: given with ", option->get_name(),
                     "; a capture has its layers and their tensors itself"));
  }
  QG_RETURN_IF_ERROR(CheckReports(options.run.report, {}));
  const LayerOptions& layer = options.run.layer;
  CaptureCriterion criterion;
  criterion.layers = options.layers;
  criterion.by_bound = options.require != "bitwise";
  criterion.capture_field = "--capture";
  criterion.layers_field = "--layers";
  if (!layer.recipes[0].empty()) {
    QG_ASSIGN_OR_RETURN(const std::vector<v1::Variant> variants, VariantsOf(layer));
    if (variants.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--recipe: ", variants.size(), " variants; verify takes one"));
    }
    criterion.variant = variants[0];
  } else if (!layer.backward_overrides[0].empty()) {
    return absl::InvalidArgumentError("--backward-override: given without --recipe");
  } else {
    criterion.variant.set_arithmetic(layer.arithmetics[0]);
  }
  QG_ASSIGN_OR_RETURN(const Capture capture, ReadCapture("--capture", options.capture));
  QG_RETURN_IF_ERROR(CheckReports(options.run.report, FilesOf(capture)));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, {});
  QG_ASSIGN_OR_RETURN(
      ReportDocument document,
      VerifyCapture(*connection, sources, capture, criterion, CaptureProgressOf(invocation)));
  document.command = invocation.CommandLine();
  document.lists_tried = options.run.lists_tried;
  return EmitReport(invocation, options.run.report, document);
}

absl::StatusOr<int> Verify(Invocation& invocation, const VerifyOptions& options) {
  if (!options.capture.empty()) return VerifyCaptured(invocation, options);
  if (!options.layers.empty()) {
    return absl::InvalidArgumentError("--layers: given without --capture, whose modules it names");
  }
  const bool has_ranks = options.run.layer.wants_ranks();
  if (options.subject.empty() && !has_ranks) {
    return absl::InvalidArgumentError(
        "--subject: absent; give your outputs, --capture for training steps, or --tp or --ep to "
        "check several ranks against one");
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
    for (const NamedTensor& tensor : BoundedSubjects(subject)) {
      run.subjects[tensor.name] = tensor.tensor;
    }
  }
  run.more_inputs = {options.subject};
  QG_ASSIGN_OR_RETURN(ReportDocument document, ExecuteLayer(invocation, run, "verify"));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  const VerifiedSubject verified{options.subject, subject,     options.only,
                                 by_bound,        "--subject", "--only"};
  QG_RETURN_IF_ERROR(VerifyOutputs(*connection, sources, verified, start, document));
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
      ->add_option("--capture", options->capture,
                   "Captured training steps: their directory, or one of its files")
      ->type_name("DIR");
  command
      ->add_option("--layers", options->layers,
                   "With --capture: the modules whose whole path this regular expression matches")
      ->type_name("REGEX");
  command
      ->add_option("--only", options->only,
                   "Outputs that the subject must hold, such as y,dx; default: every one")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LIST");
  AddLayerOptions(*command, options->run.layer);
  AddSingleVariantOptions(*command, options->run.layer);
  AddParallelOptions(*command, options->run.layer);
  command
      ->add_option("--require", options->require,
                   "What passes; by default bitwise, of a capture bound")
      ->check(CLI::IsMember({"bitwise", "bound"}));
  AddTriedOption(*command, options->run.lists_tried);
  AddGateReportOptions(*command, options->run.report);
  static const std::set<std::string> kOfCaptures = {
      "--help",    "--capture", "--layers", "--recipe", "--arithmetic", "--backward-override",
      "--require", "--report",  "--junit",  "--tried"};
  for (const CLI::Option* option : command->get_options()) {
    if (!kOfCaptures.contains(option->get_name())) options->not_of_captures.push_back(option);
  }
}

}  // namespace quantgate
