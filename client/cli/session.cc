// quantgate session: training sessions that a server holds.
#include <google/protobuf/util/json_util.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/layer_command.h"
#include "client/cli/number_text.h"
#include "client/cli/output.h"
#include "client/cli/recipe_argument.h"
#include "client/cli/render_json.h"
#include "client/cli/session_run.h"
#include "client/cli/session_trace.h"
#include "client/cli/subcommand.h"
#include "client/cli/text_table.h"
#include "client/download.h"
#include "client/session.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/file_bytes.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

constexpr char kExamples[] = R"(Examples:
  quantgate -s HOST:7470 session open mlp.json                     # prints the session's id
  quantgate -s HOST:7470 session step ID train --x gen:normal,seed=1,shape=64x64,dtype=bf16
  quantgate -s HOST:7470 session step ID backward --grad-output d.safetensors:dy -o grads.safetensors
  quantgate -s HOST:7470 session step ID optimize --learning-rate 0.01
  quantgate -s HOST:7470 session get ID --tensors
  quantgate -s HOST:7470 session get ID --tensor fc1.weight.master -o master.safetensors
  quantgate -s HOST:7470 session checkpoint ID -o step100.safetensors
  quantgate -s HOST:7470 session restore step100.safetensors mlp.json
  quantgate -s HOST:7470 session ls
  quantgate -s HOST:7470 session close ID
  quantgate session run trace.json --recipe bf16,fp8_current --report trace.html

mlp.json is a SessionSpec of the API, and the parameters by name:
  {"layers": [{"name": "fc1", "layer": {"kind": "linear"}}],
   "recipe": {"name": "fp8_delayed"}, "masters": "f32", "adam": {"learning_rate": 0.001},
   "parameters": {"fc1.weight": "gen:normal,seed=1,shape=64x64,dtype=bf16"}}

A session lives in its server's memory until it is closed, its lease ends, or it gives way to
others; a checkpoint outlives it.)";

struct SessionOptions {
  std::string id, spec, checkpoint, output;
  int lease_seconds = 0;
  // step
  std::string kind, x, grad_output, microbatch, is_first, recipe;
  bool recompute = false, calibrate = false, defer_wgrad = false;
  std::optional<float> learning_rate;
  // get
  bool tensors = false;
  std::string tensor;
};

/// A session of a server in this process would end with the command.
absl::StatusOr<Connection*> ConnectToServer(Invocation& invocation) {
  if (invocation.options().server.empty()) {
    return absl::InvalidArgumentError(
        "--server: none; a session lives in a server's memory, and this command's own server ends "
        "with it");
  }
  return invocation.Connect();
}

absl::StatusOr<Json> ReadJson(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("SPEC: cannot read ", path));
  Json json = Json::parse(text.str(), nullptr, false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat("SPEC: ", path, " is no JSON object"));
}

/// The API's SessionSpec of a file, and what it calls parameters.
absl::Status ReadSpec(const std::string& path, v1::SessionSpec& spec,
                      std::map<std::string, std::string>& parameters) {
  QG_ASSIGN_OR_RETURN(Json json, ReadJson(path));
  if (json.contains("parameters")) {
    for (const auto& [name, tensor] : json["parameters"].items()) {
      if (!tensor.is_string()) {
        return absl::InvalidArgumentError(
            absl::StrCat("SPEC: parameters[", name, "] must name a tensor"));
      }
      parameters[name] = tensor.get<std::string>();
    }
    json.erase("parameters");
  }
  const auto status = google::protobuf::util::JsonStringToMessage(json.dump(), &spec);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("SPEC: ", path, ": ", std::string(status.message())));
}

