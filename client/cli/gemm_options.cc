#include "client/cli/gemm_options.h"

#include "client/cli/layer_command.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

absl::Status SetOperand(const std::string& option, const OperandOptions& options,
                        TensorSources& sources, v1::GemmOperandSpec& operand) {
  QG_ASSIGN_OR_RETURN(*operand.mutable_tensor(), sources.Resolve(option, options.tensor));
  if (!options.scale_inv.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_scale_inv(),
                        sources.Resolve(option + "-scale-inv", options.scale_inv));
  }
  if (!options.amax.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_amax(), sources.Resolve(option + "-amax", options.amax));
  }
  operand.set_scaling(options.scaling);
  operand.set_e4m3_max(options.e4m3_max);
  return absl::OkStatus();
}

void AddOperand(CLI::App& command, const std::string& option, OperandOptions& options,
                bool is_required) {
  command.add_option(option, options.tensor, "Operand: high precision, or codes")
      ->required(is_required)
      ->type_name("TENSOR");
  command.add_option(option + "-scale-inv", options.scale_inv, "Scales of its codes")
      ->type_name("TENSOR");
  command
      .add_option(option + "-scaling", options.scaling,
                  "How they apply: tensor, outer, 1x128, 128x128, mx32 or nv16")
      ->type_name("NAME");
  command.add_option(option + "-amax", options.amax, "nv16: what the tensor scale is made from")
      ->type_name("TENSOR");
  command
      .add_option(option + "-e4m3-max", options.e4m3_max, "nv16: 448 (default), 256 under 4over6")
      ->type_name("N");
}

}  // namespace

void AddGemmOptions(CLI::App& command, GemmOptions& options, bool are_operands_required) {
  AddOperand(command, "--a", options.a, are_operands_required);
  AddOperand(command, "--b", options.b, are_operands_required);
  command.add_option("--c", options.c, "[M][N] of the output's dtype")->type_name("TENSOR");
  command.add_option("--alpha", options.alpha, "Default: 1")->type_name("F");
  command.add_option("--beta", options.beta, "Default: 0")->type_name("F");
  command.add_flag("--in-place", options.in_place, "c is the memory of d: rounded before added");
  command.add_option("--bias", options.bias, "[N]")->type_name("TENSOR");
  command.add_option("--d-scale", options.d_scale, "Scale of an FP8 output")->type_name("F");
  command.add_option("--layout", options.layout, "tn (default), nn or nt")->type_name("NAME");
}

absl::StatusOr<v1::GemmRequest> MakeGemmRequest(const GemmOptions& options,
                                                TensorSources& sources) {
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
  return request;
}

}  // namespace quantgate
