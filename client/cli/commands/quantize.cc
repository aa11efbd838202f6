// quantgate quantize: codes and scales of one tensor under a recipe.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/cli/options/recipe_argument.h"
#include "client/cli/output.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr char kQuantizeExamples[] = R"(Examples:
  quantgate quantize m.safetensors:fc1.x --recipe fp8_current --role input -o codes.safetensors
  quantgate quantize m.safetensors:fc1.dy --recipe nvfp4 --role grad_output --seed 7 \
      --usage rowwise,columnwise -o codes.safetensors
  quantgate quantize m.safetensors:fc1.weight --recipe int4:group=32,zero_point=integer \
      --role weight -o codes.safetensors
  quantgate quantize gen:normal,shape=256x512 --recipe fp8_current:power_2_scales=true \
      --role grad_output --usage rowwise,columnwise --format json

-o FILE gets rowwise_data, rowwise_scale_inv, columnwise_data, columnwise_scale_inv,
rowwise_zero_point, columnwise_zero_point, amax_rowwise, amax_columnwise and scale, as the recipe's
format has them. columnwise_data of all but mxfp8 is the transpose, [K][M]. Codes of four bits are
U8, two a byte.
The file's metadata says what the codes are; dequantize reads it.)";

struct QuantizeOptions {
  std::string tensor, recipe, role, output, scale, amax_history;
  std::string usage = "rowwise";
  std::string scale_layout = "logical";
  std::optional<uint64_t> seed;
};

absl::Status SetUsage(const std::string& usage, v1::QuantizeRequest& request) {
  const std::vector<std::string> names = absl::StrSplit(usage, ',');
  for (const std::string& name : names) {
    if (name == "rowwise") {
      request.set_rowwise(true);
    } else if (name == "columnwise") {
      request.set_columnwise(true);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--usage: \"", name, "\" is none of rowwise, columnwise"));
    }
  }
  return absl::OkStatus();
}

/// "amax 3.5, scale 128, ..." of what the format has.
std::string ScalarsText(const v1::QuantizationRecord& record) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, bool has, float value) {
    if (has) parts.push_back(absl::StrCat(name, " ", ExactReal(value)));
  };
  add("amax", record.has_amax(), record.amax());
  add("columnwise amax", record.has_amax_columnwise(), record.amax_columnwise());
  add("scale", record.has_scale(), record.scale());
  add("scale_inv", record.has_scale_inv(), record.scale_inv());
  return absl::StrJoin(parts, ", ");
}

void PrintQuantization(Invocation& invocation, const v1::QuantizeResponse& response) {
  if (!invocation.is_table()) {
    invocation.PrintJson("quantization", JsonOf(response));
    return;
  }
  const v1::QuantizationRecord& record = response.record();
  invocation.out() << record.role() << ": " << record.quantizer() << "\n\n";
  TextTable table({"tensor", "<type", "<fingerprint"});
  for (const v1::NamedTensor& tensor : response.tensors()) {
    table.AddRow({tensor.name(), TypeText(tensor.type()), FingerprintText(tensor.fingerprint())});
  }
  table.Print(invocation.out(), invocation.uses_colour());
  const v1::QuantizationCounts& counts = record.counts();
  const std::string scalars = ScalarsText(record);
  invocation.out() << "\n" << scalars << (scalars.empty() ? "" : "\n");
  if (record.has_seed()) {
    invocation.out() << "stochastic rounding: seed " << record.seed() << ", call id "
                     << record.call_id() << "\n";
  }
  TextTable classes(
      {"elements", "normal", "zero", "subnormal", "to zero", "saturated", "inf", "nan"});
  classes.AddRow({"", Count(counts.normal()), Count(counts.zero()), Count(counts.subnormal()),
                  Count(counts.flushed_to_zero()), Count(counts.saturated()),
                  Count(counts.infinite()), Count(counts.nan())});
  classes.Print(invocation.out(), invocation.uses_colour());
}

absl::StatusOr<int> Quantize(Invocation& invocation, const QuantizeOptions& options) {
  v1::QuantizeRequest request;
  QG_ASSIGN_OR_RETURN(*request.mutable_recipe(), ParseRecipeArgument(options.recipe));
  QG_RETURN_IF_ERROR(SetUsage(options.usage, request));
  request.set_role(options.role);
  request.set_seed(options.seed.value_or(0));
  request.set_scale_layout(options.scale_layout);
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(*request.mutable_tensor(), sources.Resolve("TENSOR", options.tensor));
  if (!options.scale.empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_scale(), sources.Resolve("--scale", options.scale));
  }
  if (!options.amax_history.empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_amax_history(),
                        sources.Resolve("--amax-history", options.amax_history));
  }
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, sources.files()));
  }
  QG_ASSIGN_OR_RETURN(const v1::QuantizeResponse response, connection->Quantize(request));
  if (!options.output.empty()) {
    FileMetadata metadata = MetadataOf(response.description());
    metadata["quantgate.recipe"] = RecipeText(request.recipe());
    metadata["quantgate.role"] = options.role;
    metadata["quantgate.quantizer"] = response.record().quantizer();
    metadata["quantgate.source_dtype"] = response.source_dtype();
    if (response.record().has_seed()) {
      metadata["quantgate.seed"] = absl::StrCat(response.record().seed());
      metadata["quantgate.call_id"] = absl::StrCat(response.record().call_id());
    }
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection,
                                     {response.tensors().begin(), response.tensors().end()},
                                     options.output, metadata)
                           .status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  PrintQuantization(invocation, response);
  return 0;
}

}  // namespace

void AddQuantizeCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "quantize", "Quantize one tensor under a recipe", kQuantizeExamples, Quantize);
  command->add_option("TENSOR", options->tensor, "The tensor to quantize")->required();
  command->add_option("--recipe", options->recipe, "NAME, NAME:KNOB=VALUE,... or @FILE.json")
      ->required()
      ->type_name("RECIPE");
  command->add_option("--role", options->role, "What the tensor is in its GEMMs")
      ->required()
      ->check(CLI::IsMember({"input", "weight", "grad_output"}));
  command->add_option("--usage", options->usage, "rowwise, columnwise or rowwise,columnwise")
      ->capture_default_str()
      ->type_name("LIST");
  AddSeedOption(*command, options->seed);
  command
      ->add_option("--scale-layout", options->scale_layout,
                   "Of block scales: logical, padded as Transformer Engine keeps them, swizzled as "
                   "tensor cores read them, k_major, mn_major, tma_aligned, or of powers of two "
                   "ue8m0 (bytes) and packed_ue8m0 (DeepGEMM's i32)")
      ->check(CLI::IsMember(LayoutNames()))
      ->type_name("LAYOUT")
      ->capture_default_str();
  command->add_option("--scale", options->scale, "Delayed scaling: f32 [1]; with --amax-history")
      ->type_name("TENSOR");
  command
      ->add_option("--amax-history", options->amax_history,
                   "Delayed scaling: f32 [L]; comes back with this tensor's amax in row 0")
      ->type_name("TENSOR");
  command->add_option("-o,--output", options->output, "Write codes and scales as safetensors")
      ->type_name("FILE");
}

}  // namespace quantgate
