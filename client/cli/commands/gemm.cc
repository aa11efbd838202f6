// quantgate gemm: one GEMM under a named arithmetic.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/algorithm_results.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/gemm_options.h"
#include "client/cli/output.h"
#include "kernels/base/status_macros.h"
#include "server/report/device_text.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"

namespace quantgate {
namespace {

constexpr char kGemmExamples[] = R"(Examples:
  quantgate gemm --a x.npy --b w.npy --arithmetic sm90 --out-dtype bf16 -o d.safetensors
  quantgate gemm --a qx.safetensors:rowwise_data --a-scale-inv qx.safetensors:rowwise_scale_inv \
      --b qw.safetensors:rowwise_data --b-scale-inv qw.safetensors:rowwise_scale_inv \
      --arithmetic sm90:split --out-dtype f32 -o d.safetensors
  quantgate gemm --a t.safetensors:bytes@f8_e4m3 --b t.safetensors:others@f8_e5m2 \
      --arithmetic exact --format json
  quantgate gemm --device cuda --a x.npy --b w.npy --arithmetic cublaslt --every-algorithm
  quantgate gemm --a qx.safetensors:rowwise_data --a-scale-inv qx.safetensors:rowwise_scale_inv \
      --a-amax qx.safetensors:amax_rowwise --b qw.safetensors:rowwise_data \
      --b-scale-inv qw.safetensors:rowwise_scale_inv --b-amax qw.safetensors:amax_rowwise

d = alpha a b^T + beta c + bias, a [M][K] and b [N][K] (layout tn). --a-scaling says how a
scale applies where the type and shape of the scale leave a doubt: tensor (one for all), outer
(one per row), 1x128 and 128x128 (fp32), mx32 (E8M0), nv16 (E4M3, with --a-amax).
--every-algorithm runs every algorithm that cuBLASLt's heuristic returns, and says which give
other bits than the first and than their model. It informs: the exit code is 0 either way.)";

struct GemmCommand {
  GemmOptions gemm;
  std::string arithmetic = "auto", out_dtype = "f32", output;
  bool every_algorithm = false;
};

void PrintProduct(Invocation& invocation, const v1::GemmResponse& response) {
  if (!invocation.is_table()) {
    invocation.PrintJson("gemm", JsonOf(response));
    return;
  }
  invocation.out() << response.text() << "\nran: " << response.arithmetic() << ", "
                   << Seconds(response.seconds()) << "\nd  " << TypeText(response.d().type())
                   << "  " << FingerprintText(response.d().fingerprint()) << "\n";
  if (!response.note().empty()) invocation.out() << response.note() << "\n";
  for (const v1::DeviceDescription& device : response.environment().devices()) {
    invocation.out() << DeviceText(device, response.environment()) << "\n";
  }
  if (response.algorithms_size() > 0) {
    PrintAlgorithms(response, invocation.uses_colour(), invocation.out());
  }
}

absl::StatusOr<int> Gemm(Invocation& invocation, const GemmCommand& options) {
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(v1::GemmRequest request, MakeGemmRequest(options.gemm, sources));
  request.set_arithmetic(options.arithmetic);
  request.set_out_dtype(options.out_dtype);
  request.set_every_algorithm(options.every_algorithm);
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors"}, sources.files()));
  }
  QG_ASSIGN_OR_RETURN(const v1::GemmResponse response, connection->Gemm(request));
  if (!options.output.empty()) {
    std::vector<v1::NamedTensor> tensors = {response.d()};
    tensors[0].set_name("d");
    if (response.has_amax()) tensors.push_back(response.amax());
    QG_RETURN_IF_ERROR(FetchAndWrite(*connection, tensors, options.output,
                                     {{"quantgate.arithmetic", response.arithmetic()},
                                      {"quantgate.gemm", response.text()}})
                           .status());
    invocation.Say(absl::StrCat("wrote ", options.output));
  }
  PrintProduct(invocation, response);
  return 0;
}

}  // namespace

void AddGemmCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] =
      AddSubcommand(app, chosen, "gemm", "One GEMM under a named arithmetic", kGemmExamples, Gemm);
  AddGemmOptions(*command, options->gemm, /*are_operands_required=*/true);
  command->add_option("--arithmetic", options->arithmetic, "auto, sm90, sm90:split, exact, ...")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--out-dtype", options->out_dtype, "f32, bf16, f16, f8_e4m3 or f8_e5m2")
      ->capture_default_str()
      ->type_name("DTYPE");
  command->add_flag("--every-algorithm", options->every_algorithm,
                    "Run every algorithm of cuBLASLt's heuristic and compare them");
  command->add_option("-o,--output", options->output, "Write d as safetensors")->type_name("FILE");
}

}  // namespace quantgate
