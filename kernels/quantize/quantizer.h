// Quantizer: what one tensor in one role becomes (element format, block, scale rule), and the
// quantized tensor that comes out. A QuantizedTensor carries all that is needed to dequantize it;
// nobody asks the quantizer again.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Which direction blocks run along: rowwise along the last dim (K), columnwise along the first
/// (M).
enum class Usage { kRowwise, kColumnwise };
std::string_view UsageName(Usage usage);

struct Usages {
  bool rowwise = true;
  bool columnwise = false;
  friend bool operator==(const Usages&, const Usages&) = default;
};

enum class QuantizerFormat {
  kIdentity,   ///< Not quantized: high precision, optionally cast to the activation dtype.
  kFp8Tensor,  ///< FP8 with one scale per tensor, computed from the tensor itself (current
               ///< scaling).
};

std::string_view ScaleRuleName(ScaleRule rule);
std::string_view ElementRoundingName(ElementRounding rounding);
std::string_view OverflowName(Overflow overflow);

struct QuantizerSpec {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  DType element = DType::kF8E4M3;
  bool power_2_scale = false;
  float amax_epsilon = 0.0f;
  ScaleRule scale_rule = ScaleRule::kDivide;
  ElementRounding element_rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;

  bool is_quantized() const { return format != QuantizerFormat::kIdentity; }
  friend bool operator==(const QuantizerSpec&, const QuantizerSpec&) = default;
};

/// "f8_e4m3 per tensor, scale_rule=divide, ..."; "identity". The rule's name as reports print it.
std::string QuantizerText(const QuantizerSpec& spec);

/// What became of the elements of one quantization, counted over one direction.
struct QuantizationCounts {
  int64_t normal = 0;
  int64_t zero = 0;             ///< Zero in the source.
  int64_t subnormal = 0;        ///< Non-zero codes below the smallest normal of the element format.
  int64_t flushed_to_zero = 0;  ///< Non-zero in the source, zero code.
  int64_t saturated = 0;        ///< Finite in the source, beyond the largest finite code.
  int64_t infinite = 0;         ///< Infinite in the source.
  int64_t nan = 0;              ///< NaN in the source.
};

/// Codes and scales of one tensor, in the logical layouts of docs/definitions.md section 8 (no
/// padding, no swizzle). Absent directions have no value.
struct QuantizedTensor {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  DType element = DType::kF8E4M3;
  DType source_dtype = DType::kBF16;
  Shape shape;               ///< Of the source.
  Tensor rowwise_data;       ///< Codes, shape of the source.
  Tensor rowwise_scale_inv;  ///< Per-tensor FP8: f32 [1].
  Tensor columnwise_data;    ///< Per-tensor FP8: the byte transpose, [K][M].
  Tensor columnwise_scale_inv;
  Tensor amax_rowwise;  ///< f32 [1]; NaN elements are ignored.
  Tensor amax_columnwise;
  Tensor scale;  ///< f32 [1].
  QuantizationCounts counts;

  Usages usages() const { return {rowwise_data.has_value(), columnwise_data.has_value()}; }
};

/// Quantizes `source` (f32, bf16 or f16; any rank >= 1; M = 0 gives empty codes, amax 0, scale 1)
/// in the asked usages. Asking for both gives the bytes of asking for each alone. INVALID_ARGUMENT
/// for a bad dtype or no usage. Per-tensor FP8 follows docs/quantizers.md sections 1.1, 1.5 and 3.
absl::StatusOr<QuantizedTensor> QuantizeCpu(const Tensor& source, const QuantizerSpec& spec,
                                            Usages usages, const ExecutionContext& context);

/// f32(code) * scale_inv in one fp32 multiplication, then RNE to `out_dtype` (f32, bf16, f16), in
/// the shape of the source whichever usage is read. FAILED_PRECONDITION when that usage is absent.
absl::StatusOr<Tensor> DequantizeCpu(const QuantizedTensor& quantized, Usage usage, DType out_dtype,
                                     const ExecutionContext& context);

}  // namespace quantgate