void PrintSessions(Invocation& invocation, const std::vector<v1::Session>& sessions) {
  if (!invocation.is_table()) {
    for (const v1::Session& session : sessions) {
      std::string text;
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = true;
      options.always_print_primitive_fields = true;
      (void)google::protobuf::util::MessageToJsonString(session, &text, options);
      nlohmann::ordered_json json = JsonHead("session");
      json.update(nlohmann::ordered_json::parse(text));
      invocation.out() << JsonText(json, invocation.is_json() ? 2 : -1) << "\n";
    }
    return;
  }
  TextTable table({"session", "<state", "<device", "step", "held", "<in flight", "lease left"});
  for (const v1::Session& session : sessions) {
    table.AddRow({session.session_id(), session.state(), session.device(),
                  absl::StrCat(session.step()), Bytes(session.bytes()),
                  absl::StrJoin(session.microbatches(), " "),
                  absl::StrCat(session.lease_left_seconds(), " s")});
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

absl::StatusOr<int> Open(Invocation& invocation, const SessionOptions& options) {
  v1::OpenSessionRequest request;
  std::map<std::string, std::string> parameters;
  QG_RETURN_IF_ERROR(ReadSpec(options.spec, *request.mutable_spec(), parameters));
  request.set_lease_seconds(options.lease_seconds);
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  for (const auto& [name, text] : parameters) {
    QG_ASSIGN_OR_RETURN((*request.mutable_parameters())[name], sources.Resolve(name, text));
  }
  QG_ASSIGN_OR_RETURN(const ClientSession session, ClientSession::Open(*connection, request));
  PrintSessions(invocation, {session.session()});
  return 0;
}

absl::StatusOr<int> Restore(Invocation& invocation, const SessionOptions& options) {
  v1::RestoreSessionRequest request;
  std::map<std::string, std::string> unread;
  QG_RETURN_IF_ERROR(ReadSpec(options.spec, *request.mutable_spec(), unread));
  request.set_lease_seconds(options.lease_seconds);
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  QG_ASSIGN_OR_RETURN(auto buffer, MapFile(options.checkpoint));
  const auto size = static_cast<int64_t>(buffer->size());
  QG_ASSIGN_OR_RETURN(const Tensor bytes, Tensor::View(DType::kU8, {size}, std::move(buffer)));
  *request.mutable_checkpoint() = DigestOf(bytes.bytes());
  QG_RETURN_IF_ERROR(UploadBlob(*connection, SharedBytesOf(bytes), request.checkpoint(),
                                [&](int64_t done, int64_t of) {
                                  invocation.progress().Update("uploading the checkpoint", done,
                                                               of);
                                })
                         .status());
  QG_ASSIGN_OR_RETURN(const ClientSession session, ClientSession::Restore(*connection, request));
  PrintSessions(invocation, {session.session()});
  return 0;
}

absl::Status SetForward(const SessionOptions& options, TensorSources& sources,
                        v1::SessionStepRequest& request) {
  v1::SessionStepRequest::Forward& forward = *request.mutable_forward();
  if (options.x.empty()) return absl::InvalidArgumentError("--x: none; a forward needs it");
  QG_ASSIGN_OR_RETURN(*forward.mutable_x(), sources.Resolve("--x", options.x));
  forward.set_microbatch(options.microbatch);
  forward.set_evaluate(options.kind == "evaluate");
  forward.set_recompute(options.kind == "recompute");
  forward.set_is_first(options.is_first);
  forward.set_calibrate(options.calibrate);
  forward.set_defer_wgrad(options.defer_wgrad);
  return absl::OkStatus();
}

absl::Status SetBackward(const SessionOptions& options, TensorSources& sources,
                         v1::SessionStepRequest& request) {
  if (options.grad_output.empty()) {
    return absl::InvalidArgumentError("--grad-output: none; a backward needs it");
  }
  request.mutable_backward()->set_microbatch(options.microbatch);
  QG_ASSIGN_OR_RETURN(*request.mutable_backward()->mutable_grad_output(),
                      sources.Resolve("--grad-output", options.grad_output));
  return absl::OkStatus();
}

absl::Status SetStep(const SessionOptions& options, TensorSources& sources,
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
    QG_ASSIGN_OR_RETURN(*request.mutable_change_recipe()->mutable_recipe(),
                        ParseRecipeArgument(options.recipe));
  }
  if (kind == "offload") request.mutable_offload()->set_microbatch(options.microbatch);
  if (kind == "reload") request.mutable_reload()->set_microbatch(options.microbatch);
  return absl::OkStatus();
}

void PrintStep(Invocation& invocation, const v1::SessionStepResponse& response) {
  invocation.out() << "step " << response.step() << "\n";
  TextTable outputs({"output", "<type", "<fingerprint"});
  for (const v1::NamedTensor& output : response.outputs()) {
    outputs.AddRow({output.name(), TypeText(output.type()), FingerprintText(output.fingerprint())});
  }
  if (response.outputs_size() > 0) outputs.Print(invocation.out(), invocation.uses_colour());
  TextTable casts({"quantized", "<by", "amax", "scale", "flushed", "saturated"});
  for (const v1::QuantizationRecord& record : response.quantizations()) {
    casts.AddRow({record.tensor(), record.quantizer(),
                  record.has_amax() ? ShortReal(record.amax()) : "",
                  record.has_scale() ? ShortReal(record.scale()) : "",
                  ShortReal(ShareOf(record.counts().flushed_to_zero(), record.counts())),
                  ShortReal(ShareOf(record.counts().saturated(), record.counts()))});
  }
  if (response.quantizations_size() > 0) casts.Print(invocation.out(), invocation.uses_colour());
  for (const v1::SavedOperand& saved : response.saved()) {
    const bool is_same = saved.at_save().SerializeAsString() == saved.at_use().SerializeAsString();
    if (saved.used() && !is_same) {
      invocation.out() << "CHANGED between save and use: " << saved.name() << "\n";
    }
  }
  for (const std::string& note : response.notes()) invocation.out() << "note: " << note << "\n";
}

absl::StatusOr<int> Step(Invocation& invocation, const SessionOptions& options) {
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {}));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  QG_ASSIGN_OR_RETURN(ClientSession session, ClientSession::Attach(*connection, options.id));
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  v1::SessionStepRequest request;
  QG_RETURN_IF_ERROR(SetStep(options, sources, request));
  request.set_keep_outputs(!options.output.empty());
  QG_ASSIGN_OR_RETURN(const v1::SessionStepResponse response, session.Step(request));
  if (!options.output.empty()) {
    const std::vector<v1::NamedTensor> outputs(response.outputs().begin(),
                                               response.outputs().end());
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, outputs, options.output, {}).status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  PrintStep(invocation, response);
  return 0;
}

