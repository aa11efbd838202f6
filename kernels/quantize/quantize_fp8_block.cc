// FP8 under fp32 scales of 128 elements or of 128 x 128 tiles: docs/quantizers.md section 4.
#include "kernels/base/status_macros.h"
#include "kernels/numerics/format_list.h"
#include "kernels/quantize/block_lines.h"
#include "kernels/quantize/format_quantizers.h"

namespace quantgate {
namespace {

template <class Source, class Element>
void QuantizeBlocks(const FormatRequest& request, Usage usage, const LineRange& range,
                    QuantizedCopy& copy, QuantizationCounts& counts) {
  const QuantizerSpec& spec = request.spec;
  const LineLayout layout =
      MakeLineLayout(request.source.rows(), request.source.columns(), spec, usage);
  const BlockElements<Source, Element> elements(request.source.data(), layout,
                                                copy.data.as<uint8_t>());
  const ScaleOptions options = {.rule = spec.scale_rule,
                                .power_2 = spec.power_2_scale,
                                .amax_epsilon = spec.amax_epsilon,
                                .value_for_infinity = MaxFinite<Source>()};
  const int64_t lines_per_scale = spec.block_dim == 2 ? BlockLength(spec.format) : 1;
  ForEachBlock(range, spec, usage, [&](const Block& block) {
    const float scale = ComputeScale(elements.Amax(block, false), MaxFinite<Element>(), options);
    const int64_t index = block.line / lines_per_scale * layout.scale_line +
                          block.begin / BlockLength(spec.format) * layout.scale_block;
    copy.scale_inv.as<float>()[index] = ScaleInverse(scale);
    elements.Encode(
        block, spec, [scale](float value) { return value * scale; }, counts);
  });
}

using RangeFunction = void (*)(const FormatRequest&, Usage, const LineRange&, QuantizedCopy&,
                               QuantizationCounts&);

RangeFunction FindScalarRange(DType source, DType element) {
  RangeFunction range = nullptr;
  VisitFormat(DTypeName(source), [&]<class Source>() {
    VisitFormat(DTypeName(element), [&]<class Element>() {
      if constexpr (FormatConstants<Element>::kBits == 8) range = &QuantizeBlocks<Source, Element>;
    });
  });
  return range;
}

}  // namespace

absl::Status QuantizeFp8Block(const FormatRequest& request, QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(AllocateCopies(request, quantized));
  const RangeFunction scalar = FindScalarRange(request.source.dtype(), request.spec.element);
  return QuantizeRanges(
      request,
      [&](Usage usage, const LineRange& range, QuantizationCounts& counts) {
        scalar(request, usage, range, *quantized.copy(usage), counts);
      },
      quantized);
}

}  // namespace quantgate
