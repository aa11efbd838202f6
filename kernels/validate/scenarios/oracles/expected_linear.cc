#include "kernels/validate/scenarios/oracles/expected_linear.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"

namespace quantgate {
namespace {

/// A 2-D tensor as an unquantized operand whose rows are along the contraction; `turn` transposes
/// it.
absl::StatusOr<GemmOperand> Plain(const Tensor& tensor, bool turn) {
  GemmOperand operand;
  operand.data = tensor;
  if (turn) {
    QG_ASSIGN_OR_RETURN(operand.data, Transposed(tensor));
  }
  return operand;
}

/// Codes as an operand whose rows are along the contraction. Columnwise codes are stored so, except
/// those of mxfp8, which are transposed here.
absl::StatusOr<GemmOperand> Codes(const QuantizedCopy& copy, Usage usage) {
  QuantizedCopy turned = copy;
  if (usage == Usage::kColumnwise && copy.format == QuantizerFormat::kMxfp8) {
    QG_ASSIGN_OR_RETURN(turned.data, Transposed(copy.data));
    QG_ASSIGN_OR_RETURN(turned.scale_inv, Transposed(copy.scale_inv));
  }
  return OperandOf(turned);
}

/// One tensor of the step: in the activation dtype, and its codes.
struct Operand {
  Tensor plain;
  Quantizer quantizer;
  QuantizedTensor codes;

  /// What a GEMM reads of a direction. Rows of the plain tensor are along the contraction unless
  /// the direction is columnwise.
  absl::StatusOr<GemmOperand> Direction(Usage usage, DType activation) const {
    const QuantizerSpec& spec = quantizer.spec(usage);
    if (spec.is_quantized()) return Codes(*codes.copy(usage), usage);
    const bool is_columnwise = usage == Usage::kColumnwise;
    // The direction is in high precision, but made from the rowwise codes.
    if (is_columnwise && quantizer.rowwise.is_quantized() &&
        quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized) {
      QG_ASSIGN_OR_RETURN(const Tensor cast, ExpectedCast(codes.columnwise->data, activation));
      return Plain(cast, true);
    }
    return Plain(plain, is_columnwise);
  }
};

class LinearByHand {
 public:
  LinearByHand(Engine& reference, const LinearOperands& operands, const Recipe& recipe)
      : reference_(reference),
        operands_(operands),
        recipe_(recipe),
        activation_(
            operands.activation.value_or(recipe.activation_dtype().value_or(operands.x.dtype()))) {}

  absl::StatusOr<NamedOutputs> Run() {
    QG_ASSIGN_OR_RETURN(const Tensor x, ExpectedCast(operands_.x, activation_));
    QG_ASSIGN_OR_RETURN(x_, Prepare(TensorRole::kInput, Given(operands_.x, x), x));
    QG_ASSIGN_OR_RETURN(const Tensor weight, ExpectedCast(operands_.weight, activation_));
    QG_ASSIGN_OR_RETURN(weight_, Prepare(TensorRole::kWeight, operands_.weight, weight));
    QG_RETURN_IF_ERROR(Forward());
    if (operands_.grad_output.has_value()) QG_RETURN_IF_ERROR(Backward());
    return outputs_;
  }

 private:
  /// The tensor that a quantizer reads of x or grad_output: as given if fused operations made it,
  /// else rounded to the activation dtype.
  const Tensor& Given(const Tensor& given, const Tensor& rounded) const {
    return operands_.activation.has_value() ? given : rounded;
  }

  absl::StatusOr<Operand> Prepare(TensorRole role, const Tensor& source, const Tensor& plain) {
    Operand operand{plain, recipe_.QuantizerFor(role), {}};
    QuantizeArguments arguments{.seed = operands_.seed,
                                .call_id = operands_.first_call_id + static_cast<uint32_t>(role)};
    if (recipe_.is_delayed()) {
      const auto scale = operands_.scales.find(role);
      if (scale != operands_.scales.end()) {
        arguments.scale = scale->second;
      } else {
        QG_ASSIGN_OR_RETURN(arguments.scale, Tensor::FromScalar(1.0f));
      }
    }
    if (!operand.quantizer.rowwise.is_quantized() && !operand.quantizer.columnwise.is_quantized()) {
      return operand;
    }
    if (const auto whole = operands_.wholes.find(role); whole != operands_.wholes.end()) {
      QG_RETURN_IF_ERROR(ExpectedGroupAmaxes({&whole->second, 1}, operand.quantizer, arguments));
    }
    QG_ASSIGN_OR_RETURN(operand.codes,
                        ExpectedQuantization(source, operand.quantizer, {true, true}, arguments));
    return operand;
  }

  absl::Status Gemm(const std::string& name, GemmRole role, const GemmOperand& a,
                    const GemmOperand& b, GemmDesc desc) {
    desc.a = a;
    desc.b = b;
    desc.use_split_accumulator = a.scaling == ScaleMode::k1x128 ||
                                 a.scaling == ScaleMode::k128x128 ||
                                 (IsFp8(a.data.dtype()) && recipe_.UsesSplitAccumulator(role));
    QG_ASSIGN_OR_RETURN(const GemmResult result, reference_.Gemm(desc, nullptr));
    outputs_[name] = result.d;
    return absl::OkStatus();
  }

