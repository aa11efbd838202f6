// FP8, FP6 or FP4 under E8M0 scales of 32 elements or of 32 x 32 tiles: docs/quantizers.md
// section 5.
#include "kernels/base/status_macros.h"
#include "kernels/numerics/e8m0.h"
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
  auto* scales = copy.scale_inv.as<uint8_t>();
  ForEachBlock(range, spec, usage, [&](const Block& block) {
    const float amax = elements.Amax(block, PropagatesNan(spec.scale_rule));
    const uint8_t code = E8m0Scale<Element>(amax, spec.scale_rule);
    for (int64_t line = block.line; line < block.line + block.lines; ++line) {
      scales[line * layout.scale_line +
             block.begin / BlockLength(spec.format) * layout.scale_block] = code;
    }
    const float multiplier = E8m0Multiplier(code);
    elements.Encode(
        block, spec, [multiplier](float value) { return value * multiplier; }, counts);
  });
}

using RangeFunction = void (*)(const FormatRequest&, Usage, const LineRange&, QuantizedCopy&,
                               QuantizationCounts&);

RangeFunction FindScalarRange(DType source, DType element) {
  RangeFunction range = nullptr;
  const std::string_view element_name =
      element == DType::kF4E2M1x2 ? "f4_e2m1" : DTypeName(element);
  VisitFormat(DTypeName(source), [&]<class Source>() {
    VisitFormat(element_name, [&]<class Element>() {
      if constexpr (FormatConstants<Element>::kBits <= 8) range = &QuantizeBlocks<Source, Element>;
    });
  });
  return range;
}

}  // namespace

absl::Status QuantizeMxfp8(const FormatRequest& request, QuantizedTensor& quantized) {
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