absl::StatusOr<int> Get(Invocation& invocation, const SessionOptions& options) {
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  v1::GetSessionRequest request;
  request.set_session_id(options.id);
  request.set_with_tensors(options.tensors);
  request.set_tensor(options.tensor);
  QG_ASSIGN_OR_RETURN(const v1::Session session, connection->GetSession(request));
  if (!options.output.empty() && session.has_tensor()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {}));
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, {session.tensor()}, options.output, {}).status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  PrintSessions(invocation, {session});
  if (!invocation.is_table() || session.tensors_size() == 0) return 0;
  TextTable table({"tensor", "<type", "<fingerprint"});
  for (const v1::StateTensor& tensor : session.tensors()) {
    table.AddRow({tensor.name(), TypeText(tensor.type()), FingerprintText(tensor.fingerprint())});
  }
  table.Print(invocation.out(), invocation.uses_colour());
  return 0;
}

absl::StatusOr<int> List(Invocation& invocation, const SessionOptions&) {
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  std::vector<v1::Session> sessions;
  v1::ListSessionsRequest request;
  do {
    QG_ASSIGN_OR_RETURN(const v1::ListSessionsResponse page, connection->ListSessions(request));
    sessions.insert(sessions.end(), page.sessions().begin(), page.sessions().end());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  PrintSessions(invocation, sessions);
  return 0;
}

absl::StatusOr<int> Checkpoint(Invocation& invocation, const SessionOptions& options) {
  QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {}));
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  QG_ASSIGN_OR_RETURN(ClientSession session, ClientSession::Attach(*connection, options.id));
  QG_ASSIGN_OR_RETURN(const v1::CheckpointResponse checkpoint, session.Checkpoint());
  QG_ASSIGN_OR_RETURN(auto buffer, DownloadBlob(*connection, checkpoint.digest()));
  QG_ASSIGN_OR_RETURN(const TensorFile file, ParseSafetensors(std::move(buffer), "checkpoint"));
  QG_RETURN_IF_ERROR(WriteSafetensors(options.output, file.tensors, file.metadata));
  invocation.Say(absl::StrCat("wrote ", options.output, " of step ", checkpoint.step()));
  return 0;
}

