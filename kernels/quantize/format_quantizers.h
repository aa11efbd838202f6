// The quantizers of the formats, one per source file. Private to kernels/quantize.
#pragma once

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

}  // namespace quantgate
