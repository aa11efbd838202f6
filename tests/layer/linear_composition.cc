#include "tests/layer/linear_composition.h"

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/tensor/convert.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

const ExecutionContext kContext;

struct Codes {
  Tensor data;
  Tensor scale_inv;
  Tensor dequantized;
};

Codes Quantized(const Tensor& source, DType element, DType activation) {
  QuantizerSpec spec;
  spec.format = QuantizerFormat::kFp8Tensor;
  spec.element = element;
  const QuantizedTensor q = *QuantizeCpu(source, spec, {true, false}, {}, kContext);
  return {q.rowwise->data, q.rowwise->scale_inv,
          *DequantizeCpu(q, Usage::kRowwise, activation, kContext)};
}

Tensor Flat(const Tensor& tensor) {
  return *tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
}

/// None where there is none of the name.
Tensor Find(const std::map<std::string, Tensor>& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? Tensor() : found->second;
}

Tensor Transposed(const Tensor& tensor) { return *Transpose2d(tensor, kContext); }

Tensor Fp8Gemm(const Codes& a, const Codes& b, bool transposes_a, bool transposes_b, bool split,
               GemmDesc desc) {
  desc.a = {transposes_a ? Transposed(a.data) : a.data, ScaleMode::kTensor, a.scale_inv, {}};
  desc.b = {transposes_b ? Transposed(b.data) : b.data, ScaleMode::kTensor, b.scale_inv, {}};
  desc.use_split_accumulator = split;
  return GemmCpu(desc, kContext)->d;
}

Tensor PlainGemm(const Tensor& a, const Tensor& b, GemmDesc desc) {
  desc.a = {a, ScaleMode::kNone, {}, {}};
  desc.b = {b, ScaleMode::kNone, {}, {}};
  return GemmCpu(desc, kContext)->d;
}

// docs/definitions.md section 1: pad with -0.0 to a power of two, add neighbours level by level.
float Pairwise(std::vector<float> v) {
  size_t size = 1;
  while (size < v.size()) size *= 2;
  v.resize(size, -0.0f);
  for (; size > 1; size /= 2) {
    for (size_t i = 0; i < size / 2; ++i) v[i] = v[2 * i] + v[2 * i + 1];
  }
  return v[0];
}

Tensor BiasGradient(const Tensor& grad_output, DType activation) {
  const std::vector<float> values = ToValues(grad_output);
  const int64_t n = grad_output.columns();
  std::vector<float> sums(n);
  for (int64_t column = 0; column < n; ++column) {
    std::vector<float> rows;
    for (int64_t row = 0; row < grad_output.rows(); ++row) rows.push_back(values[row * n + column]);
    sums[column] = Pairwise(std::move(rows));
    // NaN leaves the engine in its canonical form.
    if (std::isnan(sums[column])) sums[column] = std::bit_cast<float>(0x7FFFFFFFu);
  }
  return FromValues(activation, {n}, sums);
}

}  // namespace

std::map<std::string, Tensor> ComposeLinear(const LayerRequest& request, bool is_quantized,
                                            BackwardOverride override_mode, DType activation,
                                            const Arithmetic& arithmetic) {
  const auto cast = [&](const Tensor& tensor) { return *CastTensor(tensor, activation, kContext); };
  const Tensor x = cast(Flat(request.x));
  const Tensor dy = cast(Flat(request.grad_output));
  const Codes x_codes = Quantized(x, DType::kF8E4M3, activation);
  const Codes w_codes = Quantized(request.parameters.at("weight"), DType::kF8E4M3, activation);
  const Codes dy_codes = Quantized(dy, DType::kF8E5M2, activation);

  GemmDesc forward;
  forward.arithmetic = arithmetic;
  forward.out_dtype = activation;
  GemmDesc weight_gradient = forward;
  GemmDesc input_gradient = forward;
  const Tensor bias = Find(request.parameters, "bias");
  const Tensor main_grad = Find(request.main_grads, "weight");
  if (bias.has_value()) {
    const bool takes_bf16 = is_quantized && activation == DType::kF32;
    forward.bias = *CastTensor(bias, takes_bf16 ? DType::kBF16 : activation, kContext);
  }
  const std::string wgrad_name = main_grad.has_value() ? "main_grad" : "dw";
  if (main_grad.has_value()) {
    weight_gradient.out_dtype = DType::kF32;
    weight_gradient.c = main_grad;
    weight_gradient.beta = 1;
    weight_gradient.in_place = true;
  }

  std::map<std::string, Tensor> out;
  if (is_quantized) {
    out["y"] = Fp8Gemm(x_codes, w_codes, false, false, false, forward);
  } else {
    out["y"] = PlainGemm(x, cast(request.parameters.at("weight")), forward);
  }
  if (is_quantized && override_mode == BackwardOverride::kNone) {
    out["dx"] = Fp8Gemm(dy_codes, w_codes, false, true, true, input_gradient);
    out[wgrad_name] = Fp8Gemm(dy_codes, x_codes, true, true, true, weight_gradient);
  } else {
    const bool dequantized = is_quantized && override_mode == BackwardOverride::kDequantized;
    const Tensor weight = dequantized ? w_codes.dequantized : cast(request.parameters.at("weight"));
    const Tensor saved_x = dequantized ? x_codes.dequantized : x;
    out["dx"] = PlainGemm(dy, Transposed(weight), input_gradient);
    out[wgrad_name] = PlainGemm(Transposed(dy), Transposed(saved_x), weight_gradient);
  }
  if (bias.has_value()) out["db"] = BiasGradient(dy, activation);
  for (const auto& [name, given] : {std::pair{"y", &request.grad_output}, {"dx", &request.x}}) {
    out[name] = *out[name].Reinterpret(activation, given->shape());
  }
  return out;
}

}  // namespace quantgate
