// What one linear unit does in a step, decided before anything is computed: the table of
// docs/quantizers.md section 9 as data. The dataflow decides which GEMMs read codes, in which
// directions operands are quantized, what backward reads under an override, which gradients are
// computed and the dtype of the bias. It does not decide the layouts of GEMMs (linear_operands.h)
// and what ranks exchange (LinearParallel).
#pragma once

#include <string>
#include <vector>

#include "kernels/gemm/arithmetic.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

/// What the dataflow depends on, beside the recipe.
struct LinearFacts {
  DType x_dtype = DType::kBF16;  ///< The dtype of the given x.
  DType weight_dtype = DType::kBF16;
  DType activation_dtype = DType::kBF16;
  bool has_bias = false;
  bool has_main_grad = false;
  // Which gradients are asked for.
  bool needs_dx = false;
  bool needs_dw = false;
  bool needs_db = false;  ///< False without a bias.
  bool is_empty = false;  ///< M == 0.
  bool calibrate = false;
  /// x is f32, not rounded to the activation dtype, and is quantized from f32.
  bool x_is_unrounded = false;
  bool x_is_codes = false;            ///< x comes quantized.
  bool weight_is_codes = false;       ///< The parameter itself is quantized.
  bool grad_output_is_codes = false;  ///< grad_output comes quantized.
};

struct LinearDataflow {
  DType activation_dtype = DType::kBF16;
  DType bias_dtype = DType::kBF16;  ///< What the fprop epilogue adds.
  /// The dtypes of the operands of GEMMs that read no codes: the activation dtype, or that to which
  /// identity casts.
  DType fprop_dtype = DType::kBF16, dgrad_dtype = DType::kBF16, wgrad_dtype = DType::kBF16;
  /// The GEMMs whose operands are codes.
  bool quantizes_fprop = false;
  bool quantizes_dgrad = false;
  bool quantizes_wgrad = false;
  /// The recipe's override; kNone without a quantized recipe, where it has no effect.
  BackwardOverride backward_override = BackwardOverride::kNone;
  bool is_empty = false;  ///< M == 0.
  bool needs_dx = false;
  bool needs_dw = false;
  bool needs_db = false;
  /// The directions that are read as codes, as a cast by identity or, where columnwise_source says
  /// so of the columnwise copy, as high precision made from codes. The others are read in the
  /// activation dtype.
  Usages x_usages{false, false};
  Usages weight_usages{false, false};
  Usages grad_output_usages{false, false};
  /// y, or dx, has the values of its codes (docs/quantizers.md section 7.3).
  bool quantizes_output = false;
  bool quantizes_grad_input = false;
  /// fprop or, without an override, dgrad reads the weight in the activation dtype.
  bool reads_weight = false;
  bool is_delayed = false;      ///< Scales are updated.
  bool is_calibration = false;  ///< Amaxes are noted; nothing is quantized.

  bool has_backward() const { return needs_dx || needs_dw || needs_db; }
  bool reads_x_codes() const { return x_usages.rowwise || x_usages.columnwise; }
  bool reads_weight_codes() const { return weight_usages.rowwise || weight_usages.columnwise; }
  bool reads_grad_output_codes() const {
    return grad_output_usages.rowwise || grad_output_usages.columnwise;
  }
  /// Without an override, dgrad reads the weight in the activation dtype as forward had it.
  bool keeps_weight() const {
    return needs_dx && !quantizes_dgrad && !has_weight_copy() &&
           backward_override == BackwardOverride::kNone;
  }
  /// dgrad reads a copy in high precision, cast or dequantized.
  bool has_weight_copy() const { return weight_usages.columnwise && !quantizes_dgrad; }
  /// Backward reads x and weight in the activation dtype, cast from what was given.
  bool reads_originals() const { return backward_override == BackwardOverride::kHighPrecision; }
  /// Backward reads the dequantized rowwise codes.
  bool reads_dequantized() const {
    return backward_override == BackwardOverride::kDequantized && x_usages.rowwise;
  }
};

LinearDataflow DataflowOf(const LinearFacts& facts, const Recipe& recipe);

/// Notes for the report about high-precision GEMMs that do not run as the arithmetic's name
/// suggests.
std::vector<std::string> LinearNotes(const LinearDataflow& flow, int64_t m, int64_t n, int64_t k,
                                     const Arithmetic& arithmetic);

/// Stage names that several places spell.
inline constexpr char kStageFprop[] = "fprop";
inline constexpr char kStageDgrad[] = "dgrad";
inline constexpr char kStageWgrad[] = "wgrad";
inline constexpr char kStageQuantizeX[] = "quantize x";
inline constexpr char kStageQuantizeWeight[] = "quantize weight";
inline constexpr char kStageQuantizeGradOutput[] = "quantize grad_output";

}  // namespace quantgate
