#include "kernels/validate/explain/explain_stored.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/quantize/scale_layout.h"

namespace quantgate {
namespace {

/// A tensor of at most so many elements is its own sample.
constexpr int64_t kSampledWhole = 16384;
constexpr int64_t kSampleElements = 16384;
/// The sample lies in bands of rows, which hold whole tiles of NVFP4.
constexpr int64_t kBandRows = 16, kBandCount = 16;
/// The lengths of blocks whose E8M0 scales lie four to an i32.
constexpr std::array<int64_t, 4> kPackedLengths = {128, 32, 64, 256};

bool IsFloatScale(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

uint32_t ScaleBits(const Tensor& scales, int64_t index) {
  switch (scales.dtype()) {
    case DType::kF32:
      return scales.as<uint32_t>()[index];
    case DType::kBF16:
      return uint32_t(scales.as<uint16_t>()[index]) << 16;
    case DType::kF16:
      return std::bit_cast<uint32_t>(DecodeFloat<Float16>(scales.as<uint16_t>()[index]));
    default:
      return scales.as<uint8_t>()[index];
  }
}

void SetScales(const Tensor& scales, StoredCodes& stored) {
  stored.scale_rows = scales.rank() >= 2 ? scales.rows() : scales.element_count();
  stored.scale_columns = scales.rank() >= 2 ? scales.columns() : 1;
  stored.scale_dtype = scales.dtype();
  stored.scales.resize(scales.element_count());
  for (int64_t at = 0; at < scales.element_count(); ++at) stored.scales[at] = ScaleBits(scales, at);
}

constexpr char kColumnAfterColumn[] = ", scales column after column";

/// The first `rows` columns of stored.scales as rows.
void TransposeScales(int64_t rows, StoredCodes& stored) {
  std::vector<uint32_t> turned(rows * stored.scale_rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < stored.scale_rows; ++column) {
      turned[row * stored.scale_rows + column] = stored.scales[column * stored.scale_columns + row];
    }
  }
  stored.scale_columns = stored.scale_rows;
  stored.scale_rows = rows;
  stored.scales = std::move(turned);
  stored.scale_order = kColumnAfterColumn;
}

/// i32 scales, four E8M0 codes each along K, for so many blocks. The bytes beyond must be 0.
bool UnpackScales(int64_t columns, StoredCodes& stored) {
  std::vector<uint32_t> codes;
  for (int64_t row = 0; row < stored.scale_rows && columns % 4 != 0; ++row) {
    const uint32_t last = stored.scales[row * stored.scale_columns + columns / 4];
    if (last >> (8 * (columns % 4)) != 0) return false;
  }
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const uint32_t word = stored.scales[row * stored.scale_columns + column / 4];
      codes.push_back(word >> (8 * (column % 4)) & 0xFF);
    }
  }
  stored.scale_columns = columns;
  stored.scales = std::move(codes);
  stored.scale_order += ", four scales to an i32";
  // One column of words is one row of them, too.
  if (stored.scale_order.starts_with(kColumnAfterColumn) || columns <= 4) {
    stored.scale_order += " (packed_ue8m0)";
  }
  return true;
}

/// The scales of stored as arrays that they may be; empty for i32 of another shape.
std::vector<StoredCodes> ScaleOrders(const Tensor& scales, const StoredCodes& stored) {
  std::vector<StoredCodes> orders;
  StoredCodes as_given = stored;
  SetScales(scales, as_given);
  const int64_t given_rows = as_given.scale_rows, given_columns = as_given.scale_columns;
  // TMA reads columns of scales that begin at multiples of 16 bytes.
  const int64_t step = 16 / DTypeBytes(scales.dtype());
  const bool may_turn =
      given_columns == stored.rows || given_columns == DivideUp(stored.rows, step) * step;
  if (scales.dtype() == DType::kI32) {
    as_given.scales.assign(scales.as<uint32_t>(), scales.as<uint32_t>() + scales.element_count());
    std::vector<int64_t> known;
    for (const int64_t length : kPackedLengths) {
      const int64_t blocks = DivideUp(stored.columns, length), words = DivideUp(blocks, 4);
      if (std::find(known.begin(), known.end(), blocks) != known.end()) continue;
      known.push_back(blocks);
      if (given_rows == stored.rows && given_columns == words) {
        orders.push_back(as_given);
        if (!UnpackScales(blocks, orders.back())) orders.pop_back();
      }
      // One column is one row, too.
      const bool is_known = given_rows == stored.rows && given_columns == 1 && words == 1;
      if (given_rows == words && may_turn && !is_known) {
        orders.push_back(as_given);
        TransposeScales(stored.rows, orders.back());
        if (!UnpackScales(blocks, orders.back())) orders.pop_back();
      }
    }
    return orders;
  }
  orders.push_back(as_given);
  if (!BlocksThatFit(as_given).empty()) return orders;
  // One after the other, row by row.
  const int64_t count = scales.element_count();
  if (std::max(given_rows, given_columns) == count && count % stored.rows == 0) {
    orders.push_back(as_given);
    orders.back().scale_rows = stored.rows;
    orders.back().scale_columns = count / stored.rows;
    if (!BlocksThatFit(orders.back()).empty()) return orders;
    orders.pop_back();
  }
  if (scales.rank() < 2) return orders;
  orders.push_back(std::move(as_given));
  TransposeScales(may_turn ? stored.rows : given_columns, orders.back());
  if (may_turn) {
    orders.back().scale_order += given_columns == stored.rows ? " (mn_major)" : " (tma_aligned)";
  }
  return orders;
}

