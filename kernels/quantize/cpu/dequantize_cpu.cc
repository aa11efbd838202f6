// The values that codes and scales stand for: docs/quantizers.md sections 3 to 6. It needs only the
// copy.
#include <algorithm>
#include <cstring>

#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/branch_free_cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cpu/block_lines.h"
#include "kernels/quantize/general/quantize_levels.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/transpose.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainElements = 1 << 16;

/// Rounds the values of all 256 codes once, then looks them up.
template <class F, class Out>
void Lookup(const Tensor& codes, float scale_inv, Tensor& out, const ExecutionContext& context) {
  using Storage = typename Out::Storage;
  Storage table[256];
  for (int code = 0; code < 256; ++code) {
    table[code] = EncodeBranchFree<Out>(DecodeFloat<F>(static_cast<uint8_t>(code)) * scale_inv);
  }
  const uint8_t* from = codes.as<uint8_t>();
  Storage* to = out.as<Storage>();
  ParallelFor(context, codes.element_count(), kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = table[from[i]];
  });
}

/// Tiles begin at multiples of this, which every block length divides.
constexpr int64_t kTileSide = 128;

/// Unpacks `count` codes from `index` on, one per byte. If two share a byte in the copy, the index
/// must be even and `to` have space for one more.
template <class F>
void ReadCodes(const uint8_t* codes, int64_t index, int64_t count, uint8_t* to) {
  if constexpr (FormatConstants<F>::kBits == 4) {
    const uint8_t* pairs = codes + index / 2;
    for (int64_t i = 0; i < DivideUp(count, 2); ++i) {
      to[2 * i] = pairs[i] & 0xF;
      to[2 * i + 1] = pairs[i] >> 4;
    }
  } else {
    std::memcpy(to, codes + index, static_cast<size_t>(count));
  }
}

/// One direction of a format with scales of blocks or lines.
template <class F, class Out>
class BlockDequantizer {
 public:
  BlockDequantizer(const QuantizedCopy& copy, Usage usage, Tensor& out)
      : copy_(copy),
        usage_(usage),
        columns_(out.columns()),
        scales_(TraitsOf(copy.format).scales),
        // The one scale of a line holds in every tile.
        block_length_(scales_ == ScaleKind::kLine ? kTileSide : BlockLength(copy.format)),
        amax_factor_(Nvfp4AmaxFactor(copy.e4m3_max)),
        out_(out.as<typename Out::Storage>()) {
    const QuantizerSpec spec = {.format = copy.format, .element = copy.element};
    layout_ = MakeLineLayout(out.rows(), columns_, spec, usage);
    if (!TraitsOf(copy.format).is_micro && copy.block_dim == 2) {
      lines_per_scale_ = block_length_;
    }
    for (int code = 0; code < 1 << FormatConstants<F>::kBits; ++code) {
      values_[code] = DecodeFloat<F>(static_cast<uint8_t>(code));
    }
  }

  /// Tile by tile; columnwise each is as high as a block, so that a column has one scale in it.
  void operator()(const Piece& piece) const {
    const int64_t height = usage_ == Usage::kColumnwise ? block_length_ : kTileSide;
    for (int64_t row = piece.row_begin; row < piece.row_end; row += height) {
      for (int64_t column = piece.column_begin; column < piece.column_end; column += kTileSide) {
        DequantizeTile({row, std::min(row + height, piece.row_end), column,
                        std::min(column + kTileSide, piece.column_end)});
      }
    }
  }

 private:
  float Scale(int64_t line, int64_t element) const {
    const int64_t index = line / lines_per_scale_ * layout_.scale_line +
                          element / block_length_ * layout_.scale_block;
    if (copy_.scale_inv.dtype() == DType::kF32) return copy_.scale_inv.as<float>()[index];
    const uint8_t code = copy_.scale_inv.as<uint8_t>()[index];
    if (scales_ == ScaleKind::kE8m0) return DecodeE8m0(code);
    if (!copy_.amax.has_value()) return DecodeFloat<E4M3>(code);
    const float amax = copy_.amax.as<float>()[copy_.is_row_scaled() ? line : 0];
    return Nvfp4DequantizeScale(code, amax, amax_factor_);
  }

  /// Those of the tile's part of a row.
  void ReadScales(int64_t row, const Piece& tile, float* scales) const {
    if (usage_ == Usage::kColumnwise) {
      for (int64_t c = tile.column_begin; c < tile.column_end; ++c) *scales++ = Scale(c, row);
      return;
    }
    for (int64_t c = tile.column_begin; c < tile.column_end; c += block_length_) {
      const int64_t length = std::min(block_length_, tile.column_end - c);
      scales = std::fill_n(scales, length, Scale(row, c));
    }
  }

