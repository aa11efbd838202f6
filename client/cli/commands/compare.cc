// quantgate compare: a layer under many recipes, overrides and arithmetics; every variant against
// the reference, the exact result and each other.
#include <CLI/CLI.hpp>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kCompareExamples[] = R"(Examples:
  quantgate compare --input m.safetensors:fc1.x --weight m.safetensors:fc1.weight \
      --grad-output m.safetensors:fc1.dy --recipe bf16,fp8_current \
      --backward-override none,high_precision,dequantized --report matrix.html
  quantgate compare --input gen:lognormal_outliers,shape=256x512 \
      --weight gen:normal,seed=1,shape=1024x512 \
      --recipe fp8_current --recipe fp8_current:power_2_scales=true,fp8_format=e4m3 \
      --arithmetic sm90,exact --reference fp8_current/none/exact
  quantgate compare --input x.npy --weight w.npy --recipe bf16 --arithmetic sm90,fp32 \
      --reference 0 --require bitwise
  quantgate compare --layer layernorm_linear --norm rmsnorm --input m.safetensors:ln2.x \
      --gamma m.safetensors:ln2.weight --weight m.safetensors:fc1.weight \
      --recipe bf16,fp8_delayed,fp8_current

  quantgate compare --tp 4 --parallel-mode column --input x.npy --weight w.npy \
      --recipe bf16,fp8_current,mxfp8

With --tp each variant is followed by its twin on N ranks, two numbers for one.
The variants are recipes x overrides x arithmetics, numbered from 0, arithmetics fastest.
A comparison informs and exits 0, unless --require states a criterion: then a failure exits 1,
and the first line says why, as far as it can be told, and --tried lists what does not fit.)";

absl::StatusOr<int> Compare(Invocation& invocation, const LayerCommand& options) {
  QG_ASSIGN_OR_RETURN(const ReportDocument document, ExecuteLayer(invocation, options, "compare"));
  return EmitReport(invocation, options.report, document);
}

}  // namespace

void AddCompareCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "compare", "Compare recipes, backward overrides and arithmetics on one layer",
      kCompareExamples, Compare);
  AddLayerOptions(*command, options->layer);
  AddVariantListOptions(*command, options->layer);
  AddParallelOptions(*command, options->layer);
  command
      ->add_option(
          "--require", options->layer.require,
          "Criterion: bitwise (every output equals the reference's) or bound (every output "
          "within its derived error bound)")
      ->check(CLI::IsMember({"bitwise", "bound"}));
  AddTriedOption(*command, options->lists_tried);
  AddGateReportOptions(*command, options->report);
}

}  // namespace quantgate