/// Swizzled scales of rows in blocks of 32 or 16, also of dims that this build's formats refuse.
std::vector<Tensor> Unswizzled(const Tensor& given, int64_t rows, int64_t columns) {
  std::vector<Tensor> logical;
  for (const int64_t length : {32, 16}) {
    const ScaleGrid grid = {.outer = rows, .blocks = DivideUp(columns, length)};
    const int64_t padded = DivideUp(rows, ScaleGrid::kTileRows) * ScaleGrid::kTileRows *
                           DivideUp(grid.blocks, ScaleGrid::kTileBlocks) * ScaleGrid::kTileBlocks;
    if (DTypeBytes(given.dtype()) != 1 || padded != given.element_count()) continue;
    absl::StatusOr<Tensor> scales = Tensor::Allocate(given.dtype(), {rows, grid.blocks});
    if (!scales.ok()) continue;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < grid.blocks; ++j) {
        scales->as<uint8_t>()[i * grid.blocks + j] = given.as<uint8_t>()[grid.SwizzledIndex(i, j)];
      }
    }
    logical.push_back(*std::move(scales));
  }
  return logical;
}

void SetSample(StoredCodes& stored) {
  const int64_t count = stored.rows * stored.columns;
  if (count <= kSampledWhole) {
    stored.sample.resize(count);
    for (int64_t at = 0; at < count; ++at) stored.sample[at] = at;
    return;
  }
  const int64_t bands_all = DivideUp(stored.rows, kBandRows);
  const int64_t bands = std::min(bands_all, kBandCount);
  // Odd, so that every column of a block comes.
  const int64_t step = bands * kBandRows * stored.columns / kSampleElements | 1;
  for (int64_t band = 0; band < bands; ++band) {
    const int64_t first = band * bands_all / bands * kBandRows;
    const int64_t end = std::min(first + kBandRows, stored.rows) * stored.columns;
    for (int64_t at = first * stored.columns + band % step; at < end; at += step) {
      stored.sample.push_back(at);
    }
  }
}

}  // namespace

StoredCodes AsGiven(const Tensor& scales) {
  StoredCodes given;
  SetScales(scales, given);
  given.scale_distinct = CountDistinct(given.scales);
  return given;
}

bool IsScaleDType(DType given, DType rule) {
  if (rule == DType::kF32) return IsFloatScale(given);
  return given == rule || given == DType::kU8 || (given == DType::kI32 && rule == DType::kF8E8M0);
}

std::vector<CodeBlocks> BlocksThatFit(const StoredCodes& stored) {
  std::vector<CodeBlocks> fitting;
  const auto add = [&](int64_t rows, int64_t columns, int64_t amax_rows, int64_t amax_columns) {
    if (DivideUp(stored.rows, rows) != stored.scale_rows ||
        DivideUp(stored.columns, columns) != stored.scale_columns) {
      return;
    }
    // Two lengths that are both longer than a dim give the same block.
    const auto shape = [&](const CodeBlocks& blocks) {
      return std::array{
          std::min(blocks.rows, stored.rows), std::min(blocks.columns, stored.columns),
          std::min(blocks.amax_rows, stored.rows), std::min(blocks.amax_columns, stored.columns)};
    };
    for (const CodeBlocks& known : fitting) {
      if (shape(known) == shape({rows, columns, amax_rows, amax_columns})) return;
    }
    fitting.push_back({rows, columns, amax_rows, amax_columns});
  };
  add(stored.rows, stored.columns, stored.rows, stored.columns);
  add(1, stored.columns, 1, stored.columns);
  add(stored.rows, 1, stored.rows, 1);
  for (const int64_t length : kBlockLengths) {
    add(1, length, 1, length);
    add(1, length, length, length);
    add(length, 1, length, 1);
    add(length, 1, length, length);
    add(length, length, length, length);
  }
  return fitting;
}

