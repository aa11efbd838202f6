// Quantizer: how one tensor is quantized in each direction (element format, block, scale rule), and
// the CPU functions that quantize, dequantize and summarize.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/level_rule.h"
#include "kernels/numerics/library_rule.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

// Names as recipes and reports spell them. Parsing fails with INVALID_ARGUMENT, which lists the
// names; CheckQuantizer says whether a value fits a format.
std::string_view ScaleRuleName(ScaleRule rule);  ///< "usual" for kUsual.
std::string_view ElementRoundingName(ElementRounding rounding);
std::string_view OverflowName(Overflow overflow);
std::string_view StepDTypeName(StepDType dtype);  ///< "f32", "source".
std::string_view ElementOperationName(ElementOperation operation);
std::string_view ZeroScaleName(ZeroScale zero_scale);
std::string_view SignOfZeroName(SignOfZero zero_sign);
std::string_view ZeroPointName(ZeroPoint zero_point);  ///< "none", "integer", "float".
absl::StatusOr<ScaleRule> ParseScaleRule(std::string_view name);
absl::StatusOr<ElementRounding> ParseElementRounding(std::string_view name);
absl::StatusOr<Overflow> ParseOverflow(std::string_view name);
/// `field` is that of the quantizer: scale_dtype, operation_dtype.
absl::StatusOr<StepDType> ParseStepDType(std::string_view field, std::string_view name);
absl::StatusOr<ElementOperation> ParseElementOperation(std::string_view name);
absl::StatusOr<ZeroScale> ParseZeroScale(std::string_view name);
absl::StatusOr<SignOfZero> ParseSignOfZero(std::string_view name);
absl::StatusOr<ZeroPoint> ParseZeroPoint(std::string_view name);
/// Of what a scale of levels is: "tensor", "row", or a number of at least 2.
absl::StatusOr<int> ParseGroup(std::string_view text);
inline constexpr int kGroupMax = 65536;

/// The first rule of the format for kUsual; other rules unchanged.
ScaleRule ResolveScaleRule(ScaleRule rule, QuantizerFormat format);
/// The usual group of the format for 0; other groups unchanged.
int ResolveGroup(int group, QuantizerFormat format);

/// Where a per-tensor FP8 scale comes from.
enum class Scaling {
  kCurrent,  ///< From the amax of the tensor itself.
  kDelayed,  ///< It is given, made from the amaxes of earlier steps (docs/quantizers.md section 2).
};

/// The error that NVFP4's 4over6 minimises when it chooses 4 or 6 as the largest value of a block
/// (docs/quantizers.md section 6.7).
enum class FourOverSix { kNone, kMae, kMse };
std::string_view FourOverSixName(FourOverSix mode);  ///< "none", "mae", "mse".

/// Where scales are made by operations that flush subnormals (docs/quantizers.md section 8.2).
enum class FlushSubnormals {
  kShardedUpdate,  ///< Where a weight is quantized from fragments of its master, as Transformer
                   ///< Engine does; the quantizer of a whole tensor keeps subnormals.
  kNever,
  kAlways,  ///< By the quantizer of a whole tensor, too.
};
std::string_view FlushSubnormalsName(FlushSubnormals where);  ///< "sharded_update" and so on.
absl::StatusOr<FlushSubnormals> ParseFlushSubnormals(std::string_view name);

/// The rule of one direction. Fields that do not apply to the format keep the defaults.
struct QuantizerSpec {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  /// The dtype of the codes; of identity f32, bf16 or f16 to cast the source, else the default.
  DType element = DType::kF8E4M3;
  int block_dim = 1;                    ///< fp8_block, mxfp8, nvfp4.
  Scaling scaling = Scaling::kCurrent;  ///< fp8_tensor.
  bool power_2_scale = false;           ///< fp8_tensor, fp8_block, fp8_rowwise.
  float amax_epsilon = 0.0f;            ///< fp8_tensor, fp8_block, fp8_rowwise.
  ScaleRule scale_rule = ScaleRule::kUsual;
  ElementRounding element_rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  bool hadamard = false;    ///< nvfp4, the columnwise rule only.
  bool row_scaled = false;  ///< nvfp4.
  FourOverSix four_over_six = FourOverSix::kNone;
  int e4m3_max = 448;  ///< nvfp4.
  /// fp8_tensor, fp8_block, mxfp8; not kAlways under delayed scaling.
  FlushSubnormals flush_subnormals = FlushSubnormals::kShardedUpdate;
  // The steps of other libraries (docs/quantizers.md section 7.4). The first four are of fp8_tensor
  // with current scaling and of fp8_block, the last of every format.
  StepDType scale_dtype = StepDType::kF32;  ///< What makes the scale is rounded to it.
  ElementOperation element_operation = ElementOperation::kMultiply;
  StepDType operation_dtype = StepDType::kF32;  ///< What is cast is rounded to it before.
  ZeroScale zero_scale = ZeroScale::kOne;
  SignOfZero zero_sign = SignOfZero::kKeep;
  // Formats of levels: int8, int4, nf4, bnb_fp4. Their scale_rule says the other steps, but that
  // torchao's are rounded to operation_dtype.
  int group = 0;  ///< Elements under one scale; 0: the format's usual number.
  ZeroPoint zero_point = ZeroPoint::kNone;

