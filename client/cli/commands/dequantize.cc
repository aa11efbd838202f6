// quantgate dequantize: the values that codes and scales stand for.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/cli/output.h"
#include "client/status.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"

namespace quantgate {
namespace {

constexpr char kDequantizeExamples[] = R"(Examples:
  quantgate dequantize codes.safetensors -o values.safetensors
  quantgate dequantize codes.safetensors --usage columnwise --out-dtype bf16 -o values.safetensors

  quantgate dequantize theirs.safetensors --format-hint nvfp4:e4m3_max=256 -o values.safetensors

FILE is what `quantgate quantize -o` writes, or has its tensors under the same names. What the
codes are its metadata says; without it their types and shapes, where those leave no doubt, or
--format-hint. -o FILE gets `data`, in the shape of the source.)";

struct DequantizeOptions {
  std::string file, output;
  std::string usage;
  std::string format_hint, scale_layout;
  std::string out_dtype = "f32";
};

/// The description of the codes by the file's metadata, overridden by --format-hint and
/// --scale-layout.
absl::StatusOr<v1::QuantizedDescription> DescribeQuantized(const TensorFile& file,
                                                           const DequantizeOptions& options) {
  QG_ASSIGN_OR_RETURN(v1::QuantizedDescription description, DescriptionOf(file.metadata));
  if (!options.scale_layout.empty()) description.set_scale_layout(options.scale_layout);
  if (options.format_hint.empty()) return description;
  QG_ASSIGN_OR_RETURN(const v1::QuantizedDirection hint,
                      ParseFormatHint("--format-hint", options.format_hint));
  const bool reads_rowwise =
      options.usage.empty() ? file.Find("rowwise_data").ok() : options.usage == "rowwise";
  (reads_rowwise ? *description.mutable_rowwise() : *description.mutable_columnwise()) = hint;
  return description;
}

/// `status` of a request whose description comes from `hint`. Where it refuses the description, or
/// codes and scales that do not fit it, it names the hint as it was typed.
absl::Status NameHint(const absl::Status& status, const std::string& hint) {
  const std::optional<v1::ErrorDetail> detail = ErrorDetailOf(status);
  if (!detail.has_value()) return status;
  const std::string named = absl::StrCat("--format-hint: \"", hint, "\"");
  for (const char* direction : {"description.rowwise", "description.columnwise"}) {
    absl::string_view part = detail->field();
    if (!absl::ConsumePrefix(&part, direction)) continue;
    // The option stands for the direction; only a part of it is still to be named.
    if (!absl::ConsumePrefix(&part, "."))
      return absl::Status(status.code(), absl::StrCat(named, ": ", detail->rule()));
    return absl::Status(status.code(), absl::StrCat(named, ": ", part, " is ", detail->value(),
                                                    ": ", detail->rule()));
  }
  const bool is_of_codes = absl::StartsWith(detail->field(), "tensors") ||
                           absl::StartsWith(detail->field(), "description");
  return is_of_codes ? OfField(named, status) : status;
}

absl::StatusOr<int> Dequantize(Invocation& invocation, const DequantizeOptions& options) {
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors("FILE", options.file));
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, {options.file}));
  }
  if (!options.usage.empty()) {
    const absl::Status found = file.Find(absl::StrCat(options.usage, "_data")).status();
    if (!found.ok()) {
      return absl::Status(found.code(), absl::StrCat("--usage: \"", options.usage,
                                                     "\": ", options.file, ": ", found.message()));
    }
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  v1::DequantizeRequest request;
  request.set_usage(options.usage);
  request.set_out_dtype(options.out_dtype);
  QG_ASSIGN_OR_RETURN(*request.mutable_description(), DescribeQuantized(file, options));
  for (const NamedTensor& tensor : file.tensors) {
    QG_ASSIGN_OR_RETURN((*request.mutable_tensors())[tensor.name],
                        sources.Place(absl::StrCat(options.file, ":", tensor.name), tensor.tensor));
  }
  absl::StatusOr<v1::DequantizeResponse> answer = connection->Dequantize(request);
  if (!answer.ok() && !options.format_hint.empty()) {
    return NameHint(answer.status(), options.format_hint);
  }
  QG_ASSIGN_OR_RETURN(const v1::DequantizeResponse response, std::move(answer));
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, {response.data()}, options.output, {}).status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  if (invocation.is_table()) {
    invocation.out() << "data  " << TypeText(response.data().type()) << "  "
                     << FingerprintText(response.data().fingerprint()) << "\n";
    return 0;
  }
  invocation.PrintJson("dequantization", JsonOf(response));
  return 0;
}

}  // namespace

void AddDequantizeCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] =
      AddSubcommand(app, chosen, "dequantize", "Values of the codes and scales that quantize wrote",
                    kDequantizeExamples, Dequantize);
  command->add_option("FILE", options->file, "safetensors that quantize -o wrote")->required();
  command->add_option("--usage", options->usage, "Default: rowwise if the file has it")
      ->check(CLI::IsMember({"rowwise", "columnwise"}));
  command
      ->add_option("--format-hint", options->format_hint,
                   "FORMAT[:element=DTYPE,block_dim=N,e4m3_max=N,group=N,zero_point=KIND], where "
                   "the file does "
                   "not say")
      ->type_name("HINT");
  command
      ->add_option("--scale-layout", options->scale_layout,
                   "Of block scales, where the file does not say; as of quantize")
      ->check(CLI::IsMember(LayoutNames()))
      ->type_name("LAYOUT");
  command->add_option("--out-dtype", options->out_dtype, "f32, bf16 or f16")
      ->capture_default_str()
      ->type_name("DTYPE");
  command->add_option("-o,--output", options->output, "Write the values as safetensors")
      ->type_name("FILE");
}

}  // namespace quantgate
