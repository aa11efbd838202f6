// FP8 under one fp32 scale per line, a row or a column of the source: docs/quantizers.md section
// 4.1. Rows alone are measured and cast one by one, while they are in the caches. Columns take two
// passes over the source: the amaxes of all lines, then the codes of both copies, tile by tile.
#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <vector>

#include "kernels/base/raise_to.h"
#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cpu/block_lines.h"
#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kTileSide = 128;
constexpr int64_t kGrainElements = 1 << 16;

/// The loops for a request; the vector ones are null where there are none.
struct Functions {
  AmaxFunction amax = nullptr;
  CastFunction cast = nullptr;
  CastAnyFunction any_cast = nullptr;
  Fp8LineAmaxFunction line_amax = nullptr;
  Fp8LineTileFunction tile = nullptr;
};

Functions FunctionsFor(const FormatRequest& request) {
  const DType source = request.source.dtype(), element = request.spec.element;
  Functions functions = {.amax = ScalarAmax(source), .any_cast = ScalarCast(source, element)};
  const bool is_avx2 = request.context.isa == Isa::kAvx2;
  if (request.context.isa == Isa::kScalar) return functions;
  functions.amax = is_avx2 ? Avx2Amax(source) : Avx512Amax(source);
  functions.line_amax = is_avx2 ? Avx2Fp8LineAmax(source) : Avx512Fp8LineAmax(source);
  // Vector loops have only the default cast.
  if (request.spec.element_rounding != ElementRounding::kNearestEven ||
      request.spec.overflow != Overflow::kSaturate) {
    return functions;
  }
  functions.cast = is_avx2 ? Avx2Cast(source, element) : Avx512Cast(source, element);
  functions.tile = is_avx2 ? Avx2Fp8LineTile(source, element) : Avx512Fp8LineTile(source, element);
  return functions;
}

float DecodeMagnitude(DType dtype, uint32_t bits) {
  float value = 0;
  VisitFormat<SourceFormats>(dtype, [&]<class Source>() {
    value = DecodeFloat<Source>(static_cast<typename Source::Storage>(bits));
  });
  return value;
}

/// Lines without elements have scale 1 (docs/numerics.md section 4).
float ScaleOfLine(const FormatRequest& request, float amax) {
  if (request.source.element_count() == 0) return 1.0f;
  const QuantizerSpec& spec = request.spec;
  const float max_finite = spec.element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
  return ComputeScale(amax, max_finite,
                      {.rule = spec.scale_rule,
                       .power_2 = spec.power_2_scale,
                       .amax_epsilon = spec.amax_epsilon,
                       .value_for_infinity = LargestFiniteOf(request.source.dtype())},
                      spec.subnormals());
}

// ---- rows alone

