#include "kernels/layer/linear/linear_dataflow.h"

#include <algorithm>

namespace quantgate {
namespace {

/// A columnwise copy in high precision that stands for the rowwise codes.
bool HasDequantizedCopy(const Quantizer& quantizer) {
  return quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized &&
         quantizer.rowwise.is_quantized() && !quantizer.columnwise.is_quantized();
}

void SetQuantizations(const Recipe& recipe, LinearDataflow& flow) {
  const Quantizer& x = recipe.QuantizerFor(TensorRole::kInput);
  const Quantizer& weight = recipe.QuantizerFor(TensorRole::kWeight);
  const Quantizer& grad_output = recipe.QuantizerFor(TensorRole::kGradOutput);
  flow.quantizes_fprop = x.rowwise.is_quantized();
  flow.x_usages.rowwise = flow.weight_usages.rowwise = flow.quantizes_fprop;
  if (flow.backward_override != BackwardOverride::kNone) return;
  flow.quantizes_dgrad = flow.needs_dx && weight.columnwise.is_quantized();
  flow.quantizes_wgrad = flow.needs_dw && x.columnwise.is_quantized();
  flow.x_usages.columnwise = flow.quantizes_wgrad || (flow.needs_dw && HasDequantizedCopy(x));
  flow.weight_usages.columnwise =
      flow.quantizes_dgrad || (flow.needs_dx && HasDequantizedCopy(weight));
  flow.grad_output_usages.rowwise = flow.quantizes_dgrad;
  flow.grad_output_usages.columnwise =
      flow.quantizes_wgrad || (flow.needs_dw && HasDequantizedCopy(grad_output));
}

/// The contraction dims of the GEMMs that run in high precision.
std::vector<int64_t> PlainContractions(const LinearDataflow& flow, int64_t m, int64_t n,
                                       int64_t k) {
  std::vector<int64_t> dims;
  if (!flow.quantizes_fprop) dims.push_back(k);
  if (flow.needs_dx && !flow.quantizes_dgrad) dims.push_back(n);
  if (flow.needs_dw && !flow.quantizes_wgrad) dims.push_back(m);
  return dims;
}

}  // namespace

LinearDataflow DataflowOf(const LinearFacts& facts, const Recipe& recipe) {
  LinearDataflow flow;
  flow.activation_dtype = facts.activation_dtype;
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
  // An FP8 GEMM with fp32 output takes its bias in bf16 (docs/quantizers.md section 10.3).
  flow.bias_dtype = flow.quantizes_fprop && flow.activation_dtype == DType::kF32
                        ? DType::kBF16
                        : flow.activation_dtype;
  flow.reads_weight = !flow.quantizes_fprop || flow.keeps_weight();
  return flow;
}

std::vector<std::string> LinearNotes(const LinearDataflow& flow, int64_t m, int64_t n, int64_t k,
                                     const Arithmetic& arithmetic) {
  std::vector<std::string> notes;
  const std::vector<int64_t> contractions = PlainContractions(flow, m, n, k);
  if (contractions.empty() || arithmetic.Resolved().Model().family != ArithmeticFamily::kSm90) {
    return notes;
  }
  const auto is_uneven = [](int64_t dim) { return dim % 8 != 0; };
  const bool is_f32 = flow.activation_dtype == DType::kF32;
  if (is_f32) {
    notes.push_back(
        "high-precision GEMMs of f32 activations run in tf32: operands rounded to 10 mantissa "
        "bits");
  }
  // Where cuBLASLt takes kernels that add in another order than the model
  // (tests/hardware/README.md, rules 6 and 7): 16-bit operands with a contiguous dim, which is K or
  // N in every layout of a linear layer, off the multiples of 8; f32 operands with such a
  // contraction.
  const bool leaves_modelled_kernels =
      is_f32 ? std::any_of(contractions.begin(), contractions.end(), is_uneven)
             : is_uneven(n) || is_uneven(k);
  if (leaves_modelled_kernels) {
    notes.push_back(
        "high-precision GEMMs with dims off the multiples of 8: Hopper's cuBLASLt takes kernels "
        "there that may add in another order than sm90");
  }
  return notes;
}

}  // namespace quantgate
