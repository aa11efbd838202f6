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

// ---- what all engines ask (quantize_check.cc, quantize_rules.cc, usages.cc)

/// Quantizes by one rule, whose scale rule is resolved. `hadamard` is that of the columnwise copy;
/// spec.hadamard is not to be read.
using RuleQuantizer =
    absl::FunctionRef<absl::Status(const Tensor& source, const QuantizerSpec& spec, bool hadamard,
                                   Usages usages, QuantizedTensor& quantized)>;
/// The values of a rowwise copy in `out_dtype`.
using RowwiseDequantizer =
    absl::FunctionRef<absl::StatusOr<Tensor>(const QuantizedTensor& quantized, DType out_dtype)>;

/// QuantizeCpu for any engine: all checks, and which rule makes which copy, from what.
absl::StatusOr<QuantizedTensor> QuantizeByRules(const Tensor& source, const Quantizer& quantizer,
                                                Usages usages, const QuantizeArguments& arguments,
                                                RuleQuantizer quantize,
                                                RowwiseDequantizer dequantize);

/// Whether a copy by this rule has an amax that may be a group's.
bool ReadsGroupAmax(const QuantizerSpec& spec);

/// The maxima that MeasureAmaxCpu gives; INVALID_ARGUMENT as there.
struct AmaxPlan {
  bool rowwise = false, columnwise = false;
  bool is_transformed = false;  ///< The columnwise one is that of the Hadamard-transformed source.
};
absl::StatusOr<AmaxPlan> PlanAmaxes(const Tensor& source, const Quantizer& quantizer,
                                    Usages usages);

/// The largest finite value of f32, bf16 or f16.
float LargestOf(DType source);

/// What DequantizeCpu refuses.
absl::Status CheckDequantization(const QuantizedTensor& quantized, Usage usage, DType out_dtype);

/// Makes the columnwise copy of a rowwise one: of fp8_tensor, or of tiles of fp8_block or nvfp4.
using ColumnwiseMaker =
    absl::FunctionRef<absl::StatusOr<QuantizedCopy>(const QuantizedCopy& rowwise)>;

/// UpdateUsagesCpu for any engine.
absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                          ColumnwiseMaker make_columnwise);

}  // namespace quantgate