absl::Status QuantizeRows(const FormatRequest& request, const Functions& functions,
                          QuantizedTensor& quantized) {
  const Tensor& source = request.source;
  const QuantizerSpec& spec = request.spec;
  const int64_t columns = source.columns();
  const int64_t row_bytes = columns * DTypeBytes(source.dtype());
  QuantizedCopy& copy = *quantized.rowwise;
  std::mutex mutex;
  const int64_t grain = std::max<int64_t>(kGrainElements / std::max<int64_t>(columns, 1), 1);
  ParallelFor(request.context, source.rows(), grain, [&](int64_t begin, int64_t end) {
    QuantizationCounts part;
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* const from = source.data() + row * row_bytes;
      const float amax = DecodeMagnitude(source.dtype(), functions.amax(from, columns));
      const float scale = ScaleOfLine(request, amax);
      copy.scale_inv.as<float>()[row] = ScaleInverse(scale, request.spec.subnormals());
      const CastPiece piece = {from, columns, scale, copy.data.as<uint8_t>() + row * columns};
      if (functions.cast != nullptr) {
        functions.cast(piece, part);
      } else {
        functions.any_cast(piece, spec.element_rounding, spec.overflow, part);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    AddCounts(part, quantized.counts);
  });
  return request.context.CheckCancelled();
}

// ---- with columns

/// What the first pass finds.
struct LineAmaxes {
  LineAmaxes(int64_t rows, int64_t columns)
      : of_rows(static_cast<size_t>(rows)),
        of_columns(static_cast<size_t>(columns)),
        tiles_across(DivideUp(columns, kTileSide)),
        is_vector_tile(static_cast<size_t>(DivideUp(rows, kTileSide) * tiles_across)) {}
  /// Whether vector code casts the tile at (row, column): a whole one of finite elements.
  uint8_t& IsVectorTile(int64_t row, int64_t column) {
    return is_vector_tile[static_cast<size_t>(row / kTileSide * tiles_across + column / kTileSide)];
  }

  std::vector<uint32_t> of_rows, of_columns;  ///< As fp32 magnitude bits.
  int64_t tiles_across;
  std::vector<uint8_t> is_vector_tile;
};

/// The amaxes of a piece's rows and columns.
struct PieceAmaxes {
  uint32_t of_rows[kPieceRows] = {};
  uint32_t of_columns[kPieceColumns] = {};
};

/// Any part of a piece; NaN is ignored.
template <class Source>
void MeasureAny(const Tensor& source, const Piece& piece, const Piece& part, PieceAmaxes& amaxes) {
  const auto* from = source.as<typename Source::Storage>();
  for (int64_t row = part.row_begin; row < part.row_end; ++row) {
    uint32_t& of_row = amaxes.of_rows[row - piece.row_begin];
    for (int64_t column = part.column_begin; column < part.column_end; ++column) {
      const float value = DecodeFloat<Source>(from[row * source.columns() + column]);
      const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
      if (bits > 0x7F800000) continue;
      uint32_t& of_column = amaxes.of_columns[column - piece.column_begin];
      of_row = std::max(of_row, bits);
      of_column = std::max(of_column, bits);
    }
  }
}

/// Measures a part of a piece, of whole tiles and finite elements, with vector code; false if that
/// cannot be.
bool MeasureWhole(const Tensor& source, const Functions& functions, const Piece& piece,
                  const Piece& part, PieceAmaxes& found) {
  const int64_t columns = part.column_end - part.column_begin;
  const int64_t first = part.row_begin * source.columns() + part.column_begin;
  return functions.line_amax != nullptr && part.row_end - part.row_begin == kTileSide &&
         columns % kTileSide == 0 &&
         functions.line_amax(source.data() + first * DTypeBytes(source.dtype()), source.columns(),
                             static_cast<int>(columns), found.of_rows,
                             found.of_columns + (part.column_begin - piece.column_begin));
}

void MeasurePiece(const Tensor& source, const Functions& functions, const Piece& piece,
                  LineAmaxes& amaxes, PieceAmaxes& found) {
  const bool is_whole = MeasureWhole(source, functions, piece, piece, found);
  for (int64_t column = piece.column_begin; column < piece.column_end; column += kTileSide) {
    const Piece tile = {piece.row_begin, piece.row_end, column,
                        std::min(column + kTileSide, piece.column_end)};
    uint8_t& is_vector_tile = amaxes.IsVectorTile(tile.row_begin, column);
    is_vector_tile = is_whole || MeasureWhole(source, functions, piece, tile, found);
    if (is_vector_tile != 0) continue;
    VisitFormat<SourceFormats>(
        source.dtype(), [&]<class Source>() { MeasureAny<Source>(source, piece, tile, found); });
  }
}

LineAmaxes MeasureLines(const FormatRequest& request, const Functions& functions) {
  const Tensor& source = request.source;
  LineAmaxes amaxes(source.rows(), source.columns());
  ForEachPiece(request.context, source.rows(), source.columns(),
               [&](const Piece& piece, QuantizationCounts&) {
                 PieceAmaxes found;
                 MeasurePiece(source, functions, piece, amaxes, found);
                 for (int64_t row = piece.row_begin; row < piece.row_end; ++row) {
                   RaiseTo(std::atomic_ref(amaxes.of_rows[static_cast<size_t>(row)]),
                           found.of_rows[row - piece.row_begin]);
                 }
                 for (int64_t column = piece.column_begin; column < piece.column_end; ++column) {
                   RaiseTo(std::atomic_ref(amaxes.of_columns[static_cast<size_t>(column)]),
                           found.of_columns[column - piece.column_begin]);
                 }
               });
  return amaxes;
}

/// The scales of a direction's lines; stores their inverses.
std::vector<float> MakeScales(const FormatRequest& request, const std::vector<uint32_t>& amaxes,
                              std::optional<QuantizedCopy>& copy) {
  std::vector<float> scales;
  if (!copy.has_value()) return scales;
  scales.reserve(amaxes.size());
  for (const uint32_t amax : amaxes) {
    scales.push_back(ScaleOfLine(request, std::bit_cast<float>(amax)));
  }
  std::transform(scales.begin(), scales.end(), copy->scale_inv.as<float>(),
                 [&](float scale) { return ScaleInverse(scale, request.spec.subnormals()); });
  return scales;
}

/// The scales of both directions.
struct LineScales {
  std::vector<float> of_rows, of_columns;
  const std::vector<float>& of(Usage usage) const {
    return usage == Usage::kRowwise ? of_rows : of_columns;
  }
};

template <class Source, class Element>
void EncodeAny(const FormatRequest& request, const LineScales& scales, Usage usage,
               const LineRange& range, QuantizedCopy& copy, QuantizationCounts& counts) {
  const LineLayout layout =
      MakeLineLayout(request.source.rows(), request.source.columns(), request.spec, usage);
  const BlockElements<Source, Element> elements(request.source.data(), layout,
                                                copy.data.as<uint8_t>());
  for (int64_t line = range.line_begin; line < range.line_end; ++line) {
    const float scale = scales.of(usage)[static_cast<size_t>(line)];
    elements.Encode(
        {line, 1, range.begin, range.end - range.begin}, request.spec,
        [scale](float value) { return value * scale; }, counts);
  }
}

/// A whole tile at (row, column), under the scales of its lines.
TileJob MakeJob(const FormatRequest& request, const LineAmaxes& amaxes, LineScales& scales,
                QuantizedTensor& quantized, int64_t row, int64_t column) {
  const Tensor& source = request.source;
  const int64_t rows = source.rows(), columns = source.columns();
  TileJob job = {};
  job.source = source.data() + (row * columns + column) * DTypeBytes(source.dtype());
  job.source_stride = columns;
  job.streams = columns % 64 == 0 && IsStreamed(source);
  job.columnwise_streams = rows % 64 == 0 && IsStreamed(source);
  if (request.usages.rowwise) {
    job.rowwise = quantized.rowwise->data.as<uint8_t>() + row * columns + column;
    job.rowwise_stride = columns;
    job.row_scales = scales.of_rows.data() + row;
    job.row_amax = amaxes.of_rows.data() + row;
  }
  job.columnwise = quantized.columnwise->data.as<uint8_t>() + column * rows + row;
  job.columnwise_stride = rows;
  job.column_scales = scales.of_columns.data() + column;
  job.column_amax = amaxes.of_columns.data() + column;
  return job;
}

absl::Status QuantizeColumns(const FormatRequest& request, const Functions& functions,
                             QuantizedTensor& quantized) {
  LineAmaxes amaxes = MeasureLines(request, functions);
  QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  LineScales scales = {MakeScales(request, amaxes.of_rows, quantized.rowwise),
                       MakeScales(request, amaxes.of_columns, quantized.columnwise)};
  return QuantizeTiles(
      request, kTileSide, kTileSide,
      [&](const Piece& tile, TileTally& tally) {
        const int64_t row = tile.row_begin, column = tile.column_begin;
        if (functions.tile == nullptr || amaxes.IsVectorTile(row, column) == 0) return false;
        functions.tile(MakeJob(request, amaxes, scales, quantized, row, column),
                       request.spec.power_2_scale, tally);
        return true;
      },
      [&](Usage usage, const LineRange& range, QuantizationCounts& counts) {
        VisitFormat<SourceFormats>(request.source.dtype(), [&]<class Source>() {
          VisitFormat<Fp8Formats>(request.spec.element, [&]<class Element>() {
            EncodeAny<Source, Element>(request, scales, usage, range, *quantized.copy(usage),
                                       counts);
          });
        });
      },
      quantized);
}

}  // namespace

absl::Status QuantizeFp8Rowwise(const FormatRequest& request, QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(AllocateCopies(request, quantized));
  const Functions functions = FunctionsFor(request);
  return request.usages.columnwise ? QuantizeColumns(request, functions, quantized)
                                   : QuantizeRows(request, functions, quantized);
}

}  // namespace quantgate
