// quantgate run: a layer forward and backward under one recipe.
#include <CLI/CLI.hpp>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kRunExamples[] = R"(Examples:
  quantgate run --layer linear --input m.safetensors:fc1.x --weight m.safetensors:fc1.weight \
      --bias m.safetensors:fc1.bias --grad-output m.safetensors:fc1.dy \
      --recipe fp8_current --backward-override none --arithmetic sm90 -o out.safetensors
  quantgate run --input gen:normal,shape=256x512 --weight gen:normal,seed=1,shape=1024x512 \
      --recipe fp8_current:power_2_scales=true --report run.html
  quantgate run --input x.npy --weight w.npy --recipe bf16 --require bound --format json
  quantgate run --layer layernorm_linear --input m.safetensors:ln2.x \
      --gamma m.safetensors:ln2.weight --beta m.safetensors:ln2.bias \
      --weight m.safetensors:fc1.weight --bias m.safetensors:fc1.bias \
      --grad-output m.safetensors:fc1.dy --return-norm-output --recipe fp8_current
  quantgate run --layer layernorm_mlp --norm rmsnorm,eps=1e-6 --activation swiglu \
      --input gen:normal,shape=64x32 --gamma gen:normal,shape=32 \
      --fc1-weight gen:normal,shape=128x32 --fc2-weight gen:normal,shape=32x64 --recipe mxfp8
  quantgate run --layer grouped_linear --m-splits 32,0,32 --input gen:normal,shape=64x32 \
      --weight w.safetensors:w0 --weight w.safetensors:w1 --weight w.safetensors:w2 --recipe bf16
  quantgate run --layer chain --operation fc=basic_linear --operation act=activation,gelu \
      --input gen:normal,shape=64x32 --param fc.weight=gen:normal,shape=48x32 --recipe bf16
  quantgate run --spec run.json --input gen:normal,shape=64x32
  quantgate run --server gpu-host:7470 --spec run:run-5992f14e0ae90efe7986801aa6ff242f
  quantgate run --tp 2 --parallel-mode row --sequence-parallel --input m.safetensors:fc1.x \
      --weight m.safetensors:fc1.weight --grad-output m.safetensors:fc1.dy \
      --recipe mxfp8 --require bound -o ranks.safetensors

-o FILE gets y, dx, dw (or main_grad), db, dgamma, dbeta and norm_out, as the layer and the operands
given allow; fc1.dw and so on of an MLP, dw.0 and so on of experts.
With --tp the layer runs on one rank and on N, and each output of the latter is compared with that of
the former; --require bitwise asks that all bits are equal. -o FILE gets the whole outputs of the N
ranks, and rank0.y, rank1.y, ... of each rank whose own tensor is another than the whole.
A run informs and exits 0, unless --require states a criterion: then a failure exits 1, and
the first line says why, as far as it can be told, and --tried lists what does not fit.)";

absl::StatusOr<int> RunLayer(Invocation& invocation, const LayerCommand& options) {
  QG_ASSIGN_OR_RETURN(const ReportDocument document, ExecuteLayer(invocation, options, "run"));
  return EmitReport(invocation, options.report, document);
}

}  // namespace

void AddRunCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] =
      AddSubcommand(app, chosen, "run", "Run a layer forward and backward under one recipe",
                    kRunExamples, RunLayer);
  AddLayerOptions(*command, options->layer);
  AddSingleVariantOptions(*command, options->layer);
  AddParallelOptions(*command, options->layer);
  command
      ->add_option("--require", options->layer.require,
                   "Criterion: bound (every output within its derived error bound) or bitwise "
                   "(equal to the exact result)")
      ->check(CLI::IsMember({"bitwise", "bound"}));
  command->add_option("-o,--output", options->output, "Write the outputs as safetensors")
      ->type_name("FILE");
  AddTriedOption(*command, options->lists_tried);
  AddGateReportOptions(*command, options->report);
}

}  // namespace quantgate
