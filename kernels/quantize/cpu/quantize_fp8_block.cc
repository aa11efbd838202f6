// FP8 under fp32 scales of 128 elements or of 128 x 128 tiles: docs/quantizers.md section 4.
#include "kernels/base/status_macros.h"
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
  const ScaleOptions options = {.rule = spec.scale_rule,
                                .power_2 = spec.power_2_scale,
                                .amax_epsilon = spec.amax_epsilon,
                                .value_for_infinity = MaxFinite<Source>()};
  const int64_t lines_per_scale = spec.block_dim == 2 ? BlockLength(spec.format) : 1;
  ForEachBlock(range, spec, usage, [&](const Block& block) {
    const float scale =
        ComputeScale(elements.Amax(block, false), MaxFinite<Element>(), options, spec.subnormals());
    const int64_t index = block.line / lines_per_scale * layout.scale_line +
                          block.begin / BlockLength(spec.format) * layout.scale_block;
    copy.scale_inv.as<float>()[index] = ScaleInverse(scale, spec.subnormals());
    elements.Encode(
        block, spec, [scale](float value) { return value * scale; }, counts);
  });
}

using RangeFunction = void (*)(const FormatRequest&, Usage, const LineRange&, QuantizedCopy&,
                               QuantizationCounts&);

RangeFunction FindScalarRange(DType source, DType element) {
  RangeFunction range = nullptr;
  VisitFormat<SourceFormats>(source, [&]<class Source>() {
    VisitFormat<Fp8Formats>(element,
                            [&]<class Element>() { range = &QuantizeBlocks<Source, Element>; });
  });
  return range;
}

// ---- vector tiles

constexpr int64_t kTileSide = 128;

Fp8BlockTileFunction FindVectorTile(const FormatRequest& request) {
  const QuantizerSpec& spec = request.spec;
  if (spec.traits().block_length != kTileSide || !spec.traits().turns_columnwise ||
      spec.scale_rule != ScaleRule::kDivide || spec.subnormals() != Subnormals::kKept ||
      spec.element_rounding != ElementRounding::kNearestEven ||
      spec.overflow != Overflow::kSaturate) {
    return nullptr;
  }
  switch (request.context.isa) {
    case Isa::kScalar:
      return nullptr;
    case Isa::kAvx2:
      return Avx2Fp8BlockTile(request.source.dtype(), spec.element);
    case Isa::kAvx512:
      return Avx512Fp8BlockTile(request.source.dtype(), spec.element);
  }
  return nullptr;
}

/// A whole tile at (row, column).
TileJob MakeJob(const FormatRequest& request, QuantizedTensor& quantized, int64_t row,
                int64_t column) {
  const int64_t rows = request.source.rows(), columns = request.source.columns();
  const int64_t lines_per_scale = request.spec.block_dim == 2 ? kTileSide : 1;
  TileJob job = {};
  job.source =
      request.source.data() + (row * columns + column) * DTypeBytes(request.source.dtype());
  job.source_stride = columns;
  job.block_dim = request.spec.block_dim;
  job.streams = columns % 64 == 0 && IsStreamed(request.source);
  job.columnwise_streams = rows % 64 == 0 && IsStreamed(request.source);
  if (request.usages.rowwise) {
    job.rowwise = quantized.rowwise->data.as<uint8_t>() + row * columns + column;
    job.rowwise_stride = columns;
    job.row_scale_stride = (columns + kTileSide - 1) / kTileSide;
    job.row_scales = quantized.rowwise->scale_inv.as<float>() +
                     row / lines_per_scale * job.row_scale_stride + column / kTileSide;
  }
  if (request.usages.columnwise) {
    job.columnwise = quantized.columnwise->data.as<uint8_t>() + column * rows + row;
    job.columnwise_stride = rows;
    job.column_scale_stride = (rows + kTileSide - 1) / kTileSide;
    job.column_scales = quantized.columnwise->scale_inv.as<float>() +
                        column / lines_per_scale * job.column_scale_stride + row / kTileSide;
  }
  return job;
}

}  // namespace

absl::Status QuantizeFp8Block(const FormatRequest& request, QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(AllocateCopies(request, quantized));
  const RangeFunction scalar = FindScalarRange(request.source.dtype(), request.spec.element);
  const Fp8BlockTileFunction vector = FindVectorTile(request);
  const Fp8BlockOptions options = {.power_2 = request.spec.power_2_scale,
                                   .amax_epsilon = request.spec.amax_epsilon,
                                   .value_for_infinity = LargestFiniteOf(request.source.dtype())};
  return QuantizeTiles(
      request, kTileSide, kTileSide,
      [&](const Piece& tile, TileTally& tally) {
        const bool is_whole = tile.row_end - tile.row_begin == kTileSide &&
                              tile.column_end - tile.column_begin == kTileSide;
        return vector != nullptr && is_whole &&
               vector(MakeJob(request, quantized, tile.row_begin, tile.column_begin), options,
                      tally);
      },
      [&](Usage usage, const LineRange& range, QuantizationCounts& counts) {
        scalar(request, usage, range, *quantized.copy(usage), counts);
      },
      quantized);
}

}  // namespace quantgate
