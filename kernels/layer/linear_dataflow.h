// What one linear step does, decided from the request and the recipe before anything is computed:
// the table of docs/quantizers.md section 9 as data. Forward and backward read it and decide
// nothing themselves.
#pragma once

#include <string>
#include <vector>

#include "kernels/layer/linear.h"

namespace quantgate {

struct LinearDataflow {
  DType activation_dtype = DType::kBF16;
  DType bias_dtype = DType::kBF16;  ///< What the fprop epilogue adds.
  bool is_quantized = false;
  /// The recipe's override; kNone without a quantized recipe, where it has no effect.
  BackwardOverride backward_override = BackwardOverride::kNone;
  bool is_empty = false;  ///< M == 0.
  bool needs_dx = false;
  bool needs_dw = false;
  bool needs_db = false;
  Usages x_usages;
  Usages weight_usages;
  /// What the backward GEMMs read: rowwise for dgrad, columnwise for wgrad. Neither: not quantized.
  Usages grad_output_usages{false, false};

  bool has_backward() const { return needs_dx || needs_dw || needs_db; }
  bool quantizes_grad_output() const {
    return grad_output_usages.rowwise || grad_output_usages.columnwise;
  }
  /// Backward reads x and weight in the activation dtype, cast from what was given.
  bool reads_originals() const { return backward_override == BackwardOverride::kHighPrecision; }
  bool reads_dequantized() const { return backward_override == BackwardOverride::kDequantized; }
};

/// For a request that CheckLinear accepts.
LinearDataflow DataflowOf(const LinearRequest& request, const Recipe& recipe);

/// What the request asked for and the step does not do, or does otherwise than the words suggest.
std::vector<std::string> LinearNotes(const LinearRequest& request, const Recipe& recipe,
                                     const Arithmetic& arithmetic, const LinearDataflow& flow);

/// Stage names that several places spell.
inline constexpr char kStageCastX[] = "cast x";
inline constexpr char kStageCastWeight[] = "cast weight";
inline constexpr char kStageCastBias[] = "cast bias";
inline constexpr char kStageQuantizeX[] = "quantize x";
inline constexpr char kStageQuantizeWeight[] = "quantize weight";
inline constexpr char kStageFprop[] = "fprop";
inline constexpr char kStageSave[] = "fingerprint saved operands";
inline constexpr char kStageCastGradOutput[] = "cast grad_output";
inline constexpr char kStageBiasGradient[] = "bias gradient";
inline constexpr char kStageQuantizeGradOutput[] = "quantize grad_output";
inline constexpr char kStageDequantizeWeight[] = "dequantize saved weight";
inline constexpr char kStageCastSavedWeight[] = "cast saved weight";
inline constexpr char kStageDgrad[] = "dgrad";
inline constexpr char kStageDequantizeX[] = "dequantize saved x";
inline constexpr char kStageCastSavedX[] = "cast saved x";
inline constexpr char kStageWgrad[] = "wgrad";
inline constexpr char kStageCheckSaved[] = "check saved operands";

}  // namespace quantgate