std::shared_ptr<const BlockMaxima> MaximaOf(const StoredCodes& stored, const CodeBlocks& blocks,
                                            const ExecutionContext& context) {
  const TileMaxima tiles =
      MaximaOfTiles(*stored.elements, blocks.amax_rows, blocks.amax_columns, context);
  const int64_t across = DivideUp(stored.columns, blocks.amax_columns);
  BlockMaxima maxima;
  maxima.blocks = blocks;
  for (int64_t row = 0; row < stored.scale_rows; ++row) {
    for (int64_t column = 0; column < stored.scale_columns; ++column) {
      const int64_t tile = row * blocks.rows / blocks.amax_rows * across +
                           column * blocks.columns / blocks.amax_columns;
      maxima.amaxes.push_back(tiles.amaxes[tile]);
      maxima.has_nan.push_back(tiles.has_nan[tile]);
    }
  }
  if (static_cast<int64_t>(stored.sample.size()) < stored.rows * stored.columns) {
    maxima.sample_slots.assign(stored.scales.size(), -1);
    for (const int64_t at : stored.sample) {
      const int64_t scale = at / stored.columns / blocks.rows * stored.scale_columns +
                            at % stored.columns / blocks.columns;
      if (maxima.sample_slots[scale] >= 0) continue;
      maxima.sample_slots[scale] = static_cast<int32_t>(maxima.sample_scales.size());
      maxima.sample_scales.push_back(static_cast<int32_t>(scale));
    }
  }
  return std::make_shared<const BlockMaxima>(std::move(maxima));
}

absl::StatusOr<std::vector<Tensor>> StoredReader::LogicalScales(bool transposed) const {
  const Tensor& given = request_.scale_inv;
  const ScaleLayout layout = request_.scale_layout;
  if (layout == ScaleLayout::kLogical) return std::vector<Tensor>{given};
  std::vector<Tensor> logical;
  const auto add = [&](Tensor scales) {
    const bool is_new = std::none_of(logical.begin(), logical.end(), [&](const Tensor& known) {
      return known.dtype() == scales.dtype() && known.shape() == scales.shape() &&
             std::ranges::equal(known.bytes(), scales.bytes());
    });
    if (is_new) logical.push_back(std::move(scales));
  };
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (!traits.has_blocks()) continue;
    for (const int block_dim : {1, 2}) {
      // A micro format stores the scales of tiles as it stores those of lines, as packing does.
      if (block_dim == 2 && (traits.is_micro || layout == ScaleLayout::kPackedUe8m0)) continue;
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        const bool is_transposed = usage == Usage::kColumnwise && traits.turns_columnwise;
        if (is_transposed != transposed) continue;
        const ScaleArray array = {traits.format, block_dim, usage, request_.source.rows(),
                                  request_.source.columns()};
        const auto type = ScaleArrayTypeOf(array, layout);
        if (!type.ok() || DTypeBytes(given.dtype()) != DTypeBytes(type->dtype) ||
            !IsScaleDType(given.dtype(), type->dtype)) {
          continue;
        }
        // Libraries give the same bytes other shapes.
        int64_t count = 1;
        for (const int64_t dim : type->shape) count *= dim;
        if (count != given.element_count()) continue;
        QG_ASSIGN_OR_RETURN(const Tensor scales,
                            Tensor::FromBytes(type->dtype, type->shape, given.bytes()));
        if (!CheckScales(scales, array, layout).ok()) continue;
        QG_ASSIGN_OR_RETURN(Tensor converted,
                            ConvertScales(scales, array, layout, ScaleLayout::kLogical));
        if (HoldsE8m0(layout) && traits.scales == ScaleKind::kF32) {
          // Rules that make fp32 scales are told apart from those that make E8M0 codes.
          QG_ASSIGN_OR_RETURN(Tensor codes, ConvertScales(converted, array, ScaleLayout::kLogical,
                                                          ScaleLayout::kUe8m0));
          add(std::move(codes));
        }
        add(std::move(converted));
      }
    }
  }
  if (logical.empty() && request_.scale_layout == ScaleLayout::kSwizzled && !transposed) {
    return Unswizzled(given, request_.source.rows(), request_.source.columns());
  }
  return logical;
}

