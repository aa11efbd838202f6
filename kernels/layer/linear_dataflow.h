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
  /// What is asked of the quantizers; neither direction: not quantized. A columnwise copy may be
  /// high precision where it is made from the rowwise codes (columnwise_source).
  Usages x_usages{false, false};
  Usages weight_usages{false, false};
  Usages grad_output_usages{false, false};
  /// fprop or, without an override, dgrad reads the weight in the activation dtype.
  bool reads_weight = false;
  bool is_delayed = false;      ///< Scales are updated.
  bool is_calibration = false;  ///< Amaxes are noted; nothing is quantized.

  bool has_backward() const { return needs_dx || needs_dw || needs_db; }
  bool quantizes_x() const { return x_usages.rowwise || x_usages.columnwise; }
  bool quantizes_weight() const { return weight_usages.rowwise || weight_usages.columnwise; }
  bool quantizes_grad_output() const {
    return grad_output_usages.rowwise || grad_output_usages.columnwise;
  }
  /// Without an override, dgrad reads the weight in the activation dtype as forward had it.
  bool keeps_weight() const {
    return needs_dx && !quantizes_dgrad && !has_weight_copy() &&
           backward_override == BackwardOverride::kNone;
  }
  /// dgrad reads a dequantized copy that was made beside the codes.
  bool has_weight_copy() const { return weight_usages.columnwise && !quantizes_dgrad; }
  /// Backward reads x and weight in the activation dtype, cast from what was given.
  bool reads_originals() const { return backward_override == BackwardOverride::kHighPrecision; }
  /// Backward reads the dequantized rowwise codes.
  bool reads_dequantized() const {
    return backward_override == BackwardOverride::kDequantized && quantizes_fprop;
  }
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
inline constexpr char kStageCalibrateX[] = "calibrate x";
inline constexpr char kStageCalibrateWeight[] = "calibrate weight";
inline constexpr char kStageCalibrateGradOutput[] = "calibrate grad_output";
inline constexpr char kStageCastWeightCopy[] = "cast dequantized weight";
inline constexpr char kStageFprop[] = "fprop";
inline constexpr char kStageUpdateForward[] = "update scales of forward";
inline constexpr char kStageUpdateBackward[] = "update scales of backward";
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
