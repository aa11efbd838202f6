// How block-scaled formats divide a tensor: into pieces for threads, and each direction into lines
// of blocks. Private to kernels/quantize.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/numerics/cast.h"
#include "kernels/quantize/cpu/block_kernels.h"
#include "kernels/quantize/element_count.h"
#include "kernels/quantize/format_quantizers.h"

namespace quantgate {

/// A rectangle of the source. Pieces begin at multiples of kPieceRows and kPieceColumns, which
/// every block length divides.
struct Piece {
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;
};
inline constexpr int64_t kPieceRows = 128, kPieceColumns = 2048;

/// Whether codes are better written past the caches, since they would not stay there anyway.
inline bool IsStreamed(const Tensor& source) { return source.byte_size() >= size_t{16} << 20; }

/// Calls body for every piece of rows x columns on several threads. Returns the sum of the counts.
QuantizationCounts ForEachPiece(
    const ExecutionContext& context, int64_t rows, int64_t columns,
    absl::FunctionRef<void(const Piece& piece, QuantizationCounts& counts)> body);

/// One direction of a rows x columns source: `lines` lines of `length` elements, cut into blocks
/// along the line. Rowwise, a line is a row; columnwise, a column.
struct LineLayout {
  int64_t lines = 0, length = 0;
  int64_t source_line = 0, source_element = 1;  ///< Strides in the source.
  int64_t code_line = 0, code_element = 1;      ///< Strides in the codes, counting codes.
  int64_t scale_line = 0, scale_block = 1;      ///< Strides in the scales; 0 if a line has one.
};

/// The layout of a direction as the table of QuantizedCopy says. The scales of fp8_block tiles have
/// one line per tile.
LineLayout MakeLineLayout(int64_t rows, int64_t columns, const QuantizerSpec& spec, Usage usage);

/// Allocates the requested copies of a format with scales of blocks or lines; codes and scales are
/// not written yet.
absl::Status AllocateCopies(const FormatRequest& request, QuantizedTensor& quantized);

/// The part of one direction in a piece: the elements [begin, end) of the lines
/// [line_begin, line_end).
struct LineRange {
  int64_t line_begin, line_end;
  int64_t begin, end;
};
inline LineRange RangeOf(const Piece& piece, Usage usage) {
  if (usage == Usage::kRowwise) {
    return {piece.row_begin, piece.row_end, piece.column_begin, piece.column_end};
  }
  return {piece.column_begin, piece.column_end, piece.row_begin, piece.row_end};
}

/// Quantizes a range of one direction.
using QuantizeRange =
    absl::FunctionRef<void(Usage usage, const LineRange& range, QuantizationCounts& counts)>;

/// Quantizes a tile in all requested usages with vector code; false if scalar code must do it.
using QuantizeTile = absl::FunctionRef<bool(const Piece& tile, TileTally& tally)>;

/// Quantizes every piece in every requested usage, tile by tile, by quantize_tile or, where that
/// returns false, by quantize_range. Sets the counts of `quantized`.
absl::Status QuantizeTiles(const FormatRequest& request, int64_t tile_rows, int64_t tile_columns,
                           QuantizeTile quantize_tile, QuantizeRange quantize_range,
                           QuantizedTensor& quantized);

/// One block of `lines` lines (1, or the side of a tile; fewer at the edge) of `length` elements.
struct Block {
  int64_t line, lines;
  int64_t begin, length;
};

/// Calls body(Block) for the blocks of a range, tile by tile if block_dim is 2, in the order of the
/// rows of the source.
template <class Body>
void ForEachBlock(const LineRange& range, const QuantizerSpec& spec, Usage usage,
                  const Body& body) {
  const int64_t side = BlockLength(spec.format), group = spec.block_dim == 2 ? side : 1;
  const auto at = [&](int64_t line, int64_t begin) {
    body(Block{line, std::min(group, range.line_end - line), begin,
               std::min(side, range.end - begin)});
  };
  if (usage == Usage::kRowwise) {
    for (int64_t line = range.line_begin; line < range.line_end; line += group) {
      for (int64_t begin = range.begin; begin < range.end; begin += side) at(line, begin);
    }
    return;
  }
  for (int64_t begin = range.begin; begin < range.end; begin += side) {
    for (int64_t line = range.line_begin; line < range.line_end; line += group) at(line, begin);
  }
}

/// The elements and codes of one direction.
template <class Source, class Element>
class BlockElements {
 public:
  using Storage = typename Source::Storage;
  BlockElements(const void* source, const LineLayout& layout, uint8_t* codes)
      : source_(static_cast<const Storage*>(source)), layout_(layout), codes_(codes) {}

  Storage At(int64_t line, int64_t element) const {
    return source_[line * layout_.source_line + element * layout_.source_element];
  }
  float Value(int64_t line, int64_t element) const {
    return DecodeFloat<Source>(At(line, element));
  }

  FloatClass ClassOf(int64_t line, int64_t element) const {
    return FloatClassOf<Source>(At(line, element));
  }

  /// Two E2M1 codes share a byte: the low nibble must be written first.
  void Write(int64_t line, int64_t element, uint8_t code) const {
    const int64_t index = line * layout_.code_line + element * layout_.code_element;
    if constexpr (FormatConstants<Element>::kBits == 4) {
      uint8_t& byte = codes_[index / 2];
      byte = index % 2 == 0 ? code : static_cast<uint8_t>(byte | code << 4);
    } else {
      codes_[index] = code;
    }
  }

  /// max |x| of a block. NaN is ignored unless the caller asks for it.
  float Amax(const Block& block, bool propagates_nan) const {
    uint32_t amax = 0;
    bool has_nan = false;
    for (int64_t l = block.line; l < block.line + block.lines; ++l) {
      for (int64_t i = block.begin; i < block.begin + block.length; ++i) {
        const uint32_t magnitude = At(l, i) & (FormatConstants<Source>::kSignMask - 1u);
        const bool is_nan = magnitude > kBeyondMaxFinite<Source>;
        has_nan |= is_nan;
        if (!is_nan && magnitude > amax) amax = magnitude;
      }
    }
    const uint32_t bits = propagates_nan && has_nan ? Source::kCanonicalNan : amax;
    return DecodeFloat<Source>(static_cast<Storage>(bits));
  }

  /// Writes and counts the codes of scale(value) for a whole block.
  template <class Scale>
  void Encode(const Block& block, const QuantizerSpec& spec, const Scale& scale,
              QuantizationCounts& counts) const {
    for (int64_t l = block.line; l < block.line + block.lines; ++l) {
      for (int64_t i = block.begin; i < block.begin + block.length; ++i) {
        const typename Source::Storage source = At(l, i);
        const float scaled = scale(DecodeFloat<Source>(source));
        const uint8_t code = EncodeFloat<Element>(scaled, spec.element_rounding, spec.overflow);
        Write(l, i, code);
        CountElement<Element>(FloatClassOf<Source>(source), scaled, code, spec.element_rounding,
                              counts);
      }
    }
  }

 private:
  const Storage* source_;
  LineLayout layout_;
  uint8_t* codes_;
};

}  // namespace quantgate
