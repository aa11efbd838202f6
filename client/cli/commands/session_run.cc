#include "client/cli/commands/session_commands.h"

#include <CLI/CLI.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/session_trace.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/layer_arguments.h"
#include "client/cli/output.h"
#include "client/layer_report.h"
#include "kernels/base/status_macros.h"
#include "server/report/render_html.h"
#include "server/report/trace_report.h"

namespace quantgate {
namespace {

constexpr char kSessionRunExamples[] = R"(Examples:
  quantgate session run trace.json --recipe bf16,fp8_delayed,fp8_current --report trace.html
  quantgate session run trace.txtpb --recipe fp8_current --backward-override none,dequantized
  quantgate -s HOST:7470 --format jsonl session run trace.json
  quantgate session run trace.json --dp 2 --recipe bf16 --report ranks.html
  quantgate session run trace.json --dp 4 --fsdp --recipe mxfp8
  quantgate session run experts.json --ep 4 --recipe mxfp8 --require bitwise
  quantgate session run trace.json --recipe fp8_current --subject mine.safetensors \
      --require-subject bound

trace.json is a SessionTrace of proto/quantgate/v1/sessions_service.proto (JSON; any other suffix:
protobuf text):
  {"spec": {"layers": [{"name": "fc1", "layer": {"kind": "linear"}}],
            "masters": "f32", "sgd": {"learning_rate": 0.01}},
   "parameters": {"fc1.weight": "m.safetensors:fc1.weight"},
   "variants": [{"recipe": {"name": "bf16"}}, {"recipe": {"name": "fp8_delayed"}}],
   "steps": [{"forward": {}, "x": "m.safetensors:fc1.x"},
             {"backward": {}, "grad_output": "m.safetensors:fc1.dy"},
             {"optimize": {}}],
   "rounds": 10}

Every variant takes the same steps from the same parameters in a session of its own. With --tp, --dp
or --ep each also runs on several ranks; "parallel" in the spec or a variant says the same (layers say
with parallel_mode how they are divided). The step {"restart": {}} goes on from a checkpoint, with
"parallel" on other ranks. A trace informs and exits 0, unless --require bitwise asks that all
variants have the reference's bits: then a difference exits 1. A step that a variant refuses ends it;
what can be seen without computing is refused before the first one.

--subject FILE.safetensors has tensors that were computed elsewhere, named step1.y, step2.fc1.dw, ...:
each is held against that of the first variant (of another: "subjects" and "subjects_of" in the
step), and --require-subject says what it must meet.)";

struct SessionRunOptions {
  std::string spec;
  LayerOptions variants;  ///< Only recipes, overrides, arithmetics and the reference are used.
  std::string require;    ///< bitwise; empty: inform only.
  std::string subject;    ///< A file; empty: none beside those of the trace.
  std::string require_subject;  ///< bitwise | bound; empty: what the trace says.
  bool lists_tried = false;
  ReportOptions report;
};

/// A twin on several ranks behind every variant, where the options ask for it.
absl::Status SetTraceRanks(const LayerOptions& options, v1::SessionTrace& trace) {
  std::vector<v1::Variant> variants(trace.variants().begin(), trace.variants().end());
  const bool wants_twins = options.wants_ranks();
  if (wants_twins && trace.spec().has_parallel()) {
    return absl::InvalidArgumentError(
        "--tp, --dp, --ep: given, and SPEC: spec.parallel says the ranks itself; leave one out");
  }
  if (wants_twins && variants.empty()) {
    v1::Variant& only = variants.emplace_back();
    *only.mutable_recipe() = trace.spec().recipe();
    only.set_backward_override(trace.spec().backward_override());
    trace.mutable_spec()->clear_recipe();
    trace.mutable_spec()->clear_backward_override();
  }
  QG_ASSIGN_OR_RETURN(variants, WithParallelTwins(options, std::move(variants)));
  trace.mutable_variants()->Assign(variants.begin(), variants.end());
  return absl::OkStatus();
}

/// The options' recipes in place of the trace's.
absl::Status SetTraceVariants(Connection& connection, const LayerOptions& options,
                              v1::SessionTrace& trace) {
  if (!options.recipes.empty()) {
    v1::ListRecipesResponse listed;
    if (NamesAllRecipes(options)) {
      QG_ASSIGN_OR_RETURN(listed, connection.ListRecipes());
    }
    QG_ASSIGN_OR_RETURN(const std::vector<v1::Variant> variants, VariantsOf(options, &listed));
    trace.mutable_spec()->clear_recipe();
    trace.mutable_spec()->clear_backward_override();
    trace.mutable_variants()->Assign(variants.begin(), variants.end());
    trace.set_reference(0);
  } else if (!options.backward_overrides.empty() || !options.arithmetics.empty()) {
    return absl::InvalidArgumentError(
        "--recipe: absent; --backward-override and --arithmetic go with it");
  }
  QG_RETURN_IF_ERROR(SetTraceRanks(options, trace));
  if (options.reference.empty()) return absl::OkStatus();
  const std::vector<v1::Variant> variants(trace.variants().begin(), trace.variants().end());
  QG_ASSIGN_OR_RETURN(const int reference, FindVariant(options.reference, variants));
  trace.set_reference(reference);
  return absl::OkStatus();
}

absl::Status Emit(Invocation& invocation, const ReportOptions& options, const TraceReport& report) {
  for (const std::string& path : options.reports) {
    QG_RETURN_IF_ERROR(WriteTextFile(
        path, absl::EndsWith(path, ".html") ? RenderHtml(report) : TraceJson(report)));
    invocation.Say(absl::StrCat("report: ", path));
  }
  if (invocation.is_json()) {
    invocation.out() << TraceJson(report);
  } else if (invocation.is_jsonl()) {
    invocation.out() << TraceJsonLines(report);
  } else {
    PrintTrace(report, invocation.uses_colour(), invocation.out());
  }
  return absl::OkStatus();
}

/// Files that the trace names, so that no report overwrites them.
std::set<std::string> InputsOf(const SessionRunOptions& options, const v1::SessionTrace& trace) {
  std::set<std::string> inputs = {options.spec};
  const auto add = [&](const std::string& tensor) {
    const auto name = ParseTensorName("SPEC", tensor);
    if (name.ok() && !name->path.empty()) inputs.insert(name->path);
  };
  for (const auto& [name, tensor] : trace.parameters()) add(tensor);
  for (const v1::SessionTrace::Step& step : trace.steps()) {
    add(step.x());
    add(step.grad_output());
    for (const auto& [output, tensor] : step.subjects()) add(tensor);
  }
  return inputs;
}

/// The options' subjects beside those of the trace, and what is required of all.
absl::Status SetSubjects(const SessionRunOptions& options, v1::SessionTrace& trace) {
  if (!options.subject.empty()) QG_RETURN_IF_ERROR(AddSubjects(options.subject, trace));
  if (options.require_subject.empty()) return absl::OkStatus();
  bool has_any = false;
  for (v1::SessionTrace::Step& step : *trace.mutable_steps()) {
    if (step.subjects().empty()) continue;
    has_any = true;
    step.set_subjects_requirement(options.require_subject == "bound" ? v1::REQUIREMENT_BOUND
                                                                     : v1::REQUIREMENT_BITWISE);
  }
  if (has_any) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--require-subject: ", options.require_subject,
                                                 "; there is no subject; give --subject"));
}

