#include "tests/layer/unit_reference.h"

#include <utility>

#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

const ExecutionContext kContext;

Tensor Turned(const Tensor& tensor) { return *Transpose2d(tensor, kContext); }

}  // namespace

QuantizedTensor UnitReference::Quantized(TensorRole role, const Tensor& source, Usage usage) const {
  QuantizeArguments arguments;
  arguments.seed = seed_;
  arguments.call_id = first_call_id_ + static_cast<uint32_t>(role);
  if (recipe_.is_delayed()) {
    arguments.scale = *Tensor::FromScalar(scales_[static_cast<size_t>(role)]);
  }
  const Usages usages{usage == Usage::kRowwise, usage == Usage::kColumnwise};
  return *QuantizeCpu(source, recipe_.QuantizerFor(role), usages, arguments, kContext);
}

GemmOperand UnitReference::Plain(const Tensor& matrix, Usage usage) const {
  GemmOperand operand;
  const Tensor cast = *CastTensor(matrix, activation_, kContext);
  operand.data = usage == Usage::kRowwise ? cast : Turned(cast);
  return operand;
}

/// Row-major [rows][k], whatever its direction.
GemmOperand UnitReference::Operand(TensorRole role, const Tensor& source, Usage usage,
                                   bool is_backward) const {
  if (is_backward && recipe_.is_quantized() &&
      recipe_.backward_override() != BackwardOverride::kNone) {
    const bool reads_codes = recipe_.backward_override() == BackwardOverride::kDequantized &&
                             role != TensorRole::kGradOutput;
    if (!reads_codes) return Plain(source, usage);
    const QuantizedTensor codes = Quantized(role, source, Usage::kRowwise);
    return Plain(*DequantizeCpu(codes, Usage::kRowwise, activation_, kContext), usage);
  }
  const QuantizedTensor quantized = Quantized(role, source, usage);
  const QuantizedCopy& copy = *quantized.copy(usage);
  if (copy.format == QuantizerFormat::kIdentity) return Plain(copy.data, usage);
  GemmOperand operand = OperandOf(copy);
  if (copy.format == QuantizerFormat::kMxfp8 && usage == Usage::kColumnwise) {
    operand.data = Turned(operand.data);
    operand.scale_inv = Turned(operand.scale_inv);
  }
  return operand;
}

Tensor UnitReference::Product(GemmRole gemm, GemmDesc desc) const {
  desc.layout = GemmLayout::kTN;
  const bool is_block =
      desc.a.scaling == ScaleMode::k1x128 || desc.a.scaling == ScaleMode::k128x128;
  desc.use_split_accumulator =
      desc.a.scaling != ScaleMode::kNone && (is_block || recipe_.UsesSplitAccumulator(gemm));
  return GemmCpu(desc, kContext)->d;
}

Tensor UnitReference::Fprop(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
  GemmDesc desc;
  desc.out_dtype = activation_;
  desc.a = Operand(TensorRole::kInput, x, Usage::kRowwise, false);
  desc.b = Operand(TensorRole::kWeight, weight, Usage::kRowwise, false);
  if (bias.has_value()) {
    const bool takes_bf16 = desc.a.scaling != ScaleMode::kNone && activation_ == DType::kF32;
    desc.bias = *CastTensor(bias, takes_bf16 ? DType::kBF16 : activation_, kContext);
  }
  return Product(GemmRole::kFprop, std::move(desc));
}

Tensor UnitReference::Dgrad(const Tensor& dy, const Tensor& weight) const {
  GemmDesc desc;
  desc.out_dtype = activation_;
  desc.a = Operand(TensorRole::kGradOutput, dy, Usage::kRowwise, true);
  desc.b = Operand(TensorRole::kWeight, weight, Usage::kColumnwise, true);
  return Product(GemmRole::kDgrad, std::move(desc));
}

Tensor UnitReference::Wgrad(const Tensor& dy, const Tensor& x, const Tensor& main_grad) const {
  GemmDesc desc;
  desc.out_dtype = activation_;
  desc.a = Operand(TensorRole::kGradOutput, dy, Usage::kColumnwise, true);
  desc.b = Operand(TensorRole::kInput, x, Usage::kColumnwise, true);
  if (main_grad.has_value()) {
    desc.out_dtype = DType::kF32;
    desc.c = main_grad;
    desc.beta = 1;
    desc.in_place = true;
  }
  return Product(GemmRole::kWgrad, std::move(desc));
}

}  // namespace quantgate
