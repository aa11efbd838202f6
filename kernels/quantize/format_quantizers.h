// The quantizers of the formats, one per source file, and what all engines ask before they
// compute. Private to kernels/quantize.
#pragma once

#include "absl/functional/function_ref.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

inline bool Asks(Usages usages, Usage usage) {
  return usage == Usage::kRowwise ? usages.rowwise : usages.columnwise;
}

/// What one rule makes of a source: `spec` for both usages, or one usage alone. The scale rule is
/// resolved, everything is checked.
struct FormatRequest {
  const Tensor& source;
  const QuantizerSpec& spec;
  Usages usages;
  const QuantizeArguments& arguments;
  const ExecutionContext& context;
  /// nvfp4: whether the columnwise copy is of the Hadamard-transformed source. spec.hadamard is not
  /// read.
  bool hadamard = false;
};

/// Writes the asked copies, the counts of the rowwise one (or of the only one), and for per-tensor
/// FP8 the scale.
using FormatQuantizer = absl::Status (*)(const FormatRequest& request, QuantizedTensor& quantized);

absl::Status QuantizeFp8Tensor(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeFp8Block(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeMxfp8(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeNvfp4(const FormatRequest& request, QuantizedTensor& quantized);

/// max |x| over the elements, exact (docs/quantizers.md section 1.5).
float TensorAmax(const Tensor& source, const ExecutionContext& context);

// ---- what all engines ask (quantize_check.cc, usages.cc)

/// INVALID_ARGUMENT for a missing, unwanted or impossible argument. The value of a scale in device
/// memory is not looked at.
absl::Status CheckQuantizeArguments(const Quantizer& quantizer, const QuantizeArguments& arguments);

/// True where one pass makes both copies: the rules are the same but for the transform, which only
/// the columnwise copy has.
bool IsOneRule(const Quantizer& quantizer);

/// What DequantizeCpu refuses.
absl::Status CheckDequantization(const QuantizedTensor& quantized, Usage usage, DType out_dtype);

/// Makes the columnwise copy of a rowwise one: of fp8_tensor, or of tiles of fp8_block or nvfp4.
using ColumnwiseMaker =
    absl::FunctionRef<absl::StatusOr<QuantizedCopy>(const QuantizedCopy& rowwise)>;

/// UpdateUsagesCpu for any engine.
absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                          ColumnwiseMaker make_columnwise);

}  // namespace quantgate