std::shared_ptr<const CodedElements> StoredReader::Elements(Bytes bytes, bool transposed) {
  std::shared_ptr<const CodedElements>& known = elements_[{bytes, transposed}];
  if (known != nullptr) return known;
  const int64_t m = request_.source.rows(), k = request_.source.columns();
  auto elements = std::make_shared<CodedElements>();
  const int64_t rows = transposed ? k : m, columns = transposed ? m : k;
  elements->rows = rows;
  elements->columns = columns;
  elements->values.resize(source_.size());
  elements->codes.resize(source_.size());
  const uint8_t* const given = request_.codes.as<uint8_t>();
  const int64_t row_bytes = request_.codes.columns();
  constexpr int64_t kRowsAtOnce = 16;  // Of a transpose: a cache line of the source.
  ParallelFor(context_, rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    if (transposed) {
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t row = begin; row < end; ++row) {
          elements->values[row * columns + column] = source_[column * k + row];
        }
      }
    } else {
      std::copy(source_.data() + begin * columns, source_.data() + end * columns,
                elements->values.data() + begin * columns);
    }
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* const from = given + row * row_bytes;
      uint8_t* const to = elements->codes.data() + row * columns;
      for (int64_t column = 0; column < columns; ++column) {
        if (bytes == Bytes::kOne) {
          to[column] = from[column];
        } else if (bytes == Bytes::kNibbles) {
          to[column] = column % 2 == 0 ? from[column / 2] & 0xF : from[column / 2] >> 4;
        } else {
          const int64_t first = column / 4 * 3;
          const uint32_t word = from[first] | from[first + 1] << 8 | from[first + 2] << 16;
          to[column] = static_cast<uint8_t>(word >> (6 * (column % 4)) & 0x3F);
        }
      }
    }
  });
  known = std::move(elements);
  return known;
}

absl::StatusOr<std::vector<StoredCodes>> StoredReader::Read(const CodeFormat& format,
                                                            CodePacking packing, bool transposed) {
  StoredCodes stored;
  stored.transposed = transposed;
  stored.packing = packing;
  stored.source = request_.source.dtype();
  const int64_t m = request_.source.rows(), k = request_.source.columns();
  stored.rows = transposed ? k : m;
  stored.columns = transposed ? m : k;
  const Bytes bytes = packing == CodePacking::kSixBits ? Bytes::kSixBits
                      : format.dtype == DType::kF4E2M1x2 && packing == CodePacking::kUsual
                          ? Bytes::kNibbles
                          : Bytes::kOne;
  const int64_t row_bytes = bytes == Bytes::kNibbles   ? DivideUp(stored.columns, 2)
                            : bytes == Bytes::kSixBits ? stored.columns / 4 * 3
                                                       : stored.columns;
  // NVIDIA ModelOpt pads rows of FP4 to whole blocks of 16.
  const bool is_padded = bytes == Bytes::kNibbles && !transposed &&
                         request_.codes.columns() == DivideUp(stored.columns, 16) * 8;
  if (request_.codes.rows() != stored.rows ||
      (request_.codes.columns() != row_bytes && !is_padded) ||
      (bytes == Bytes::kSixBits && stored.columns % 4 != 0)) {
    return std::vector<StoredCodes>();
  }
  stored.elements = Elements(bytes, transposed);
  SetAmaxes(stored);
  SetSample(stored);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> scales, LogicalScales(transposed));
  std::vector<StoredCodes> read;
  for (const Tensor& logical : scales) {
    for (StoredCodes& one : ScaleOrders(logical, stored)) {
      one.scale_distinct = CountDistinct(one.scales);
      read.push_back(std::move(one));
    }
  }
  return read;
}

void StoredReader::SetAmaxes(StoredCodes& stored) const {
  if (!request_.amax.has_value()) {
    stored.row_amaxes = MaximaOfTiles(*stored.elements, 1, stored.columns, context_).amaxes;
  } else if (request_.amax.element_count() == 1) {
    stored.row_amaxes.clear();
    stored.global_amax = *request_.amax.as<float>();
    return;
  } else {
    stored.row_amaxes.assign(request_.amax.as<float>(), request_.amax.as<float>() + stored.rows);
  }
  stored.global_amax = *std::max_element(stored.row_amaxes.begin(), stored.row_amaxes.end());
}

}  // namespace quantgate
