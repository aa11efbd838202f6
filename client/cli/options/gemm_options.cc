#include "client/cli/options/gemm_options.h"

#include "absl/strings/str_cat.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

/// Refuses zero points, or their absence, against what the metadata of the scales say.
absl::Status CheckZeroPointSaid(const std::string& option, const std::string& path,
                                const std::string& said, const v1::GemmOperandSpec& operand) {
  if (said.empty()) return absl::OkStatus();
  const v1::TensorSource& given = operand.zero_point();
  const v1::TensorDescriptor& type =
      given.has_inline_() ? given.inline_().type() : given.stored().type();
  const char* const found = !operand.has_zero_point() ? "none"
                            : type.dtype() == "f32"   ? "float"
                                                      : "integer";
  const bool is_untold = operand.has_zero_point() && type.dtype().empty();
  if (found == said || is_untold) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, "-zero-point: ", operand.has_zero_point() ? TypeText(type) : "absent",
                   ": the metadata of ", path, " say zero_point=", said, " of these codes"));
}

/// The name of codes with the type that the metadata of their file say the bytes have.
absl::StatusOr<std::string> TypedCodes(const std::string& option, const std::string& text) {
  QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(option, text));
  const bool is_columnwise = name.entry == "columnwise_data";
  const bool may_be_bytes = name.kind == TensorName::Kind::kSafetensors &&
                            !name.reinterpreted.has_value() &&
                            (is_columnwise || name.entry == "rowwise_data");
  if (!may_be_bytes) return text;
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors(option, name.path));
  const absl::StatusOr<Tensor> codes = file.Find(name.entry);
  if (!codes.ok() || codes->dtype() != DType::kU8) return text;
  QG_ASSIGN_OR_RETURN(const v1::QuantizedDescription description, DescriptionOf(file.metadata));
  const std::string& element =
      (is_columnwise ? description.columnwise() : description.rowwise()).element();
  return element.empty() || element == "u8" ? text : absl::StrCat(text, "@", element);
}

/// Applies what the metadata of an operand's scale file say. A GEMM takes scales in logical layout;
/// for nvfp4 the tensor scale is in alpha, or follows from amax and the bound of the block scales.
absl::Status ApplyScaleMetadata(const std::string& option, const OperandOptions& options,
                                bool has_alpha, TensorSources& sources,
                                v1::GemmOperandSpec& operand) {
  const std::string field = option + "-scale-inv";
  QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(field, options.scale_inv));
  if (name.kind != TensorName::Kind::kSafetensors) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors(field, name.path));
  QG_ASSIGN_OR_RETURN(const v1::QuantizedDescription description, DescriptionOf(file.metadata));
  const std::string& layout = description.scale_layout();
  if (!layout.empty() && layout != "logical") {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": \"", options.scale_inv, "\": its file says that scales are ", layout,
        "; a GEMM takes logical ones, as quantize without --scale-layout writes them"));
  }
  const bool is_columnwise = name.entry == "columnwise_scale_inv";
  const v1::QuantizedDirection& direction =
      is_columnwise ? description.columnwise() : description.rowwise();
  if (operand.group().empty()) operand.set_group(direction.group());
  // Without its zero point a code is another number.
  const std::string beside = ZeroPointBeside(name, file);
  if (options.zero_point.empty() && !beside.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_zero_point(),
                        sources.Resolve(option + "-zero-point", beside));
  }
  QG_RETURN_IF_ERROR(CheckZeroPointSaid(option, name.path, direction.zero_point(), operand));
  if (direction.format() != "nvfp4") return absl::OkStatus();
  if (operand.e4m3_max() == 0) operand.set_e4m3_max(direction.e4m3_max());
  const char* const amax = is_columnwise ? "amax_columnwise" : "amax_rowwise";
  if (options.amax.empty() && !has_alpha && file.Find(amax).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, "-amax: absent; the scales are under that of ", name.path, ":", amax,
                     ": give it, or --alpha with the tensor scales in it"));
  }
  return absl::OkStatus();
}

absl::Status SetOperand(const std::string& option, const OperandOptions& options, bool has_alpha,
                        TensorSources& sources, v1::GemmOperandSpec& operand) {
  QG_ASSIGN_OR_RETURN(const std::string codes, TypedCodes(option, options.tensor));
  QG_ASSIGN_OR_RETURN(*operand.mutable_tensor(), sources.Resolve(option, codes));
  if (!options.scale_inv.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_scale_inv(),
                        sources.Resolve(option + "-scale-inv", options.scale_inv));
  }
  if (!options.amax.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_amax(), sources.Resolve(option + "-amax", options.amax));
  }
  if (!options.zero_point.empty()) {
    QG_ASSIGN_OR_RETURN(*operand.mutable_zero_point(),
                        sources.Resolve(option + "-zero-point", options.zero_point));
  }
  operand.set_group(options.group);
  operand.set_scaling(options.scaling);
  operand.set_e4m3_max(options.e4m3_max);
  if (options.scale_inv.empty()) return absl::OkStatus();
  return ApplyScaleMetadata(option, options, has_alpha, sources, operand);
}

void AddOperand(CLI::App& command, const std::string& option, OperandOptions& options,
                bool is_required) {
  command.add_option(option, options.tensor, "Operand: high precision, or codes")
      ->required(is_required)
      ->type_name("TENSOR");
  command.add_option(option + "-scale-inv", options.scale_inv, "Scales of its codes")
      ->type_name("TENSOR");
  command
      .add_option(option + "-zero-point", options.zero_point,
                  "Integers: what stands for zero, in the shape of the scales; default: those "
                  "beside the scales in their file")
      ->type_name("TENSOR");
  command
      .add_option(
          option + "-group", options.group,
          "Codes of int8, int4, nf4, bnb_fp4: tensor, row or a number of elements; default: "
          "what the file of the scales says, or what their number tells")
      ->type_name("GROUP");
  command
      .add_option(option + "-scaling", options.scaling,
                  "How they apply: tensor, outer, 1x128, 128x128 (also of 32, 64, 256), mx32, nv16")
      ->type_name("NAME");
  command.add_option(option + "-amax", options.amax, "nv16: what the tensor scale is made from")
      ->type_name("TENSOR");
  command
      .add_option(
          option + "-e4m3-max", options.e4m3_max,
          "nv16: 448, or 256 under 4over6; default: what the file of the scales says, or 448")
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
  const bool has_alpha = options.alpha.has_value();
  QG_RETURN_IF_ERROR(SetOperand("--a", options.a, has_alpha, sources, *request.mutable_a()));
  QG_RETURN_IF_ERROR(SetOperand("--b", options.b, has_alpha, sources, *request.mutable_b()));
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
