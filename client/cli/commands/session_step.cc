#include "client/cli/commands/session_commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/layer_arguments.h"
#include "client/cli/options/layer_options.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/cli/options/recipe_argument.h"
#include "client/cli/output.h"
#include "client/session.h"
#include "kernels/base/status_macros.h"
#include "server/report/answers/render_step.h"
#include "server/report/report_json.h"

namespace quantgate {
namespace {

constexpr char kSessionStepExamples[] = R"(Examples:
  quantgate -s HOST:7470 session step ID train --x gen:normal,seed=1,shape=64x64,dtype=bf16
  quantgate -s HOST:7470 session step ID backward --grad-output d.safetensors:dy -o grads.safetensors
  quantgate -s HOST:7470 session step ID optimize --learning-rate 0.01
  quantgate -s HOST:7470 session step ID recipe --recipe fp8_current:power_2_scales=true
  quantgate -s HOST:7470 session step ID train --x x.npy --against bf16

--against RECIPE does a forward or a backward also under that recipe, from the same state, and
compares the outputs; the session goes on by its own. A backward wants the same --against as its
forward had.)";

struct SessionStepOptions {
  std::string id, kind, x, grad_output, microbatch, is_first, requires_grad, recipe, output;
  std::string overlap, against;
  std::vector<std::string> amax_groups;
  bool calibrate = false, defer_wgrad = false;
  std::optional<float> learning_rate;
};

/// An option that the kind of step does not take would be read by nobody.
absl::Status CheckStepOptions(const SessionStepOptions& options) {
  using Kinds = std::vector<std::string>;
  const Kinds training = {"train", "recompute"}, forwards = {"train", "evaluate", "recompute"};
  const struct {
    const char* name;
    bool is_given;
    Kinds kinds;
  } uses[] = {
      {"--x", !options.x.empty(), forwards},
      {"--grad-output", !options.grad_output.empty(), {"backward"}},
      {"--microbatch",
       !options.microbatch.empty(),
       {"train", "evaluate", "recompute", "backward", "offload", "reload"}},
      {"--is-first", !options.is_first.empty(), forwards},
      {"--calibrate", options.calibrate, forwards},
      {"--defer-wgrad", options.defer_wgrad, training},
      {"--requires-grad", !options.requires_grad.empty(), training},
      {"--amax-group", !options.amax_groups.empty(), forwards},
      {"--overlap", !options.overlap.empty(), forwards},
      {"--against", !options.against.empty(), {"train", "evaluate", "recompute", "backward"}},
      {"--learning-rate", options.learning_rate.has_value(), {"optimize"}},
      {"--recipe", !options.recipe.empty(), {"recipe"}},
  };
  for (const auto& use : uses) {
    if (!use.is_given) continue;
    if (std::find(use.kinds.begin(), use.kinds.end(), options.kind) != use.kinds.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(use.name, ": given for a step of kind ",
                                                   options.kind, "; it is of ",
                                                   absl::StrJoin(use.kinds, ", ")));
  }
  return absl::OkStatus();
}

absl::Status SetForward(const SessionStepOptions& options, TensorSources& sources,
                        v1::SessionStepRequest& request) {
  v1::SessionStepRequest::Forward& forward = *request.mutable_forward();
  if (options.x.empty()) return absl::InvalidArgumentError("--x: none; a forward needs it");
  QG_ASSIGN_OR_RETURN(*forward.mutable_x(), ResolveOperand("--x", options.x, sources));
  forward.set_microbatch(options.microbatch);
  forward.set_evaluate(options.kind == "evaluate");
  forward.set_recompute(options.kind == "recompute");
  forward.set_is_first(options.is_first);
  forward.set_calibrate(options.calibrate);
  forward.set_defer_wgrad(options.defer_wgrad);
  QG_RETURN_IF_ERROR(ParseAmaxGroupArguments(options.amax_groups, *forward.mutable_amax_groups()));
  if (!options.overlap.empty()) {
    QG_ASSIGN_OR_RETURN(const std::optional<v1::Overlap> overlap,
                        ParseOverlapArgument(options.overlap));
    *forward.mutable_overlap() = overlap.value_or(NoOverlap());
  }
  if (options.requires_grad.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(*forward.mutable_requires_grad(),
                      ParseRequiresGradArgument(options.requires_grad));
  return absl::OkStatus();
}

absl::Status SetBackward(const SessionStepOptions& options, TensorSources& sources,
                         v1::SessionStepRequest& request) {
  if (options.grad_output.empty()) {
    return absl::InvalidArgumentError("--grad-output: none; a backward needs it");
  }
  request.mutable_backward()->set_microbatch(options.microbatch);
  QG_ASSIGN_OR_RETURN(*request.mutable_backward()->mutable_grad_output(),
                      ResolveOperand("--grad-output", options.grad_output, sources));
  return absl::OkStatus();
}

absl::Status SetStep(const SessionStepOptions& options, TensorSources& sources,
                     v1::SessionStepRequest& request) {
  const std::string& kind = options.kind;
  if (kind == "train" || kind == "evaluate" || kind == "recompute") {
    return SetForward(options, sources, request);
  }
  if (kind == "backward") return SetBackward(options, sources, request);
  if (kind == "wgrad") request.mutable_wgrad();
  if (kind == "optimize") {
    request.mutable_optimize();
    if (options.learning_rate.has_value()) {
      request.mutable_optimize()->set_learning_rate(*options.learning_rate);
    }
  }
  if (kind == "recipe") {
    if (options.recipe.empty()) {
      return absl::InvalidArgumentError("--recipe: none; a step of kind recipe needs it");
    }
    QG_ASSIGN_OR_RETURN(*request.mutable_change_recipe()->mutable_recipe(),
                        ParseRecipeArgument(options.recipe));
  }
  if (kind == "offload") request.mutable_offload()->set_microbatch(options.microbatch);
  if (kind == "reload") request.mutable_reload()->set_microbatch(options.microbatch);
  return absl::OkStatus();
}

absl::StatusOr<int> Step(Invocation& invocation, const SessionStepOptions& options) {
  QG_RETURN_IF_ERROR(CheckStepOptions(options));
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {}));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  QG_ASSIGN_OR_RETURN(ClientSession session, ClientSession::Attach(*connection, options.id));
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  v1::SessionStepRequest request;
  QG_RETURN_IF_ERROR(SetStep(options, sources, request));
  if (!options.against.empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_against()->mutable_recipe(),
                        ParseRecipeArgument(options.against, "--against"));
  }
  request.set_keep_outputs(!options.output.empty());
  QG_ASSIGN_OR_RETURN(const v1::SessionStepResponse response, session.Step(request));
  if (!options.output.empty()) {
    const std::vector<v1::NamedTensor> outputs(response.outputs().begin(),
                                               response.outputs().end());
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, outputs, options.output, {}).status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  if (invocation.is_table()) {
    PrintSessionStep(response, invocation.uses_colour(), invocation.out());
  } else {
    invocation.PrintJson("session_step", JsonOf(response));
  }
  return 0;
}

}  // namespace