  /// Whether a step is not Transformer Engine's, so that the general path of an engine has it
  /// (format_quantizers.h).
  bool has_library_steps() const {
    return traits().has_levels() || IsLibraryRule(scale_rule) ||
           element_rounding == ElementRounding::kNearestZero || scale_dtype != StepDType::kF32 ||
           element_operation != ElementOperation::kMultiply || operation_dtype != StepDType::kF32 ||
           zero_scale != ZeroScale::kOne || zero_sign != SignOfZero::kKeep;
  }
  /// Whether the general path of an engine quantizes so: for such a step, and for fp32 scales of
  /// blocks of another length than 128 and elements of AMD's, which the tuned paths do not have.
  bool takes_general_path() const {
    const bool is_group = traits().scales == ScaleKind::kF32 && traits().block_length != 128;
    return has_library_steps() || is_group || IsFnuz(element);
  }
  bool is_quantized() const { return format != QuantizerFormat::kIdentity; }
  /// Whether it is an identity that casts its source.
  bool casts() const { return !is_quantized() && IsHighPrecision(element); }
  /// Whether a GEMM reads something else than the operand in the activation dtype.
  bool makes_copy() const { return is_quantized() || casts(); }
  /// The dtype of what is made of a source.
  DType ElementOf(DType source) const { return makes_copy() ? element : source; }
  const ScalingTraits& traits() const { return TraitsOf(format); }
  /// What becomes of subnormals where scales of whole tensors are made, and of fragments.
  Subnormals subnormals() const {
    return flush_subnormals == FlushSubnormals::kAlways ? Subnormals::kFlushed : Subnormals::kKept;
  }
  Subnormals fragment_subnormals() const {
    return flush_subnormals == FlushSubnormals::kNever ? Subnormals::kKept : Subnormals::kFlushed;
  }
  friend bool operator==(const QuantizerSpec&, const QuantizerSpec&) = default;
};

/// What columnwise codes are made from: the source, or the values of the rowwise codes.
enum class ColumnwiseSource { kOriginal, kRowwiseDequantized };
std::string_view ColumnwiseSourceName(ColumnwiseSource source);

/// The rules of both directions of a tensor. They differ only under hybrid and custom recipes.
struct Quantizer {
  QuantizerSpec rowwise;
  QuantizerSpec columnwise;
  ColumnwiseSource columnwise_source = ColumnwiseSource::kOriginal;

  Quantizer() = default;
  /// One rule for both directions.
  Quantizer(const QuantizerSpec& both) : rowwise(both), columnwise(both) {}

  const QuantizerSpec& spec(Usage usage) const {
    return usage == Usage::kRowwise ? rowwise : columnwise;
  }
  /// Whether both directions have one rule, and what columnwise codes are made from is the source.
  bool is_uniform() const {
    return rowwise == columnwise && columnwise_source == ColumnwiseSource::kOriginal;
  }
  /// Whether both copies are made from the source by one rule, up to a Hadamard transform. If not,
  /// the tensor is hybrid (QuantizedTensor::is_hybrid).
  bool has_one_rule() const {
    QuantizerSpec other = columnwise;
    other.hadamard = false;
    return other == rowwise &&
           (columnwise_source == ColumnwiseSource::kOriginal || !rowwise.makes_copy());
  }
  /// The directions that have a delayed scale of their own. A uniform quantizer has one scale for
  /// both, that of the rowwise direction.
  std::vector<Usage> delayed_directions() const {
    std::vector<Usage> directions;
    if (rowwise.scaling == Scaling::kDelayed) directions.push_back(Usage::kRowwise);
    if (columnwise.scaling == Scaling::kDelayed && !is_uniform()) {
      directions.push_back(Usage::kColumnwise);
    }
    return directions;
  }
  /// Whether a direction draws random numbers.
  bool rounds_stochastically() const {
    return rowwise.element_rounding == ElementRounding::kStochastic ||
           columnwise.element_rounding == ElementRounding::kStochastic;
  }
  friend bool operator==(const Quantizer&, const Quantizer&) = default;
};

/// The rule as reports print it: "f8_e4m3 per tensor, scale_rule=divide, ..."; "identity";
/// "rowwise ...; columnwise ..." if the two differ.
std::string QuantizerText(const Quantizer& quantizer);

/// The steps of a format of levels, of a source of this dtype. `spec` has its scale rule and its
/// group resolved.
LevelRule MakeLevelRule(const QuantizerSpec& spec, DType source);

