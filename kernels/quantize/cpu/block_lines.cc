#include "kernels/quantize/cpu/block_lines.h"

#include <emmintrin.h>

#include <algorithm>
#include <mutex>

#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/quantize/scale_layout.h"

namespace quantgate {
namespace {

Shape CodeShape(const Tensor& source, const QuantizerSpec& spec, Usage usage) {
  const int64_t rows = source.rows(), columns = source.columns();
  Shape shape = source.shape();
  if (usage == Usage::kColumnwise) {
    shape = spec.traits().turns_columnwise ? Shape{columns, rows} : Shape{rows, columns};
  }
  if (spec.element == DType::kF4E2M1x2) shape.back() /= 2;
  return shape;
}

Shape ScaleShape(const Tensor& source, const QuantizerSpec& spec, Usage usage) {
  const int64_t side = BlockLength(spec.format);
  const int64_t lines = usage == Usage::kRowwise ? source.rows() : source.columns();
  const int64_t blocks =
      DivideUp(usage == Usage::kRowwise ? source.columns() : source.rows(), side);
  if (spec.traits().scales == ScaleKind::kLine) return {lines};
  if (!spec.traits().is_micro && spec.block_dim == 2) return {DivideUp(lines, side), blocks};
  if (!spec.traits().turns_columnwise && usage == Usage::kColumnwise) return {blocks, lines};
  return {lines, blocks};
}

}  // namespace

QuantizationCounts ForEachPiece(
    const ExecutionContext& context, int64_t rows, int64_t columns,
    absl::FunctionRef<void(const Piece& piece, QuantizationCounts& counts)> body) {
  const int64_t across = DivideUp(columns, kPieceColumns);
  std::mutex mutex;
  QuantizationCounts counts;
  ParallelFor(context, DivideUp(rows, kPieceRows) * across, 1, [&](int64_t begin, int64_t end) {
    QuantizationCounts part;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / across * kPieceRows, column = i % across * kPieceColumns;
      body({row, std::min(row + kPieceRows, rows), column,
            std::min(column + kPieceColumns, columns)},
           part);
    }
    _mm_sfence();  // Streamed codes are for whoever takes the lock next.
    const std::lock_guard<std::mutex> lock(mutex);
    AddCounts(part, counts);
  });
  return counts;
}

LineLayout MakeLineLayout(int64_t rows, int64_t columns, const QuantizerSpec& spec, Usage usage) {
  const int64_t side = BlockLength(spec.format);
  if (spec.traits().scales == ScaleKind::kLine) {
    return usage == Usage::kRowwise ? LineLayout{rows, columns, columns, 1, columns, 1, 1, 0}
                                    : LineLayout{columns, rows, 1, columns, rows, 1, 1, 0};
  }
  if (usage == Usage::kRowwise) {
    return {rows, columns, columns, 1, columns, 1, DivideUp(columns, side), 1};
  }
  if (!spec.traits().turns_columnwise) {
    return {columns, rows, 1, columns, 1, columns, 1, columns};
  }
  return {columns, rows, 1, columns, rows, 1, DivideUp(rows, side), 1};
}

absl::Status AllocateCopies(const FormatRequest& request, QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!HasUsage(request.usages, usage)) continue;
    QuantizedCopy copy;
    copy.format = spec.format;
    copy.element = spec.element;
    copy.block_dim = spec.block_dim;
    QG_ASSIGN_OR_RETURN(copy.data, CodesMemory(request, usage, spec.element,
                                               CodeShape(request.source, spec, usage)));
    QG_ASSIGN_OR_RETURN(copy.scale_inv, Tensor::Allocate(ScaleDType(spec.traits().scales),
                                                         ScaleShape(request.source, spec, usage)));
    quantized.copy(usage) = std::move(copy);
  }
  return absl::OkStatus();
}

absl::Status QuantizeTiles(const FormatRequest& request, int64_t tile_rows, int64_t tile_columns,
                           QuantizeTile quantize_tile, QuantizeRange quantize_range,
                           QuantizedTensor& quantized) {
  const auto quantize_scalar = [&](const Piece& piece, QuantizationCounts& counts) {
    QuantizationCounts uncounted;
    if (request.usages.rowwise) {
      quantize_range(Usage::kRowwise, RangeOf(piece, Usage::kRowwise), counts);
    }
    if (request.usages.columnwise) {
      quantize_range(Usage::kColumnwise, RangeOf(piece, Usage::kColumnwise),
                     request.usages.rowwise ? uncounted : counts);
    }
  };
  const auto quantize_piece = [&](const Piece& piece, QuantizationCounts& counts) {
    for (int64_t row = piece.row_begin; row < piece.row_end; row += tile_rows) {
      for (int64_t column = piece.column_begin; column < piece.column_end; column += tile_columns) {
        const Piece tile = {row, std::min(row + tile_rows, piece.row_end), column,
                            std::min(column + tile_columns, piece.column_end)};
        TileTally tally;
        if (!quantize_tile(tile, tally)) {
          quantize_scalar(tile, counts);
          continue;
        }
        AddTally({.source_zero = tally.source_zero,
                  .code_zero = tally.code_zero,
                  .code_below_normal = tally.code_below_normal,
                  .saturated = tally.saturated},
                 (tile.row_end - row) * (tile.column_end - column), counts);
      }
    }
  };
  quantized.counts = ForEachPiece(request.context, request.source.rows(), request.source.columns(),
                                  quantize_piece);
  return request.context.CheckCancelled();
}

}  // namespace quantgate