absl::StatusOr<Connection*> ConnectToServer(Invocation& invocation) {
  if (invocation.options().server.empty()) {
    return absl::InvalidArgumentError(
        "--server: none; a session lives in a server's memory, and this command's own server ends "
        "with it");
  }
  return invocation.Connect();
}

void AddSessionStepCommand(CLI::App& group, Command& chosen) {
  const auto [command, options] =
      AddSubcommand(group, chosen, "step", "One step", kSessionStepExamples, Step);
  command->add_option("ID", options->id, "The session")->required();
  command->add_option("KIND", options->kind)
      ->required()
      ->check(CLI::IsMember({"train", "evaluate", "recompute", "backward", "wgrad", "optimize",
                             "recipe", "offload", "reload"}));
  command->add_option("--x", options->x, "Of a forward")->type_name("TENSOR");
  command->add_option("--grad-output", options->grad_output, "Of a backward")->type_name("TENSOR");
  command->add_option("--microbatch", options->microbatch, "Names a forward until its backward");
  command->add_option("--is-first", options->is_first, "Of a forward: what is cached")
      ->check(CLI::IsMember({"unset", "first", "later"}));
  command->add_flag("--calibrate", options->calibrate, "Of a forward: note amaxes only");
  command->add_flag("--defer-wgrad", options->defer_wgrad, "Of a forward: wgrads come later");
  command
      ->add_option(
          "--requires-grad", options->requires_grad,
          "Of a forward: gradients wanted, of x,w,b,n (n: gamma and beta), or none; default: "
          "all")
      ->type_name("LIST");
  AddAmaxGroupOption(*command, options->amax_groups,
                     "Of a forward and its backward: over which ranks the amax");
  command
      ->add_option("--overlap", options->overlap,
                   "Of a forward and its backward: communicate beside GEMMs in place of the "
                   "session's overlap")
      ->type_name("none|default|KEY=METHOD,...");
  command->add_option("--learning-rate", options->learning_rate, "Of this update alone");
  command->add_option("--recipe", options->recipe, "Of KIND recipe")->type_name("RECIPE");
  command
      ->add_option("--against", options->against,
                   "Of a forward or a backward: also do it under this recipe, and compare")
      ->type_name("RECIPE");
  command->add_option("-o,--output", options->output, "Write the step's outputs")
      ->type_name("FILE");
}

}  // namespace quantgate