  absl::Status Forward() {
    QG_ASSIGN_OR_RETURN(const GemmOperand a, x_.Direction(Usage::kRowwise, activation_));
    QG_ASSIGN_OR_RETURN(const GemmOperand b, weight_.Direction(Usage::kRowwise, activation_));
    GemmDesc desc;
    desc.out_dtype = activation_;
    if (operands_.bias.has_value()) {
      const bool takes_bf16 = x_.quantizer.rowwise.is_quantized() && activation_ == DType::kF32;
      QG_ASSIGN_OR_RETURN(desc.bias,
                          ExpectedCast(operands_.bias, takes_bf16 ? DType::kBF16 : activation_));
    }
    return Gemm("y", GemmRole::kFprop, a, b, std::move(desc));
  }

  absl::Status Backward() {
    QG_ASSIGN_OR_RETURN(const Tensor dy, ExpectedCast(operands_.grad_output, activation_));
    QG_ASSIGN_OR_RETURN(grad_output_,
                        Prepare(TensorRole::kGradOutput, Given(operands_.grad_output, dy), dy));
    if (operands_.bias.has_value() && operands_.requires_grad.bias) {
      QG_ASSIGN_OR_RETURN(outputs_["db"], ExpectedColumnSums(dy, activation_));
    }
    if (operands_.requires_grad.x) QG_RETURN_IF_ERROR(Dgrad());
    return operands_.requires_grad.weight ? Wgrad() : absl::OkStatus();
  }

  /// A saved operand as a backward override reads it: in the activation dtype (high_precision), or
  /// the values of its rowwise codes (dequantized).
  absl::StatusOr<GemmOperand> OverrideOperand(const Operand& operand) {
    Tensor values = operand.plain;
    if (recipe_.backward_override() == BackwardOverride::kDequantized &&
        operand.quantizer.rowwise.is_quantized()) {
      QG_ASSIGN_OR_RETURN(values, ExpectedValues(*operand.codes.rowwise, Usage::kRowwise,
                                                 values.rows(), values.columns(), activation_));
    }
    return Plain(values, true);
  }

  bool is_overridden() const {
    return recipe_.is_quantized() && recipe_.backward_override() != BackwardOverride::kNone;
  }

  absl::Status Dgrad() {
    GemmDesc desc;
    desc.out_dtype = activation_;
    if (is_overridden()) {
      QG_ASSIGN_OR_RETURN(const GemmOperand a, Plain(grad_output_.plain, false));
      QG_ASSIGN_OR_RETURN(const GemmOperand b, OverrideOperand(weight_));
      return Gemm("dx", GemmRole::kDgrad, a, b, std::move(desc));
    }
    QG_ASSIGN_OR_RETURN(const GemmOperand a, grad_output_.Direction(Usage::kRowwise, activation_));
    QG_ASSIGN_OR_RETURN(const GemmOperand b, weight_.Direction(Usage::kColumnwise, activation_));
    return Gemm("dx", GemmRole::kDgrad, a, b, std::move(desc));
  }

  absl::Status Wgrad() {
    GemmDesc desc;
    desc.out_dtype = activation_;
    std::string name = "dw";
    if (operands_.main_grad.has_value()) {
      name = "main_grad";
      desc.out_dtype = DType::kF32;
      desc.c = operands_.main_grad;
      desc.beta = 1;
      desc.in_place = true;
    }
    if (is_overridden()) {
      QG_ASSIGN_OR_RETURN(const GemmOperand a, Plain(grad_output_.plain, true));
      QG_ASSIGN_OR_RETURN(const GemmOperand b, OverrideOperand(x_));
      return Gemm(name, GemmRole::kWgrad, a, b, std::move(desc));
    }
    QG_ASSIGN_OR_RETURN(const GemmOperand a,
                        grad_output_.Direction(Usage::kColumnwise, activation_));
    QG_ASSIGN_OR_RETURN(const GemmOperand b, x_.Direction(Usage::kColumnwise, activation_));
    return Gemm(name, GemmRole::kWgrad, a, b, std::move(desc));
  }

  Engine& reference_;
  const LinearOperands& operands_;
  const Recipe& recipe_;
  const DType activation_;
  Operand x_, weight_, grad_output_;
  NamedOutputs outputs_;
};

}  // namespace

absl::StatusOr<Tensor> ExpectedCast(const Tensor& tensor, DType out) {
  QG_ASSIGN_OR_RETURN(Tensor cast, Tensor::Allocate(out, tensor.shape()));
  for (int64_t i = 0; i < tensor.element_count(); ++i) SetValue(cast, i, ValueAt(tensor, i));
  return cast;
}

absl::StatusOr<Tensor> ExpectedColumnSums(const Tensor& source, DType out) {
  const int64_t rows = source.rows(), columns = source.columns();
  QG_ASSIGN_OR_RETURN(Tensor sums, Tensor::Allocate(out, {columns}));
  for (int64_t column = 0; column < columns; ++column) {
    size_t size = 1;
    while (size < static_cast<size_t>(rows)) size *= 2;
    std::vector<float> values(size, -0.0f);
    for (int64_t row = 0; row < rows; ++row) values[row] = ValueAt(source, row * columns + column);
    for (; size > 1; size /= 2) {
      for (size_t i = 0; i < size / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    }
    SetValue(sums, column, rows == 0 ? 0.0f : values[0]);
  }
  return sums;
}

absl::StatusOr<NamedOutputs> ExpectedLinear(Engine& reference, const LinearOperands& operands,
                                            const Recipe& recipe) {
  return LinearByHand(reference, operands, recipe).Run();
}

}  // namespace quantgate
