// The quantizers of the formats, one per source file, and the checks and choices that all engines
// share. Private to kernels/quantize.
#pragma once

#include "absl/functional/function_ref.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// Whether `usages` has `usage`.
inline bool HasUsage(Usages usages, Usage usage) {
  return usage == Usage::kRowwise ? usages.rowwise : usages.columnwise;
}

/// One quantization by one rule, for both usages or for one. The scale rule is resolved and
/// everything is checked.
struct FormatRequest {
  const Tensor& source;
  const QuantizerSpec& spec;
  Usages usages;
  const QuantizeArguments& arguments;
  const ExecutionContext& context;
  /// nvfp4: whether the columnwise copy is that of the Hadamard-transformed source. spec.hadamard
  /// is not read.
  bool hadamard = false;
};

/// Memory for the codes of one direction: that of QuantizeArguments where it serves.
absl::StatusOr<Tensor> CodesMemory(const FormatRequest& request, Usage usage, DType element,
                                   Shape shape);

/// Writes the requested copies and the counts of the rowwise one (or of the only one).
using FormatQuantizer = absl::Status (*)(const FormatRequest& request, QuantizedTensor& quantized);

absl::Status QuantizeFp8Tensor(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeFp8Rowwise(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeFp8Block(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeMxfp8(const FormatRequest& request, QuantizedTensor& quantized);
absl::Status QuantizeNvfp4(const FormatRequest& request, QuantizedTensor& quantized);
/// Every format, where TakesGeneralPath.
absl::Status QuantizeGenerally(const FormatRequest& request, QuantizedTensor& quantized);

/// max |x| over the elements, exact (docs/quantizers.md section 1.5).
float TensorAmax(const Tensor& source, const ExecutionContext& context);

// ---- shared by all engines (quantize_check.cc, quantize_rules.cc, usages.cc)

/// A quantization by one rule, whose scale rule is resolved.
struct RuleRequest {
  const Tensor& source;
  const QuantizerSpec& spec;
  bool hadamard;  ///< Of the columnwise copy; the engine must not read spec.hadamard.
  Usages usages;
  const QuantizeArguments& arguments;  ///< `scale` is that of the rule.
};
/// An engine's quantization by one rule.
using RuleQuantizer =
    absl::FunctionRef<absl::Status(const RuleRequest& request, QuantizedTensor& quantized)>;
/// An engine's dequantization of a rowwise copy to `out_dtype`.
using RowwiseDequantizer =
    absl::FunctionRef<absl::StatusOr<Tensor>(const QuantizedTensor& quantized, DType out_dtype)>;

/// QuantizeCpu for any engine: makes all checks and decides which rule makes which copy, and from
/// what.
absl::StatusOr<QuantizedTensor> QuantizeByRules(const Tensor& source, const Quantizer& quantizer,
                                                Usages usages, const QuantizeArguments& arguments,
                                                RuleQuantizer quantize,
                                                RowwiseDequantizer dequantize);

/// Whether rows off the multiples of a micro format's blocks are quantized rowwise by this rule:
/// blocks within a row, by steps that the general path has.
bool TakesRaggedRows(const QuantizerSpec& spec);
/// Whether an engine quantizes `source` on its general path: what QuantizerSpec::takes_general_path
/// says, and such rows.
bool TakesGeneralPath(const QuantizerSpec& spec, const Tensor& source);

/// Whether a copy by this rule has an amax that the maximum over a group may replace.
bool ReadsGroupAmax(const QuantizerSpec& spec);

/// Which maxima MeasureAmaxCpu gives.
struct AmaxPlan {
  bool rowwise = false, columnwise = false;
  bool is_transformed = false;  ///< The columnwise one is that of the Hadamard-transformed source.
};
/// INVALID_ARGUMENT as MeasureAmaxCpu.
absl::StatusOr<AmaxPlan> PlanAmaxes(const Tensor& source, const Quantizer& quantizer,
                                    Usages usages);

/// The largest finite value of `source`: f32, bf16 or f16.
float LargestFiniteOf(DType source);

/// Returns what DequantizeCpu refuses.
absl::Status CheckDequantization(const QuantizedTensor& quantized, Usage usage, DType out_dtype);

/// An engine's way to make the columnwise copy from a rowwise one of fp8_tensor, or of tiles of
/// fp8_block or nvfp4.
using ColumnwiseMaker =
    absl::FunctionRef<absl::StatusOr<QuantizedCopy>(const QuantizedCopy& rowwise)>;

/// UpdateUsagesCpu for any engine.
absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                          ColumnwiseMaker make_columnwise);

}  // namespace quantgate
