// quantgate session: training sessions that a server holds.
#include "client/cli/commands/session_commands.h"

#include <CLI/CLI.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/blob_transfer.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/json_file.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/cli/output.h"
#include "client/session.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/file_bytes.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/number_text.h"
#include "server/report/render_memory.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr char kSessionExamples[] = R"(Examples:
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
  // get
  bool tensors = false;
  std::string tensor;
};

/// The API's SessionSpec of a file, and what it calls parameters.
absl::Status ReadSpec(const std::string& path, v1::SessionSpec& spec,
                      std::map<std::string, std::string>& parameters) {
  QG_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonObject("SPEC", path));
  if (json.contains("parameters")) {
    if (!json["parameters"].is_object()) {
      return absl::InvalidArgumentError("SPEC: parameters must be an object of tensors by name");
    }
    for (const auto& [name, tensor] : json["parameters"].items()) {
      if (!tensor.is_string()) {
        return absl::InvalidArgumentError(
            absl::StrCat("SPEC: parameters[", name, "] must name a tensor"));
      }
      parameters[name] = tensor.get<std::string>();
    }
    json.erase("parameters");
  }
  return OfField(absl::StrCat("SPEC: ", path), ParseJsonMessage(json.dump(), spec));
}

void PrintSessionTable(Invocation& invocation, const std::vector<v1::Session>& sessions) {
  TextTable table({"session", "<state", "<device", "step", "held", "<in flight", "lease left"});
  for (const v1::Session& session : sessions) {
    table.AddRow({session.session_id(), session.state(), session.device(),
                  absl::StrCat(session.step()), Bytes(session.bytes()),
                  absl::StrJoin(session.microbatches(), " "),
                  absl::StrCat(session.lease_left_seconds(), " s")});
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

void PrintSession(Invocation& invocation, const v1::Session& session) {
  if (!invocation.is_table()) return invocation.PrintJson("session", JsonOf(session));
  PrintSessionTable(invocation, {session});
  for (const std::string& note : session.notes()) invocation.out() << "note: " << note << "\n";
}

/// As JSON one document, however many there are.
void PrintSessions(Invocation& invocation, const std::vector<v1::Session>& sessions) {
  if (invocation.is_table()) return PrintSessionTable(invocation, sessions);
  if (!invocation.is_json()) {
    for (const v1::Session& session : sessions) PrintSession(invocation, session);
    return;
  }
  nlohmann::ordered_json json;
  json["sessions"] = nlohmann::ordered_json::array();
  for (const v1::Session& session : sessions) json["sessions"].push_back(JsonOf(session));
  invocation.PrintJson("sessions", json);
}

absl::StatusOr<int> Open(Invocation& invocation, const SessionOptions& options) {
  v1::OpenSessionRequest request;
  std::map<std::string, std::string> parameters;
  QG_RETURN_IF_ERROR(ReadSpec(options.spec, *request.mutable_spec(), parameters));
  request.set_lease_seconds(options.lease_seconds);
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  for (const auto& [name, text] : parameters) {
    QG_ASSIGN_OR_RETURN(
        (*request.mutable_parameters())[name],
        ResolveOperand(absl::StrCat("SPEC: parameters[", name, "]"), text, sources));
  }
  QG_ASSIGN_OR_RETURN(const ClientSession session, ClientSession::Open(*connection, request));
  PrintSession(invocation, session.session());
  return 0;
}

absl::StatusOr<int> Restore(Invocation& invocation, const SessionOptions& options) {
  v1::RestoreSessionRequest request;
  std::map<std::string, std::string> unread;
  QG_RETURN_IF_ERROR(ReadSpec(options.spec, *request.mutable_spec(), unread));
  request.set_lease_seconds(options.lease_seconds);
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  auto mapped = MapFile(options.checkpoint);
  if (!mapped.ok()) return OfField("CHECKPOINT", mapped.status());
  auto buffer = *std::move(mapped);
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
  PrintSession(invocation, session.session());
  return 0;
}

absl::StatusOr<int> GetSession(Invocation& invocation, const SessionOptions& options) {
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {}));
    if (options.tensor.empty()) {
      return absl::InvalidArgumentError("-o: given without --tensor, which it writes");
    }
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, ConnectToServer(invocation));
  v1::GetSessionRequest request;
  request.set_session_id(options.id);
  request.set_with_tensors(options.tensors);
  request.set_tensor(options.tensor);
  QG_ASSIGN_OR_RETURN(const v1::Session session, connection->GetSession(request));
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, {session.tensor()}, options.output, {}).status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  PrintSession(invocation, session);
  if (invocation.is_table()) {
    PrintSessionMemory(session.memory(), invocation.uses_colour(), invocation.out());
  }
  const bool has_tensor = session.has_tensor() && options.output.empty();
  if (!invocation.is_table() || (session.tensors_size() == 0 && !has_tensor)) return 0;
  TextTable table({"tensor", "<type", "<fingerprint"});
  if (has_tensor) {
    const v1::NamedTensor& tensor = session.tensor();
    table.AddRow({tensor.name(), TypeText(tensor.type()), FingerprintText(tensor.fingerprint())});
  }
  for (const v1::StateTensor& tensor : session.tensors()) {
    table.AddRow({tensor.name(), TypeText(tensor.type()), FingerprintText(tensor.fingerprint())});
  }
  table.Print(invocation.out(), invocation.uses_colour());
  return 0;
}

absl::StatusOr<int> ListSessions(Invocation& invocation, const SessionOptions&) {
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
  PrintSession(invocation, session);
  return 0;
}

}  // namespace

void AddSessionCommand(CLI::App& app, Command& chosen) {
  CLI::App* group = app.add_subcommand(
      "session", "Training sessions: open, step, get, ls, checkpoint, restore, close, run");
  group->require_subcommand(1);
  group->footer(kSessionExamples);
  const auto add = [&](const char* name, const char* summary, auto function) {
    return AddSubcommand(*group, chosen, name, summary, kSessionExamples, function);
  };
  auto [open, open_options] = add("open", "Open a session", Open);
  open->add_option("SPEC", open_options->spec, "JSON file")->required();
  open->add_option("--lease", open_options->lease_seconds, "Seconds without a call; 0: default");
  AddSessionStepCommand(*group, chosen);
  auto [get, get_options] = add("get", "What a session holds", GetSession);
  get->add_option("ID", get_options->id, "The session")->required();
  get->add_flag("--tensors", get_options->tensors, "List every tensor of the state");
  get->add_option("--tensor", get_options->tensor, "One tensor of the state");
  get->add_option("-o,--output", get_options->output, "Write it")->type_name("FILE");
  add("ls", "List open sessions, newest first", ListSessions);
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