absl::StatusOr<int> RunTraceCommand(Invocation& invocation, const SessionRunOptions& options) {
  v1::SessionTrace trace;
  QG_RETURN_IF_ERROR(ReadSpecMessage("SPEC", options.spec, trace));
  QG_RETURN_IF_ERROR(SetSubjects(options, trace));
  QG_RETURN_IF_ERROR(CheckReports(options.report, InputsOf(options, trace)));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  QG_RETURN_IF_ERROR(SetTraceVariants(*connection, options.variants, trace));
  if (!options.require.empty() && trace.variants_size() < 2) {
    return absl::InvalidArgumentError(
        "--require: bitwise; there is one variant, and nothing to compare it with");
  }
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(v1::RunTraceRequest request, TraceRequestOf(trace, sources));
  if (!options.require.empty()) request.set_requirement(v1::REQUIREMENT_BITWISE);
  QG_ASSIGN_OR_RETURN(
      TraceReport report,
      PlayTrace(*connection, request, [&](const v1::TraceStep&, int64_t done, int64_t of) {
        invocation.progress().Update(absl::StrCat("step ", done, " of ", of), done, of);
      }));
  invocation.progress().Clear();
  report.command = invocation.CommandLine();
  report.lists_tried = options.lists_tried;
  QG_RETURN_IF_ERROR(Emit(invocation, options.report, report));
  const bool passes = !report.verdict.has_value() || report.verdict->pass();
  return passes ? kExitOk : kExitCriterionFailed;
}

}  // namespace

void AddSessionRunCommand(CLI::App& group, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      group, chosen, "run", "Play the steps of a file under several recipes, side by side",
      kSessionRunExamples, RunTraceCommand);
  command->add_option("SPEC", options->spec, "SessionTrace, JSON or protobuf text")->required();
  AddVariantListOptions(*command, options->variants);
  AddSessionParallelOptions(*command, options->variants);
  command
      ->add_option("--require", options->require,
                   "Criterion: bitwise (every output and parameter equal to the reference's)")
      ->check(CLI::IsMember({"bitwise"}));
  command
      ->add_option("--subject", options->subject,
                   "Tensors computed elsewhere, of steps of the first variant: step1.y, ...")
      ->type_name("FILE");
  command
      ->add_option("--require-subject", options->require_subject,
                   "Criterion of subjects: bitwise (equal to the variant's), or bound (within the "
                   "bound derived for its GEMM)")
      ->check(CLI::IsMember({"bitwise", "bound"}));
  AddTriedOption(*command, options->lists_tried);
  AddReportOptions(*command, options->report);
}

}  // namespace quantgate