/// What one call needs besides the rule.
struct QuantizeArguments {
  Tensor scale = {};  ///< f32 [1], delayed scaling only: of the rowwise direction, or of both.
  /// f32 [1], of a columnwise direction with a delayed scale of its own.
  Tensor columnwise_scale = {};
  uint64_t seed = 0;     ///< The Philox key of stochastic rounding.
  uint32_t call_id = 0;  ///< The number of this quantization among those with the same seed.
  /// Where this tensor begins in the whole one if it is a shard, so that random bytes do not depend
  /// on sharding; multiples of 16.
  int64_t row_offset = 0;
  int64_t column_offset = 0;
  /// f32 [1], the maximum over a group of tensors of what MeasureAmaxCpu gives for each; it takes
  /// the place of the tensor's own amax. For fp8_tensor with current scaling (rowwise, for both
  /// copies) and for nvfp4 unless row-scaled. An empty tensor then has the scale of the group.
  Tensor group_amax_rowwise = {};
  Tensor group_amax_columnwise = {};
  /// Host memory for the codes of a direction, which no operand shares. The CPU engine writes them
  /// there where it makes codes of that dtype and shape by themselves, and where the memory of
  /// large codes is aligned to 64 bytes; then the result's data is this tensor. Otherwise, and on
  /// another engine, the result has memory of its own.
  Tensor rowwise_codes = {};
  Tensor columnwise_codes = {};
};

/// INVALID_ARGUMENT naming the field, its value and the rule if `quantizer` is invalid for every
/// tensor (docs/quantizers.md section 7.1).
absl::Status CheckQuantizer(const Quantizer& quantizer);

/// CheckQuantizer of what codes and scales say of the rule that made them, which of codes of levels
/// is not their scale rule and zero point.
absl::Status CheckDescription(const QuantizerSpec& spec);
/// INVALID_ARGUMENT unless some rule gives codes of this format of levels such zero points.
absl::Status CheckZeroPoint(QuantizerFormat format, DType element, ZeroPoint zero_point);

/// As CheckQuantizer, and INVALID_ARGUMENT also if a tensor of this dtype and shape cannot be
/// quantized so in these usages.
absl::Status CheckQuantization(DType source, const Shape& shape, const Quantizer& quantizer,
                               Usages usages);

/// INVALID_ARGUMENT if a tensor in these usages cannot take maxima over a group: when the
/// columnwise amax is that of the rowwise codes, which are made only after it is needed.
absl::Status CheckGroupAmaxes(const Quantizer& quantizer, Usages usages);

/// Quantizes `source` (f32, bf16 or f16; any rank >= 1; M = 0 gives empty codes, amax 0, scale 1)
/// in the given usages. Both at once give the same bytes as each alone. An identity copy
/// is the source's own buffer unless it casts the source. INVALID_ARGUMENT as CheckQuantization, or
/// for a missing or unwanted argument. Formulas: docs/quantizers.md sections 1 to 7.
absl::StatusOr<QuantizedTensor> QuantizeCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const QuantizeArguments& arguments,
                                            const ExecutionContext& context);

/// The maxima of one tensor, to be reduced to QuantizeArguments::group_amax_rowwise and
/// _columnwise: f32 [1] each, 0 for an empty tensor, absent if quantization would not read that of
/// a group.
struct TensorAmaxes {
  Tensor rowwise, columnwise;
};

/// The maxima that QuantizeCpu would find in the same source (docs/quantizers.md section 1.5), for
/// reduction over a group. INVALID_ARGUMENT as CheckQuantization and CheckGroupAmaxes.
absl::StatusOr<TensorAmaxes> MeasureAmaxCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const ExecutionContext& context);

/// The values of one copy, rounded to nearest even to `out_dtype` (f32, bf16, f16), in the shape of
/// the source for either usage. FAILED_PRECONDITION when that usage is absent; UNIMPLEMENTED for a
/// columnwise nvfp4 copy, as in Transformer Engine (docs/quantizers.md section 8).
absl::StatusOr<Tensor> DequantizeCpu(const QuantizedTensor& quantized, Usage usage, DType out_dtype,
                                     const ExecutionContext& context);

/// Whether UpdateUsagesCpu would make `quantized`, which may be an outline, hold `usages`:
/// FAILED_PRECONDITION naming the direction and why it cannot be had
/// (docs/quantizers.md section 8).
absl::Status CheckUsages(const QuantizedTensor& quantized, Usages usages);

/// Makes `quantized` hold exactly `usages`: drops a direction, derives columnwise from rowwise
/// codes where the format allows it exactly, and otherwise FAILED_PRECONDITION with nothing changed
/// (docs/quantizers.md section 8).
absl::Status UpdateUsagesCpu(QuantizedTensor& quantized, Usages usages,
                             const ExecutionContext& context);

/// What a report says of one quantization, read from the result.
struct QuantizationSummary {
  /// The amax and scales of the whole tensor if the format has them: per-tensor FP8, and the amax
  /// of nvfp4 unless row-scaled. The columnwise amax only if it differs (after a Hadamard
  /// transform).
  std::optional<float> amax;
  std::optional<float> amax_columnwise;
  std::optional<float> scale;
  std::optional<float> scale_inv;
  QuantizationCounts counts;
  /// How many scales of blocks or lines have each code (E8M0, E4M3) or, for fp32 scales, each
  /// biased exponent, in the direction of `counts`. Codes that do not occur are left out.
  std::map<int, int64_t> scale_codes;
};

/// The summary of a tensor in host memory with at least one copy.
QuantizationSummary SummarizeCpu(const QuantizedTensor& quantized);

}  // namespace quantgate
