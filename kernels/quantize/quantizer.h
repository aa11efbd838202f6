// Quantizer: what one tensor in one role becomes in each direction (element format, block, scale
// rule).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

// Names as recipes and reports spell them. Parsing is INVALID_ARGUMENT listing the names; whether a
// value fits a format is the matter of CheckQuantizer.
std::string_view ScaleRuleName(ScaleRule rule);  ///< "usual" for kUsual.
std::string_view ElementRoundingName(ElementRounding rounding);
std::string_view OverflowName(Overflow overflow);
absl::StatusOr<ScaleRule> ParseScaleRule(std::string_view name);
absl::StatusOr<ElementRounding> ParseElementRounding(std::string_view name);
absl::StatusOr<Overflow> ParseOverflow(std::string_view name);

/// kUsual resolved for the format.
ScaleRule ResolveScaleRule(ScaleRule rule, QuantizerFormat format);

/// Where a per-tensor FP8 scale comes from.
enum class Scaling {
  kCurrent,  ///< From the tensor's own amax.
  kDelayed,  ///< Given: from the amaxes of earlier steps (docs/quantizers.md section 2).
};

/// NVFP4's choice per block between the largest codes 4 and 6 (docs/quantizers.md section 6.7), by
/// the error it minimises.
enum class FourOverSix { kNone, kMae, kMse };
std::string_view FourOverSixName(FourOverSix mode);  ///< "none", "mae", "mse".

/// The rule of one direction. Fields that a format does not have keep their defaults.
struct QuantizerSpec {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  DType element = DType::kF8E4M3;
  int block_dim = 1;                    ///< fp8_block, mxfp8, nvfp4.
  Scaling scaling = Scaling::kCurrent;  ///< fp8_tensor.
  bool power_2_scale = false;           ///< fp8_tensor, fp8_block.
  float amax_epsilon = 0.0f;            ///< fp8_tensor, fp8_block.
  ScaleRule scale_rule = ScaleRule::kUsual;
  ElementRounding element_rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  bool hadamard = false;    ///< nvfp4, the columnwise rule only.
  bool row_scaled = false;  ///< nvfp4.
  FourOverSix four_over_six = FourOverSix::kNone;
  int e4m3_max = 448;  ///< nvfp4.

  bool is_quantized() const { return format != QuantizerFormat::kIdentity; }
  const ScalingTraits& traits() const { return TraitsOf(format); }
  friend bool operator==(const QuantizerSpec&, const QuantizerSpec&) = default;
};

/// What columnwise codes are made from.
enum class ColumnwiseSource { kOriginal, kRowwiseDequantized };
std::string_view ColumnwiseSourceName(ColumnwiseSource source);

/// Both directions of a tensor. They differ under hybrid and custom recipes only.
struct Quantizer {
  QuantizerSpec rowwise;
  QuantizerSpec columnwise;
  ColumnwiseSource columnwise_source = ColumnwiseSource::kOriginal;

  Quantizer() = default;
  /// One rule for both.
  Quantizer(const QuantizerSpec& both) : rowwise(both), columnwise(both) {}

  const QuantizerSpec& spec(Usage usage) const {
    return usage == Usage::kRowwise ? rowwise : columnwise;
  }
  /// Some direction draws random numbers.
  bool rounds_stochastically() const {
    return rowwise.element_rounding == ElementRounding::kStochastic ||
           columnwise.element_rounding == ElementRounding::kStochastic;
  }
  friend bool operator==(const Quantizer&, const Quantizer&) = default;
};

/// "f8_e4m3 per tensor, scale_rule=divide, ..."; "identity"; "rowwise ...; columnwise ..." where
/// they differ. The rule's name as reports print it.
std::string QuantizerText(const Quantizer& quantizer);

/// What one call needs beyond its rule.
struct QuantizeArguments {
  Tensor scale = {};     ///< f32 [1], delayed scaling only.
  uint64_t seed = 0;     ///< Stochastic rounding: the Philox key,
  uint32_t call_id = 0;  ///< and which quantization of that seed this is.
  /// Where this tensor begins in the whole one, for random bytes that do not depend on sharding:
  /// multiples of 16.
  int64_t row_offset = 0;
  int64_t column_offset = 0;
  /// f32 [1], the maximum over a group of tensors in place of the tensor's own, as MeasureAmax
  /// gives each: fp8_tensor (rowwise, for both copies) with current scaling, nvfp4 unless
  /// row-scaled. An empty tensor has the group's scale then.
  Tensor group_amax_rowwise = {};
  Tensor group_amax_columnwise = {};
};

/// INVALID_ARGUMENT naming the field, its value and the rule where `quantizer` makes no sense,
/// whatever the tensor (docs/quantizers.md section 7.1).
absl::Status CheckQuantizer(const Quantizer& quantizer);

/// CheckQuantizer, and that a tensor of this dtype and shape can be quantized so in these usages.
absl::Status CheckQuantization(DType source, const Shape& shape, const Quantizer& quantizer,
                               Usages usages);

/// That a tensor in these usages can stand under maxima over a group: INVALID_ARGUMENT where the
/// columnwise one is that of rowwise codes, which are made after it.
absl::Status CheckGroupAmaxes(const Quantizer& quantizer, Usages usages);

/// Quantizes `source` (f32, bf16 or f16; any rank >= 1; M = 0 gives empty codes, amax 0, scale 1)
/// in the asked usages. Asking for both gives the bytes of asking for each alone. An identity copy
/// is the source's own buffer. INVALID_ARGUMENT as CheckQuantization, or for a missing or unwanted
/// argument. Formulas: docs/quantizers.md sections 1 to 7.
absl::StatusOr<QuantizedTensor> QuantizeCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const QuantizeArguments& arguments,
                                            const ExecutionContext& context);

/// What a quantization finds as a tensor's own maxima: f32 [1] each, 0 for an empty tensor, absent
/// where a group's would not be read. For QuantizeArguments::group_amax_rowwise, _columnwise.
struct TensorAmaxes {
  Tensor rowwise, columnwise;
};

/// The maxima that QuantizeCpu would find of the same source (docs/quantizers.md section 1.5), to
/// be reduced over a group first. INVALID_ARGUMENT as CheckQuantization and CheckGroupAmaxes.
absl::StatusOr<TensorAmaxes> MeasureAmaxCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const ExecutionContext& context);

/// The values of one copy, RNE to `out_dtype` (f32, bf16, f16), in the shape of the source
/// whichever usage is read. FAILED_PRECONDITION when that usage is absent; UNIMPLEMENTED for a
/// columnwise nvfp4 copy, as in Transformer Engine (docs/quantizers.md section 8).
absl::StatusOr<Tensor> DequantizeCpu(const QuantizedTensor& quantized, Usage usage, DType out_dtype,
                                     const ExecutionContext& context);

/// Makes `quantized` hold exactly `usages`: drops a direction, derives columnwise from rowwise
/// codes where the format allows it exactly, and otherwise FAILED_PRECONDITION with nothing changed
/// (docs/quantizers.md section 8).
absl::Status UpdateUsagesCpu(QuantizedTensor& quantized, Usages usages,
                             const ExecutionContext& context);

}  // namespace quantgate
