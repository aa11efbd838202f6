#include "client/cli/layer_command.h"

#include <google/protobuf/util/message_differencer.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/options/invocation.h"
#include "client/cli/options/layer_arguments.h"
#include "client/cli/options/run_spec.h"
#include "client/cli/output.h"
#include "client/execute.h"
#include "client/layer_report.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

void ShowEvent(Invocation& invocation, const v1::RunEvent& event) {
  if (event.has_accepted() && event.accepted().queue_position() > 0) {
    invocation.Say(absl::StrCat("run ", event.run_id(), ": ", event.accepted().queue_position(),
                                " ahead in the queue"));
  }
  if (event.has_progress()) {
    const v1::RunProgress& progress = event.progress();
    invocation.progress().Update(progress.what(), progress.step(), progress.step_count());
  }
}

absl::StatusOr<v1::RunReport> FetchRepeated(Invocation& invocation, const std::string& spec) {
  if (invocation.options().server.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--spec: \"", spec, "\": no run is kept without --server (and QUANTGATE_SERVER)"));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  return FetchRun(*connection, spec);
}

/// The variant whose outputs -o writes: the only one, or the one on several ranks of twins.
absl::StatusOr<int> WrittenVariant(const v1::RunSpec& spec) {
  if (spec.variants_size() == 1) return 0;
  if (spec.variants_size() == 2 && !spec.variants(0).has_parallel()) {
    v1::Variant on_one_rank = spec.variants(1);
    on_one_rank.clear_parallel();
    if (google::protobuf::util::MessageDifferencer::Equals(on_one_rank, spec.variants(0))) return 1;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "-o: ", spec.variants_size(),
      " variants; it takes the outputs of one, which may have a twin on several ranks"));
}

}  // namespace

TensorSources::Progress UploadProgressOf(Invocation& invocation) {
  return [&invocation](const std::string& what, int64_t done, int64_t size) {
    invocation.progress().Update(absl::StrCat(size > 0 ? "uploading " : "making ", what), done,
                                 size);
  };
}

absl::StatusOr<ReportDocument> ExecuteLayer(Invocation& invocation, const LayerCommand& run,
                                            const std::string& kind) {
  // What is wrong with the command line itself is said before a server is asked.
  QG_RETURN_IF_ERROR(CheckReports(run.report, {}));
  std::optional<v1::RunReport> repeated;
  if (NamesRun(run.layer.spec)) {
    QG_ASSIGN_OR_RETURN(repeated, FetchRepeated(invocation, run.layer.spec));
  }
  v1::RunSpec base;
  if (repeated.has_value()) {
    base = repeated->request();
  } else if (!run.layer.spec.empty()) {
    QG_ASSIGN_OR_RETURN(base, ReadRunSpec(run.layer.spec));
  }
  QG_RETURN_IF_ERROR(CheckLayerOptions(run.layer, base));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(v1::RunSpec spec,
                      BuildRunSpec(*connection, run.layer, std::move(base), sources));
  std::set<std::string> inputs = sources.files();
  inputs.insert(run.more_inputs.begin(), run.more_inputs.end());
  QG_RETURN_IF_ERROR(CheckReports(run.report, inputs));
  if (run.variants != 0 && spec.variants_size() != run.variants) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--recipe: ", spec.variants_size() / run.variants, " variants; ", kind, " takes one"));
  }
  int written = 0;
  if (!run.output.empty()) {
    QG_ASSIGN_OR_RETURN(written, WrittenVariant(spec));
    QG_RETURN_IF_ERROR(CheckOutput("-o", run.output, {".safetensors"}, inputs));
  }
  for (const auto& [name, tensor] : run.subjects) {
    QG_ASSIGN_OR_RETURN((*spec.mutable_subjects())[name], sources.Place(name, tensor));
  }
  spec.set_keep_outputs(run.keep_outputs || !run.output.empty());

  QG_ASSIGN_OR_RETURN(v1::RunReport ran,
                      ExecuteRun(*connection, spec,
                                 [&](const v1::RunEvent& event) { ShowEvent(invocation, event); }));
  invocation.progress().Clear();
  ReportDocument document = DocumentOfRun(kind, spec.step().layer().kind(), std::move(ran));
  if (repeated.has_value()) QG_RETURN_IF_ERROR(CheckSameInputs(*repeated, document.run));
  document.command = invocation.CommandLine();
  if (const std::string& server = invocation.options().server; server.empty()) {
    // The run is gone with this process; what was typed is not.
    document.run.set_reproduce(document.command);
  } else if (absl::string_view command = document.run.reproduce();
             absl::ConsumePrefix(&command, "quantgate ")) {
    document.run.set_reproduce(
        absl::StrCat("quantgate --server ", ShellQuoted(server), " ", command));
  }
  document.lists_tried = run.lists_tried;
  if (!run.output.empty() && document.run.variants_size() > written) {
    const v1::VariantReport& variant = document.run.variants(written);
    std::map<std::string, std::string> metadata = {
        {"quantgate.layer", spec.step().layer().kind()},
        {"quantgate.recipe", variant.recipe()},
        {"quantgate.backward_override", variant.backward_override()},
        {"quantgate.arithmetic", variant.arithmetic()},
        {"quantgate.version", document.run.environment().version()}};
    if (variant.ranks_size() > 0) metadata["quantgate.ranks"] = absl::StrCat(variant.ranks_size());
    std::vector<v1::NamedTensor> tensors = OutputTensors(variant);
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, tensors, run.output, metadata).status());
    invocation.Say(absl::StrCat("wrote ", run.output));
  }
  return document;
}

}  // namespace quantgate