  /// Code (r, c) of the tile to tile_codes[r * kTileSide + c].
  void ReadTile(const Piece& tile, uint8_t* tile_codes) const {
    const auto* codes = copy_.data.as<uint8_t>();
    const int64_t rows = tile.row_end - tile.row_begin;
    const int64_t columns = tile.column_end - tile.column_begin;
    if (layout_.code_line == layout_.source_line) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t index = (tile.row_begin + r) * columns_ + tile.column_begin;
        ReadCodes<F>(codes, index, columns, tile_codes + r * kTileSide);
      }
      return;
    }
    uint8_t transposed[kTileSide * kTileSide];
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t index = (tile.column_begin + c) * layout_.code_line + tile.row_begin;
      ReadCodes<F>(codes, index, rows, transposed + c * kTileSide);
    }
    TransposeMatrix(transposed, kTileSide, columns, rows, tile_codes, kTileSide);
  }

  void DequantizeTile(const Piece& tile) const {
    const int64_t columns = tile.column_end - tile.column_begin;
    uint8_t codes[kTileSide * kTileSide];
    ReadTile(tile, codes);
    float scales[kTileSide], values[kTileSide];
    for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      if (usage_ == Usage::kRowwise || row == tile.row_begin) ReadScales(row, tile, scales);
      const uint8_t* row_codes = codes + (row - tile.row_begin) * kTileSide;
      for (int64_t c = 0; c < columns; ++c) values[c] = values_[row_codes[c]];
      auto* to = out_ + row * columns_ + tile.column_begin;
      for (int64_t c = 0; c < columns; ++c) to[c] = EncodeBranchFree<Out>(values[c] * scales[c]);
    }
  }

  const QuantizedCopy& copy_;
  Usage usage_;
  int64_t columns_;
  ScaleKind scales_;
  int64_t block_length_;
  float amax_factor_;
  typename Out::Storage* out_;
  LineLayout layout_;
  int64_t lines_per_scale_ = 1;
  float values_[1 << FormatConstants<F>::kBits];
};

template <class F, class Out>
absl::Status DequantizeTo(const QuantizedCopy& copy, Usage usage, Tensor& out,
                          const ExecutionContext& context) {
  if (TraitsOf(copy.format).has_many_scales()) {
    const BlockDequantizer<F, Out> dequantize(copy, usage, out);
    ForEachPiece(context, out.rows(), out.columns(),
                 [&](const Piece& piece, QuantizationCounts&) { dequantize(piece); });
    return absl::OkStatus();
  }
  Tensor codes = copy.data;
  if (usage == Usage::kColumnwise) {
    QG_ASSIGN_OR_RETURN(codes, Transpose2d(codes, context));
  }
  Lookup<F, Out>(codes, *copy.scale_inv.as<float>(), out, context);
  return absl::OkStatus();
}

template <class F>
absl::Status Dequantize(const QuantizedCopy& copy, Usage usage, Tensor& out,
                        const ExecutionContext& context) {
  switch (out.dtype()) {
    case DType::kBF16:
      return DequantizeTo<F, BFloat16>(copy, usage, out, context);
    case DType::kF16:
      return DequantizeTo<F, Float16>(copy, usage, out, context);
    default:
      return DequantizeTo<F, Float32>(copy, usage, out, context);
  }
}

}  // namespace

absl::StatusOr<Tensor> DequantizeCpu(const QuantizedTensor& quantized, Usage usage, DType out_dtype,
                                     const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckDequantization(quantized, usage, out_dtype));
  const std::optional<QuantizedCopy>& copy = quantized.copy(usage);
  const ScopedIeeeEnvironment ieee;
  if (TraitsOf(copy->format).scales == ScaleKind::kNone) {
    return CastTensor(copy->data, out_dtype, context);
  }
  QG_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(out_dtype, quantized.shape));
  if (TraitsOf(copy->format).has_levels()) {
    QG_RETURN_IF_ERROR(DequantizeLevels(*copy, usage, out, context));
    return out;
  }
  absl::Status status;
  VisitFormat<GeneralFormats>(
      copy->element, [&]<class F>() { status = Dequantize<F>(*copy, usage, out, context); });
  QG_RETURN_IF_ERROR(status);
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return out;
}

}  // namespace quantgate
