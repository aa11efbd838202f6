// FP8, FP6 or FP4 under E8M0 scales of 32 elements or of 32 x 32 tiles: docs/quantizers.md
// section 5.
#include "kernels/base/status_macros.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cpu/block_lines.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/visit_format.h"

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
    const uint8_t code = E8m0Scale<Element>(amax, spec.scale_rule, spec.subnormals());
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
  VisitFormat<SourceFormats>(source, [&]<class Source>() {
    VisitFormat<QuantizedFormats>(
        element, [&]<class Element>() { range = &QuantizeBlocks<Source, Element>; });
  });
  return range;
}

// ---- vector tiles

constexpr int64_t kTileRows = 32;

int64_t CodesPerByte(const QuantizerSpec& spec) { return spec.element == DType::kF4E2M1x2 ? 2 : 1; }
/// A cache line of codes.
int64_t TileColumns(const QuantizerSpec& spec) { return 64 * CodesPerByte(spec); }

Mxfp8TileFunction FindVectorTile(const FormatRequest& request) {
  const QuantizerSpec& spec = request.spec;
  if (spec.traits().block_length != kTileRows || spec.traits().turns_columnwise ||
      spec.scale_rule != ScaleRule::kRoundUp || spec.subnormals() != Subnormals::kKept ||
      spec.element_rounding != ElementRounding::kNearestEven ||
      spec.overflow != Overflow::kSaturate) {
    return nullptr;
  }
  const DType source = request.source.dtype();
  switch (request.context.isa) {
    case Isa::kScalar:
      return nullptr;
    case Isa::kAvx2:
      return Avx2Mxfp8Tile(source, spec.element);
    case Isa::kAvx512:
      return Avx512Mxfp8Tile(source, spec.element);
  }
  return nullptr;
}

TileJob MakeJob(const FormatRequest& request, QuantizedTensor& quantized, const Piece& tile) {
  const int64_t columns = request.source.columns(), row = tile.row_begin,
                column = tile.column_begin;
  const int64_t codes_per_byte = CodesPerByte(request.spec);
  const int64_t first_code = (row * columns + column) / codes_per_byte;
  TileJob job = {};
  job.source =
      request.source.data() + (row * columns + column) * DTypeBytes(request.source.dtype());
  job.source_stride = columns;
  job.rowwise_stride = job.columnwise_stride = columns / codes_per_byte;
  job.block_dim = request.spec.block_dim;
  job.streams = columns % TileColumns(request.spec) == 0 && IsStreamed(request.source);
  if (request.usages.rowwise) {
    job.rowwise = quantized.rowwise->data.as<uint8_t>() + first_code;
    job.row_scale_stride = columns / kTileRows;
    job.row_scales = quantized.rowwise->scale_inv.as<uint8_t>() + row * job.row_scale_stride +
                     column / kTileRows;
  }
  if (request.usages.columnwise) {
    job.columnwise = quantized.columnwise->data.as<uint8_t>() + first_code;
    job.column_scales =
        quantized.columnwise->scale_inv.as<uint8_t>() + row / kTileRows * columns + column;
  }
  return job;
}

}  // namespace

absl::Status QuantizeMxfp8(const FormatRequest& request, QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(AllocateCopies(request, quantized));
  const RangeFunction scalar = FindScalarRange(request.source.dtype(), request.spec.element);
  const Mxfp8TileFunction vector = FindVectorTile(request);
  return QuantizeTiles(
      request, kTileRows, TileColumns(request.spec),
      [&](const Piece& tile, TileTally& tally) {
        return vector != nullptr &&
               vector(MakeJob(request, quantized, tile),
                      static_cast<int>(tile.column_end - tile.column_begin), tally);
      },
      [&](Usage usage, const LineRange& range, QuantizationCounts& counts) {
        scalar(request, usage, range, *quantized.copy(usage), counts);
      },
      quantized);
}

}  // namespace quantgate
