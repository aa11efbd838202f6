// The CPU quantizer: which rule makes which copy, and from what.
#include "kernels/base/status_macros.h"
#include "kernels/numerics/format_list.h"
#include "kernels/quantize/block_lines.h"
#include "kernels/quantize/format_quantizers.h"

namespace quantgate {
namespace {

/// Counts over a source that is not quantized: its own codes.
template <class Source>
QuantizationCounts CountSource(const Tensor& source, const ExecutionContext& context) {
  using C = FormatConstants<Source>;
  constexpr uint32_t kInfinity = kBeyondMaxFinite<Source>;
  const auto* codes = source.as<typename Source::Storage>();
  return ForEachPiece(
      context, source.rows(), source.columns(),
      [&](const Piece& piece, QuantizationCounts& counts) {
        int64_t zero = 0, below_normal = 0, infinite = 0, nan = 0;
        for (int64_t row = piece.row_begin; row < piece.row_end; ++row) {
          for (int64_t column = piece.column_begin; column < piece.column_end; ++column) {
            const uint32_t magnitude = codes[row * source.columns() + column] & (C::kSignMask - 1u);
            zero += magnitude == 0;
            below_normal += magnitude <= C::kMantissaMask;
            infinite += magnitude == kInfinity;
            nan += magnitude > kInfinity;
          }
        }
        const int64_t count =
            (piece.row_end - piece.row_begin) * (piece.column_end - piece.column_begin);
        counts.zero += zero;
        counts.subnormal += below_normal - zero;
        counts.infinite += infinite;
        counts.nan += nan;
        counts.normal += count - below_normal - infinite - nan;
      });
}

absl::Status KeepSource(const FormatRequest& request, QuantizedTensor& quantized) {
  QuantizedCopy copy;
  copy.element = request.source.dtype();
  copy.data = request.source;
  if (request.usages.rowwise) quantized.rowwise = copy;
  if (request.usages.columnwise) quantized.columnwise = copy;
  VisitFormat(DTypeName(request.source.dtype()), [&]<class Source>() {
    quantized.counts = CountSource<Source>(request.source, request.context);
  });
  return request.context.CheckCancelled();
}

FormatQuantizer QuantizerOf(QuantizerFormat format) {
  switch (format) {
    case QuantizerFormat::kIdentity:
      return &KeepSource;
    case QuantizerFormat::kFp8Tensor:
      return &QuantizeFp8Tensor;
    case QuantizerFormat::kFp8Block:
      return &QuantizeFp8Block;
    case QuantizerFormat::kMxfp8:
      return &QuantizeMxfp8;
    case QuantizerFormat::kNvfp4:
      return &QuantizeNvfp4;
  }
  return nullptr;
}

/// One rule. `hadamard` is that of the columnwise copy.
absl::StatusOr<QuantizedTensor> QuantizeOneRule(const Tensor& source, QuantizerSpec spec,
                                                bool hadamard, Usages usages,
                                                const QuantizeArguments& arguments,
                                                const ExecutionContext& context) {
  spec.scale_rule = ResolveScaleRule(spec.scale_rule, spec.format);
  QuantizedTensor quantized;
  quantized.source_dtype = source.dtype();
  quantized.shape = source.shape();
  QG_RETURN_IF_ERROR(
      QuantizerOf(spec.format)({source, spec, usages, arguments, context, hadamard}, quantized));
  return quantized;
}

/// Each direction by its own rule, the columnwise one perhaps from the rowwise codes.
absl::StatusOr<QuantizedTensor> QuantizeTwoRules(const Tensor& source, const Quantizer& quantizer,
                                                 Usages usages, const QuantizeArguments& arguments,
                                                 const ExecutionContext& context) {
  const bool is_from_codes = quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized;
  QuantizedTensor rowwise;
  if (usages.rowwise || is_from_codes) {
    QG_ASSIGN_OR_RETURN(rowwise, QuantizeOneRule(source, quantizer.rowwise, false, {true, false},
                                                 arguments, context));
  }
  rowwise.is_hybrid = true;
  if (!usages.columnwise) return rowwise;
  Tensor columnwise_source = source;
  if (is_from_codes) {
    QG_ASSIGN_OR_RETURN(columnwise_source,
                        DequantizeCpu(rowwise, Usage::kRowwise, source.dtype(), context));
  }
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor columnwise,
      QuantizeOneRule(columnwise_source, quantizer.columnwise, quantizer.columnwise.hadamard,
                      {false, true}, arguments, context));
  columnwise.is_hybrid = true;
  if (!usages.rowwise) return columnwise;
  rowwise.columnwise = std::move(columnwise.columnwise);
  // One scale is kept: that of the rowwise copy where both have one.
  if (!rowwise.scale.has_value()) rowwise.scale = columnwise.scale;
  return rowwise;
}

}  // namespace

absl::StatusOr<QuantizedTensor> QuantizeCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const QuantizeArguments& arguments,
                                            const ExecutionContext& context) {
  if (!source.has_value()) return absl::InvalidArgumentError("quantize: the source is absent");
  QG_RETURN_IF_ERROR(CheckQuantization(source.dtype(), source.shape(), quantizer, usages));
  QG_RETURN_IF_ERROR(CheckQuantizeArguments(quantizer, arguments));
  const ScopedIeeeEnvironment ieee;
  if (IsOneRule(quantizer)) {
    return QuantizeOneRule(source, quantizer.rowwise, quantizer.columnwise.hadamard, usages,
                           arguments, context);
  }
  return QuantizeTwoRules(source, quantizer, usages, arguments, context);
}

}  // namespace quantgate