absl::StatusOr<int> Close(Invocation& invocation, const SessionOptions& options) {
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  v1::CloseSessionRequest request;
  request.set_session_id(options.id);
  QG_ASSIGN_OR_RETURN(const v1::Session session, connection->CloseSession(request));
  PrintSessions(invocation, {session});
  return 0;
}

void AddStepOptions(CLI::App* step, SessionOptions& options) {
  step->add_option("ID", options.id, "The session")->required();
  step->add_option("KIND", options.kind)
      ->required()
      ->check(CLI::IsMember({"train", "evaluate", "recompute", "backward", "wgrad", "optimize",
                             "recipe", "offload", "reload"}));
  step->add_option("--x", options.x, "Of a forward")->type_name("TENSOR");
  step->add_option("--grad-output", options.grad_output, "Of a backward")->type_name("TENSOR");
  step->add_option("--microbatch", options.microbatch, "Names a forward until its backward");
  step->add_option("--is-first", options.is_first, "Of a forward: what is cached")
      ->check(CLI::IsMember({"unset", "first", "later"}));
  step->add_flag("--calibrate", options.calibrate, "Of a forward: note amaxes only");
  step->add_flag("--defer-wgrad", options.defer_wgrad, "Of a forward: wgrads come later");
  step->add_option("--learning-rate", options.learning_rate, "Of this update alone");
  step->add_option("--recipe", options.recipe, "Of KIND recipe")->type_name("RECIPE");
  step->add_option("-o,--output", options.output, "Write the step's outputs")->type_name("FILE");
}

}  // namespace

void AddSessionCommand(CLI::App& app, Command& chosen) {
  CLI::App* group = app.add_subcommand(
      "session", "Training sessions: open, step, get, ls, checkpoint, restore, close, run");
  group->require_subcommand(1);
  group->footer(kExamples);
  const auto add = [&](const char* name, const char* summary, auto function) {
    return AddSubcommand(*group, chosen, name, summary, kExamples, function);
  };
  auto [open, open_options] = add("open", "Open a session", Open);
  open->add_option("SPEC", open_options->spec, "JSON file")->required();
  open->add_option("--lease", open_options->lease_seconds, "Seconds without a call; 0: default");
  auto [step, step_options] = add("step", "One step", Step);
  AddStepOptions(step, *step_options);
  auto [get, get_options] = add("get", "What a session holds", Get);
  get->add_option("ID", get_options->id, "The session")->required();
  get->add_flag("--tensors", get_options->tensors, "List every tensor of the state");
  get->add_option("--tensor", get_options->tensor, "One tensor of the state");
  get->add_option("-o,--output", get_options->output, "Write it")->type_name("FILE");
  add("ls", "List open sessions, newest first", List);
  auto [checkpoint, checkpoint_options] = add("checkpoint", "Write the whole state", Checkpoint);
  checkpoint->add_option("ID", checkpoint_options->id, "The session")->required();
  checkpoint->add_option("-o,--output", checkpoint_options->output, "FILE.safetensors")
      ->required()
      ->type_name("FILE");
  auto [restore, restore_options] = add("restore", "Go on from a checkpoint", Restore);
  restore->add_option("CHECKPOINT", restore_options->checkpoint, "FILE.safetensors")->required();
  restore->add_option("SPEC", restore_options->spec, "JSON file")->required();
  restore->add_option("--lease", restore_options->lease_seconds, "Seconds; 0: default");
  auto [close, close_options] = add("close", "Close a session", Close);
  close->add_option("ID", close_options->id, "The session")->required();
  AddSessionRunCommand(*group, chosen);
}

}  // namespace quantgate
