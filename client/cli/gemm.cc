// quantgate gemm: one GEMM under a named arithmetic.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/layer_command.h"
#include "client/cli/number_text.h"
#include "client/cli/output.h"
#include "client/cli/render_json.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kExamples[] = R"(Examples:
  quantgate gemm --a x.npy --b w.npy --arithmetic sm90 --out-dtype bf16 -o d.safetensors
  quantgate gemm --a qx.safetensors:rowwise_data --a-scale-inv qx.safetensors:rowwise_scale_inv \
      --b qw.safetensors:rowwise_data --b-scale-inv qw.safetensors:rowwise_scale_inv \
      --arithmetic sm90:split --out-dtype f32 -o d.safetensors
  quantgate gemm --a t.safetensors:bytes@f8_e4m3 --b t.safetensors:others@f8_e5m2 \
      --arithmetic exact --format json

d = alpha a b^T + beta c + bias, a [M][K] and b [N][K] (layout tn). --a-scaling says how a
scale applies where the shape of the scale leaves a doubt: tensor (one for all) or outer (one
per row).)";

struct OperandOptions {
  std::string tensor, scale_inv, scaling;
};

struct GemmOptions {
  OperandOptions a, b;
  std::string c, bias, layout = "tn", arithmetic = "auto", out_dtype = "f32", output;
  std::optional<float> alpha, d_scale;
  float beta = 0;
  bool in_place = false;
};

absl::Status SetOperand(const std::string& option, const OperandOptions& options,
                        TensorSources& sources, v1::GemmOperandSpec& operand) {
  QG_ASSIGN_OR_RETURN(*operand.mutable_tensor(), sources.Resolve(option, options.tensor));
  if (!options.scale_inv.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_scale_inv(),
                        sources.Resolve(option + "-scale-inv", options.scale_inv));
  }
  operand.set_scaling(options.scaling);
  return absl::OkStatus();
}

absl::StatusOr<v1::GemmRequest> MakeRequest(const GemmOptions& options, TensorSources& sources) {
  v1::GemmRequest request;
  QG_RETURN_IF_ERROR(SetOperand("--a", options.a, sources, *request.mutable_a()));
  QG_RETURN_IF_ERROR(SetOperand("--b", options.b, sources, *request.mutable_b()));
  if (!options.c.empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_c(), sources.Resolve("--c", options.c));
  }
  if (!options.bias.empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_bias(), sources.Resolve("--bias", options.bias));
  }
  if (options.d_scale) *request.mutable_d_scale() = InlineScalar(*options.d_scale);
  if (options.alpha) request.set_alpha(*options.alpha);
  request.set_beta(options.beta);
  request.set_in_place(options.in_place);
  request.set_layout(options.layout);
  request.set_arithmetic(options.arithmetic);
  request.set_out_dtype(options.out_dtype);
  return request;
}

void Print(Invocation& invocation, const v1::GemmResponse& response) {
  if (!invocation.is_table()) {
    nlohmann::ordered_json json = JsonHead("gemm");
    json["d"] = JsonOf(response.d());
    json["amax"] = response.has_amax() ? JsonOf(response.amax()) : nlohmann::ordered_json(nullptr);
    json["arithmetic"] = response.arithmetic();
    json["text"] = response.text();
    json["note"] = response.note();
    json["seconds"] = response.seconds();
    invocation.out() << JsonText(json, invocation.is_json() ? 2 : -1) << "\n";
    return;
  }
  invocation.out() << response.text() << "\nran: " << response.arithmetic() << ", "
                   << Seconds(response.seconds()) << "\nd  " << TypeText(response.d().type())
                   << "  " << FingerprintText(response.d().fingerprint()) << "\n";
  if (!response.note().empty()) invocation.out() << response.note() << "\n";
}

absl::StatusOr<int> Gemm(Invocation& invocation, const GemmOptions& options) {
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(const v1::GemmRequest request, MakeRequest(options, sources));
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
  Print(invocation, response);
  return 0;
}

void AddOperand(CLI::App& command, const std::string& option, OperandOptions& options) {
  command.add_option(option, options.tensor, "Operand: high precision, or codes")
      ->required()
      ->type_name("TENSOR");
  command.add_option(option + "-scale-inv", options.scale_inv, "Scale of its codes, f32")
      ->type_name("TENSOR");
  command.add_option(option + "-scaling", options.scaling, "How the scale applies: tensor, outer")
      ->type_name("NAME");
}

}  // namespace

void AddGemmCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<GemmOptions>();
  CLI::App* command = app.add_subcommand("gemm", "One GEMM under a named arithmetic");
  command->footer(kExamples);
  AddOperand(*command, "--a", options->a);
  AddOperand(*command, "--b", options->b);
  command->add_option("--c", options->c, "[M][N] of the output's dtype")->type_name("TENSOR");
  command->add_option("--alpha", options->alpha, "Default: 1")->type_name("F");
  command->add_option("--beta", options->beta, "Default: 0")->type_name("F");
  command->add_flag("--in-place", options->in_place, "c is the memory of d: rounded before added");
  command->add_option("--bias", options->bias, "[N]")->type_name("TENSOR");
  command->add_option("--d-scale", options->d_scale, "Scale of an FP8 output")->type_name("F");
  command->add_option("--layout", options->layout, "tn (default), nn or nt")->type_name("NAME");
  command->add_option("--arithmetic", options->arithmetic, "auto, sm90, sm90:split, exact, ...")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--out-dtype", options->out_dtype, "f32, bf16, f16, f8_e4m3 or f8_e5m2")
      ->capture_default_str()
      ->type_name("DTYPE");
  command->add_option("-o,--output", options->output, "Write d as safetensors")->type_name("FILE");
  command->callback([options, &chosen] {
    chosen = [options](Invocation& invocation) { return Gemm(invocation, *options); };
  });
}

}  // namespace quantgate
