#include "kernels/layer/linear/linear_dataflow.h"

#include <algorithm>

namespace quantgate {
namespace {

/// Whether the columnwise copy is in high precision, dequantized from the rowwise copy.
bool HasDequantizedCopy(const Quantizer& quantizer) {
  return quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized &&
         quantizer.rowwise.makes_copy() && !quantizer.columnwise.is_quantized();
}

void SetQuantizations(const Recipe& recipe, LinearDataflow& flow) {
  const Quantizer& x = recipe.QuantizerFor(TensorRole::kInput);
  const Quantizer& weight = recipe.QuantizerFor(TensorRole::kWeight);
  const Quantizer& grad_output = recipe.QuantizerFor(TensorRole::kGradOutput);
  flow.quantizes_fprop = x.rowwise.is_quantized();
  flow.x_usages.rowwise = x.rowwise.makes_copy();
  flow.weight_usages.rowwise = weight.rowwise.makes_copy();
  flow.fprop_dtype = x.rowwise.casts() ? x.rowwise.element : flow.activation_dtype;
  if (flow.backward_override != BackwardOverride::kNone) return;
  flow.quantizes_dgrad = flow.needs_dx && weight.columnwise.is_quantized();
  flow.quantizes_wgrad = flow.needs_dw && x.columnwise.is_quantized();
  const auto has_columnwise = [](const Quantizer& quantizer) {
    return quantizer.columnwise.makes_copy() || HasDequantizedCopy(quantizer);
  };
  flow.x_usages.columnwise = flow.needs_dw && has_columnwise(x);
  flow.weight_usages.columnwise = flow.needs_dx && has_columnwise(weight);
  flow.grad_output_usages.rowwise = flow.needs_dx && grad_output.rowwise.makes_copy();
  flow.grad_output_usages.columnwise = flow.needs_dw && has_columnwise(grad_output);
  if (grad_output.rowwise.casts()) flow.dgrad_dtype = grad_output.rowwise.element;
  if (grad_output.columnwise.casts()) flow.wgrad_dtype = grad_output.columnwise.element;
}

/// The contraction of a GEMM that runs in high precision.
struct PlainContraction {
  int64_t dim;
  DType dtype;  ///< Of its operands.
};
std::vector<PlainContraction> PlainContractions(const LinearDataflow& flow, int64_t m, int64_t n,
                                                int64_t k) {
  std::vector<PlainContraction> gemms;
  if (!flow.quantizes_fprop) gemms.push_back({k, flow.fprop_dtype});
  if (flow.needs_dx && !flow.quantizes_dgrad) gemms.push_back({n, flow.dgrad_dtype});
  if (flow.needs_dw && !flow.quantizes_wgrad) gemms.push_back({m, flow.wgrad_dtype});
  return gemms;
}

}  // namespace

LinearDataflow DataflowOf(const LinearFacts& facts, const Recipe& recipe) {
  LinearDataflow flow;
  flow.activation_dtype = facts.activation_dtype;
  flow.fprop_dtype = flow.dgrad_dtype = flow.wgrad_dtype = facts.activation_dtype;
  flow.is_calibration = facts.calibrate && recipe.is_delayed();
  flow.is_empty = facts.is_empty;
  flow.needs_dx = facts.needs_dx;
  flow.needs_dw = facts.needs_dw;
  flow.needs_db = facts.needs_db && facts.has_bias;
  if (recipe.is_quantized() && !flow.is_calibration) {
    flow.backward_override = recipe.backward_override();
    flow.is_delayed = recipe.is_delayed();
    SetQuantizations(recipe, flow);
  }
  if (!flow.is_calibration) {
    const auto has_rule = [&](TensorRole role) {
      return recipe.QuantizerFor(role).rowwise.is_quantized();
    };
    flow.quantizes_output = has_rule(TensorRole::kOutput);
    flow.quantizes_grad_input = flow.needs_dx && has_rule(TensorRole::kGradInput) &&
                                flow.backward_override == BackwardOverride::kNone;
  }
  // An FP8 GEMM with fp32 output takes its bias in bf16 (docs/quantizers.md section 10.3).
  flow.bias_dtype = flow.quantizes_fprop && flow.activation_dtype == DType::kF32
                        ? DType::kBF16
                        : flow.activation_dtype;
  flow.reads_weight = !flow.weight_usages.rowwise || flow.keeps_weight();
  return flow;
}

std::vector<std::string> LinearNotes(const LinearDataflow& flow, int64_t m, int64_t n, int64_t k,
                                     const Arithmetic& arithmetic) {
  std::vector<std::string> notes;
  const std::vector<PlainContraction> gemms = PlainContractions(flow, m, n, k);
  if (gemms.empty() || arithmetic.Resolved().Model().family != ArithmeticFamily::kSm90) {
    return notes;
  }
  const auto is_uneven = [](int64_t dim) { return dim % 8 != 0; };
  const auto is_f32 = [](const PlainContraction& gemm) { return gemm.dtype == DType::kF32; };
  if (std::any_of(gemms.begin(), gemms.end(), is_f32)) {
    notes.push_back(
        flow.activation_dtype == DType::kF32
            ? "high-precision GEMMs of f32 activations run in tf32: operands rounded to 10 "
              "mantissa bits"
            : "GEMMs of operands cast to f32 run in tf32: operands rounded to 10 mantissa bits");
  }
  // Where cuBLASLt takes kernels that add in another order than the model
  // (tests/hardware/README.md, rules 6 and 7): 16-bit operands with a contiguous dim, which is K or
  // N in every layout of a linear layer, off the multiples of 8; f32 operands with such a
  // contraction.
  const bool leaves_modelled_kernels =
      std::any_of(gemms.begin(), gemms.end(), [&](const PlainContraction& gemm) {
        return is_f32(gemm) ? is_uneven(gemm.dim) : is_uneven(n) || is_uneven(k);
      });
  if (leaves_modelled_kernels) {
    notes.push_back(
        "high-precision GEMMs with dims off the multiples of 8: Hopper's cuBLASLt takes kernels "
        "there that may add in another order than sm90");
  }
  return notes;
}

}  // namespace quantgate
