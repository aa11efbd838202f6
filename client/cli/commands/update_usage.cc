// quantgate update-usage: which directions a quantized tensor has, and one more or one less.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/cli/output.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr char kUpdateUsageExamples[] = R"(Examples:
  quantgate update-usage codes.safetensors
  quantgate update-usage codes.safetensors --columnwise true -o both.safetensors
  quantgate update-usage both.safetensors --rowwise false -o columnwise.safetensors

FILE is what `quantgate quantize -o` writes. Without --rowwise and --columnwise the command says
which directions the tensor has, and which could be derived. A direction is derived where the
format permits that without loss: columnwise from rowwise codes of per-tensor FP8, and of square
tiles of fp8_block and nvfp4. Everything else is refused, and nothing is written.)";

struct UpdateUsageOptions {
  std::string file, output;
  std::optional<bool> rowwise, columnwise;
};

std::string StateText(const v1::UsageState& state) {
  if (state.present()) return state.droppable() ? "present" : "present, the only one";
  if (state.derivable()) return "absent, can be derived";
  return absl::StrCat("absent: ", state.reason());
}

void PrintUsages(Invocation& invocation, const v1::UpdateUsagesResponse& response) {
  if (!invocation.is_table()) {
    invocation.PrintJson("usages", JsonOf(response));
    return;
  }
  if (response.tensors().empty()) {
    invocation.out() << "rowwise     " << StateText(response.rowwise()) << "\ncolumnwise  "
                     << StateText(response.columnwise()) << "\n";
    return;
  }
  TextTable table({"tensor", "<type", "<fingerprint"});
  for (const v1::NamedTensor& tensor : response.tensors()) {
    table.AddRow({tensor.name(), TypeText(tensor.type()), FingerprintText(tensor.fingerprint())});
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

/// Refuses to derive a direction of a file whose directions had rules of their own, one of which
/// the file may have dropped: what quantize wrote of them stays in it, and would be false.
absl::Status CheckOneRule(const UpdateUsageOptions& options, const TensorFile& file) {
  const auto quantizer = file.metadata.find("quantgate.quantizer");
  // QuantizerText names directions where their rules differ.
  if (quantizer == file.metadata.end() || !absl::StartsWith(quantizer->second, "rowwise ")) {
    return absl::OkStatus();
  }
  for (const auto& [wanted, name] :
       {std::pair(options.rowwise, "rowwise"), std::pair(options.columnwise, "columnwise")}) {
    if (!wanted.value_or(false) || file.Find(absl::StrCat(name, "_data")).ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, ": true: ", options.file,
                     " was quantized by rules that differ by direction (", quantizer->second,
                     "), so that neither follows from the other; quantize the source for it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> UpdateUsage(Invocation& invocation, const UpdateUsageOptions& options) {
  const bool is_query = !options.rowwise.has_value() && !options.columnwise.has_value();
  if (is_query && !options.output.empty()) {
    return absl::InvalidArgumentError(
        "-o: given without --rowwise and --columnwise: a query writes nothing");
  }
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors("FILE", options.file));
  QG_RETURN_IF_ERROR(CheckOneRule(options, file));
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {options.file}));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  v1::UpdateUsagesRequest request;
  QG_ASSIGN_OR_RETURN(*request.mutable_tensor(), QuantizedOf(file, options.file, sources));
  if (options.rowwise.has_value()) request.set_rowwise(*options.rowwise);
  if (options.columnwise.has_value()) request.set_columnwise(*options.columnwise);
  QG_ASSIGN_OR_RETURN(const v1::UpdateUsagesResponse response, connection->UpdateUsages(request));
  if (!options.output.empty()) {
    FileMetadata metadata = file.metadata;
    RemoveDescription(metadata);
    for (auto& [key, value] : MetadataOf(response.description())) metadata[key] = value;
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection,
                                     {response.tensors().begin(), response.tensors().end()},
                                     options.output, metadata)
                           .status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  PrintUsages(invocation, response);
  return 0;
}

}  // namespace

void AddUpdateUsageCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "update-usage", "Say, derive or drop the directions of a quantized tensor",
      kUpdateUsageExamples, UpdateUsage);
  command->add_option("FILE", options->file, "Codes and scales: what quantize -o writes")
      ->required();
  // The help says the words already, as the type.
  const CLI::Validator words = CLI::IsMember({"true", "false"}).description("");
  command->add_option("--rowwise", options->rowwise, "Whether it is to hold rowwise codes")
      ->type_name("true|false")
      ->check(words);
  command->add_option("--columnwise", options->columnwise, "Whether it is to hold columnwise codes")
      ->type_name("true|false")
      ->check(words);
  command->add_option("-o,--output", options->output, "Write codes and scales as safetensors")
      ->type_name("FILE");
}

}  // namespace quantgate
