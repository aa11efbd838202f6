// The CPU quantizer: chooses the format's quantizer, and does identity itself.
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cpu/block_lines.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// Counts the codes of a source that is not quantized.
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

QuantizationCounts CountsOfTensor(const Tensor& tensor, const ExecutionContext& context) {
  QuantizationCounts counts;
  VisitFormat<SourceFormats>(
      tensor.dtype(), [&]<class Source>() { counts = CountSource<Source>(tensor, context); });
  return counts;
}

/// Keeps the source, or its cast.
absl::Status KeepSource(const FormatRequest& request, QuantizedTensor& quantized) {
  const Tensor& source = request.source;
  QuantizedCopy copy;
  copy.element = request.spec.ElementOf(source.dtype());
  copy.is_cast = request.spec.casts();
  QG_ASSIGN_OR_RETURN(copy.data, CastTensor(source, copy.element, request.context));
  QuantizationCounts& counts = quantized.counts;
  counts = CountsOfTensor(source, request.context);
  if (copy.element != source.dtype()) {
    // The sums of KindOfKept over the elements, which the GPU forms one by one.
    const QuantizationCounts kept = CountsOfTensor(copy.data, request.context);
    counts.normal = kept.normal;
    counts.subnormal = kept.subnormal;
    counts.flushed_to_zero = kept.zero - counts.zero;
    counts.saturated = kept.infinite - counts.infinite;
  }
  if (request.usages.rowwise) quantized.rowwise = copy;
  if (request.usages.columnwise) quantized.columnwise = copy;
  return request.context.CheckCancelled();
}

FormatQuantizer QuantizerOf(const QuantizerSpec& spec, const Tensor& source) {
  if (TakesGeneralPath(spec, source)) return &QuantizeGenerally;
  switch (spec.traits().scales) {
    case ScaleKind::kNone:
      return &KeepSource;
    case ScaleKind::kTensor:
      return &QuantizeFp8Tensor;
    case ScaleKind::kLine:
      return &QuantizeFp8Rowwise;
    case ScaleKind::kF32:
      return &QuantizeFp8Block;
    case ScaleKind::kE8m0:
      return &QuantizeMxfp8;
    case ScaleKind::kTwoLevel:
      return &QuantizeNvfp4;
    case ScaleKind::kLevels:
      break;
  }
  return nullptr;
}

constexpr uintptr_t kLineBytes = 64;  // Of the cache.

}  // namespace

absl::StatusOr<Tensor> CodesMemory(const FormatRequest& request, Usage usage, DType element,
                                   Shape shape) {
  const Tensor& given = usage == Usage::kRowwise ? request.arguments.rowwise_codes
                                                 : request.arguments.columnwise_codes;
  const bool fits = given.has_value() && given.space() == MemorySpace::kHost &&
                    given.dtype() == element && given.shape() == shape;
  // Stores past the caches are of whole lines. Without them, large codes take longer than with a
  // copy afterwards.
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(given.has_value() ? given.data() : nullptr) % kLineBytes == 0;
  if (fits && (is_aligned || !IsStreamed(request.source))) return given;
  return Tensor::Allocate(element, std::move(shape));
}

absl::StatusOr<QuantizedTensor> QuantizeCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const QuantizeArguments& arguments,
                                            const ExecutionContext& context) {
  const ScopedIeeeEnvironment ieee;
  return QuantizeByRules(
      source, quantizer, usages, arguments,
      [&](const RuleRequest& rule, QuantizedTensor& quantized) {
        return QuantizerOf(rule.spec, rule.source)(
            {rule.source, rule.spec, rule.usages, rule.arguments, context, rule.hadamard},
            quantized);
      },
      [&](const QuantizedTensor& quantized, DType out_dtype) {
        return DequantizeCpu(quantized, Usage::kRowwise, out_dtype, context);
      });
}

}  // namespace quantgate
