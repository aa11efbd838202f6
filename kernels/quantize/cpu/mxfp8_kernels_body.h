// The mxfp8 tile of one instruction set: both directions from one reading of the source. Included
// by block_kernels_*.cc after their lanes.
#pragma once

#include <type_traits>

#include "kernels/quantize/cpu/bf16_lanes_body.h"
#include "kernels/quantize/cpu/block_kernels.h"
#include "kernels/quantize/cpu/encode_lanes_body.h"

namespace quantgate {
namespace {

constexpr int kMxSide = 32;
constexpr int kMxVectors = kMxSide / kLanes;  // Registers of a block.
constexpr int kMxAhead = 128;  // Columns to prefetch ahead, two tiles: rows are too short for the
                               // hardware prefetcher.

/// What the first pass keeps of a tile, including the elements: rows that lie a power of two apart
/// fall into few sets of the caches and would be evicted before they are read again.
template <class Source>
struct MxTile {
  alignas(64) typename Source::Storage elements[kMxSide][2 * kMxSide];
  alignas(64) uint32_t row_amax[2][kMxSide];  // [block of the row][row]: magnitude bits.
  alignas(64) uint32_t column_amax[2 * kMxSide];
  alignas(64) float row_multipliers[2][kMxSide];
  alignas(64) float column_multipliers[2 * kMxSide];
  const typename Source::Storage* source;
  int64_t source_stride;

  /// Prefetches a row of the next tile but one while codes are made, since reading alone would
  /// wait.
  void PrefetchAhead(int row) const {
    const auto* ahead = source + row * source_stride + kMxAhead;
    for (int i = 0; i < 2 * kMxSide; i += 64 / sizeof(*ahead)) Prefetch(ahead + i);
  }
};

/// Copies a block column and finds the amaxes of its rows and columns; returns the largest.
template <class Source>
uint32_t ReadMxBlock(int half, MxTile<Source>& tile) {
  const Ints mask = AllInts(0x7FFFFFFF);
  Ints column_max[kMxVectors], largest = AllInts(0);
  for (Ints& max : column_max) max = AllInts(0);
  for (int first = 0; first < kMxSide; first += kLanes) {
    Ints row_max[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const auto* from = tile.source + (first + i) * tile.source_stride + half * kMxSide;
      auto* row = &tile.elements[first + i][half * kMxSide];
      __builtin_memcpy(row, from, kMxSide * sizeof(*row));
      row_max[i] = AllInts(0);
      for (int j = 0; j < kMxVectors; ++j) {
        const Ints magnitude = And(BitsOf(LoadSource<Source>(row + j * kLanes)), mask);
        row_max[i] = Max(row_max[i], magnitude);
        column_max[j] = Max(column_max[j], magnitude);
      }
    }
    const Ints of_rows = LargestOfEach(row_max);
    StoreInts(&tile.row_amax[half][first], of_rows);
    largest = Max(largest, of_rows);
  }
  for (int j = 0; j < kMxVectors; ++j) {
    StoreInts(&tile.column_amax[half * kMxSide + j * kLanes], column_max[j]);
  }
  return static_cast<uint32_t>(LargestLane(largest));
}

template <class Source>
uint32_t ReadMxTile(const TileJob& job, int columns, MxTile<Source>& tile) {
  tile.source = static_cast<const typename Source::Storage*>(job.source);
  tile.source_stride = job.source_stride;
  uint32_t largest = 0;
  for (int half = 0; half < columns / kMxSide; ++half) {
    uint32_t amax = 0;
    if constexpr (std::is_same_v<Source, BFloat16>) {
      amax = ReadBf16Block<kMxSide, kMxSide>(
          tile.source + half * kMxSide, job.source_stride, &tile.elements[0][half * kMxSide],
          2 * kMxSide, tile.row_amax[half], &tile.column_amax[half * kMxSide]);
    } else {
      amax = ReadMxBlock(half, tile);
    }
    largest = amax > largest ? amax : largest;
  }
  return largest;
}

/// E8M0 codes, rounding up, and multipliers of kLanes amaxes; returns the largest scaled amax.
template <class Element>
Ints MxScales(const uint32_t* amax_bits, float* multipliers, Ints* codes) {
  const Floats amax = Load(reinterpret_cast<const float*>(amax_bits));
  const Ints bits = BitsOf(Times(amax, All(1.0f / kLargest<Element>)));
  // A mantissa above 0 raises the exponent; a subnormal one above half its range does.
  const Ints carry = IfLess(bits, AllInts(1 << 23), AllInts(0x3FFFFF), AllInts(0x7FFFFF));
  const Ints code = Min(ShiftRight<23>(Plus(bits, carry)), AllInts(0xFE));
  const Ints inverse =
      Max(ShiftLeft<23>(Minus(AllInts(254), code)), AllInts(0x00400000));  // 2^-127 of 0xFE.
  Store(multipliers, FloatsOf(inverse));
  *codes = code;
  return BitsOf(Times(amax, FloatsOf(inverse)));
}

/// kLanes elements, and the same times the multipliers.
struct MxScaled {
  Floats value, scaled;
};

/// Multipliers are those of columns, or the same within a block.
template <bool kByColumn, class Source>
MxScaled ScaleMx(const MxTile<Source>& tile, int row, int column) {
  const Floats value = LoadSource<Source>(&tile.elements[row][column]);
  const Floats multiplier = kByColumn ? Load(&tile.column_multipliers[column])
                                      : All(tile.row_multipliers[column / kMxSide][row]);
  return {value, Times(value, multiplier)};
}

/// Where the codes of a tile are written.
struct MxTarget {
  uint8_t* codes;
  uint8_t* twin;  ///< The same codes once more: both directions of a tile of one scale. Or null.
  int64_t stride;
  bool streams;
  /// FP4: the first halves of the cache lines, 32 bytes for each row, of which these codes are the
  /// second ones; or null, where they are no whole lines.
  const uint8_t* first_halves;
};

/// Writes a row of 64 codes.
template <class Element>
void StoreMxLine(const MxTarget& target, int row, Line line) {
  uint8_t* const copies[] = {target.codes, target.twin};
  const bool is_half = FormatConstants<Element>::kBits == 4 && target.first_halves == nullptr;
  if constexpr (FormatConstants<Element>::kBits == 4) {
    if (!is_half) line = JoinNibbles(target.first_halves + row * kMxSide, line);
  }
  for (uint8_t* const codes : copies) {
    if (codes == nullptr) continue;
    if constexpr (FormatConstants<Element>::kBits == 4) {
      if (is_half) {
        StoreNibbles(codes + row * target.stride, line);
        continue;
      }
    }
    StoreLine(codes + row * target.stride, line, target.streams);
  }
}

/// The codes of one direction of a tile of 64 columns from encode(row), and counts of them.
template <class Element, class Source, class Encode>
void EncodeMxLines(const MxTile<Source>& tile, const Encode& encode, const MxTarget& target,
                   ByteTally& tally) {
  constexpr uint8_t kMagnitudes = FormatConstants<Element>::kSignMask - 1;
  for (int row = 0; row < kMxSide; ++row) {
    const Line line = encode(row);
    tile.PrefetchAhead(row);
    StoreMxLine<Element>(target, row, line);
    TallyLine(line, kMagnitudes, 1 << Element::kMantissaBits, tally);
  }
}

/// The same for a tile of 32 columns.
template <class Element, bool kByColumn, class Source>
void EncodeMxBlocks(const MxTile<Source>& tile, const MxTarget& target, ByteTally& tally) {
  using C = FormatConstants<Element>;
  for (int row = 0; row < kMxSide; ++row) {
    tile.PrefetchAhead(row);
    Ints v[kMxVectors];
    for (int j = 0; j < kMxVectors; ++j) {
      v[j] = EncodeLanes<Element>(ScaleMx<kByColumn>(tile, row, j * kLanes).scaled);
    }
    alignas(32) uint8_t bytes[kMxSide];
    StoreLowBytes32(bytes, v);
    TallyBytes32(bytes, C::kSignMask - 1, 1 << Element::kMantissaBits, tally);
    uint8_t* const copies[] = {target.codes, target.twin};
    for (uint8_t* codes : copies) {
      if (codes == nullptr) continue;
      if constexpr (C::kBits == 4) {
        StoreNibbles32(codes + row * target.stride, bytes);
      } else {
        StoreLowBytes32(codes + row * target.stride, v);
      }
    }
  }
}

/// Quantizes by 16-bit words if there is such a loop; false if not.
template <class Element, bool kByColumn, class Source>
bool EncodeMxWords(const MxTile<Source>& tile, const MxTarget& target, ByteTally& tally) {
  if constexpr (std::is_same_v<Source, BFloat16>) {
    alignas(64) uint16_t offsets[2 * kMxSide];
    const bool is_possible =
        kByColumn ? FindWordOffsets<Element>(tile.column_amax, tile.column_multipliers, 2 * kMxSide,
                                             offsets)
                  : FindWordOffsets<Element>(tile.row_amax[0], tile.row_multipliers[0], 2 * kMxSide,
                                             offsets);
    if (!is_possible) return false;
    EncodeMxLines<Element>(
        tile,
        [&](int row) {
          Ints of_line[64 / kWords];
          for (int j = 0; j < 64 / kWords; ++j) {
            of_line[j] = kByColumn ? LoadWords(offsets + j * kWords)
                                   : AllWords(offsets[j * kWords / kMxSide * kMxSide + row]);
          }
          return EncodeWordLine<Element>(tile.elements[row], of_line);
        },
        target, tally);
    return true;
  }
  return false;
}

template <class Element, bool kByColumn, class Source>
void EncodeMxTile(const MxTile<Source>& tile, int columns, const MxTarget& target, bool any_beyond,
                  ByteTally& tally) {
  if (columns != 64) {
    EncodeMxBlocks<Element, kByColumn>(tile, target, tally);
    return;
  }
  if (!any_beyond && EncodeMxWords<Element, kByColumn>(tile, target, tally)) return;
  EncodeMxLines<Element>(
      tile,
      [&](int row) {
        Ints v[64 / kLanes];
        for (int j = 0; j < 64 / kLanes; ++j) {
          v[j] = EncodeLanes<Element>(ScaleMx<kByColumn>(tile, row, j * kLanes).scaled);
        }
        return PackLine(v);
      },
      target, tally);
}

/// Counts what the codes alone do not show, only if there can be any.
template <class Element, bool kByColumn, class Source>
void TallyMxValues(const MxTile<Source>& tile, int columns, TileTally& tally) {
  const Ints beyond = AllInts(static_cast<int>(kFirstBeyond<Element>) - 1);
  const Ints mask = AllInts(0x7FFFFFFF);
  for (int row = 0; row < kMxSide; ++row) {
    for (int column = 0; column < columns; column += kLanes) {
      const MxScaled v = ScaleMx<kByColumn>(tile, row, column);
      tally.source_zero += CountEqual(And(BitsOf(v.value), mask), AllInts(0));
      tally.saturated += CountLess(beyond, And(BitsOf(v.scaled), mask));
    }
  }
}

template <class Element, bool kByColumn, class Source>
void MakeMxCopy(const MxTile<Source>& tile, int columns, const MxTarget& target, bool any_beyond,
                TileTally* tally) {
  ByteTally bytes;
  EncodeMxTile<Element, kByColumn>(tile, columns, target, any_beyond, bytes);
  if (tally == nullptr) return;
  tally->code_zero += bytes.zero;
  tally->code_below_normal += bytes.below_normal;
  if constexpr (std::is_same_v<Source, BFloat16>) {
    if (!any_beyond) {
      for (int row = 0; row < kMxSide && bytes.zero > 0; ++row) {
        tally->source_zero += CountZeroWords(tile.elements[row], columns);
      }
      return;
    }
  }
  if (bytes.zero > 0 || any_beyond) TallyMxValues<Element, kByColumn>(tile, columns, *tally);
}

/// The amax of a tile of 32 x 32 is the largest of the rows.
template <class Source>
void ShareMxAmax(int columns, MxTile<Source>& tile) {
  for (int half = 0; half < columns / kMxSide; ++half) {
    uint32_t largest = 0;
    for (const uint32_t amax : tile.row_amax[half]) largest = amax > largest ? amax : largest;
    for (int i = 0; i < kMxSide; ++i) {
      tile.row_amax[half][i] = tile.column_amax[half * kMxSide + i] = largest;
    }
  }
}

template <class Element, class Source>
bool ScaleMxRows(const TileJob& job, int columns, MxTile<Source>& tile) {
  auto* scales = static_cast<uint8_t*>(job.row_scales);
  Ints largest = AllInts(0);
  for (int half = 0; half < columns / kMxSide; ++half) {
    alignas(64) uint32_t codes[kMxSide];
    for (int i = 0; i < kMxSide; i += kLanes) {
      Ints code;
      largest = Max(largest, MxScales<Element>(&tile.row_amax[half][i],
                                               &tile.row_multipliers[half][i], &code));
      StoreInts(codes + i, code);
    }
    for (int row = 0; row < kMxSide; ++row) {
      scales[row * job.row_scale_stride + half] = static_cast<uint8_t>(codes[row]);
    }
  }
  return static_cast<uint32_t>(LargestLane(largest)) >= kFirstBeyond<Element>;
}

template <class Element, class Source>
bool ScaleMxColumns(const TileJob& job, int columns, MxTile<Source>& tile) {
  auto* scales = static_cast<uint8_t*>(job.column_scales);
  Ints largest = AllInts(0);
  for (int column = 0; column < columns; column += kLanes) {
    Ints code;
    largest = Max(largest, MxScales<Element>(&tile.column_amax[column],
                                             &tile.column_multipliers[column], &code));
    StoreLowBytes(scales + column, code);
  }
  return static_cast<uint32_t>(LargestLane(largest)) >= kFirstBeyond<Element>;
}

/// FP4: where the codes of the 64 columns before lie, 32 bytes for each row; null: nowhere.
struct MxFirstHalves {
  const uint8_t* rowwise = nullptr;
  const uint8_t* columnwise = nullptr;
};

template <class Source, class Element>
bool QuantizeMxPart(const TileJob& job, int columns, const MxFirstHalves& first, TileTally& tally) {
  MxTile<Source> tile;
  if (ReadMxTile<Source>(job, columns, tile) >= 0x7F800000) return false;
  if (job.block_dim == 2) ShareMxAmax(columns, tile);
  const bool makes_twins =
      job.block_dim == 2 && job.rowwise != nullptr && job.columnwise != nullptr;
  if (job.rowwise != nullptr) {
    const bool any_beyond = ScaleMxRows<Element>(job, columns, tile);
    uint8_t* const twin = makes_twins && job.columnwise != job.rowwise ? job.columnwise : nullptr;
    const MxTarget target = {job.rowwise, twin, job.rowwise_stride, job.streams, first.rowwise};
    MakeMxCopy<Element, false>(tile, columns, target, any_beyond, &tally);
  }
  if (job.columnwise != nullptr) {
    const bool any_beyond = ScaleMxColumns<Element>(job, columns, tile);
    if (makes_twins) return true;
    const MxTarget target = {job.columnwise, nullptr, job.columnwise_stride, job.streams,
                             first.columnwise};
    MakeMxCopy<Element, true>(tile, columns, target, any_beyond,
                              job.rowwise == nullptr ? &tally : nullptr);
  }
  return true;
}

template <class Source, class Element>
bool QuantizeMxTile(const TileJob& job, int columns, TileTally& tally) {
  return QuantizeMxPart<Source, Element>(job, columns, {}, tally);
}

/// The part of a job whose codes begin with a column: with their places in the results.
template <class Source>
TileJob MxJobFrom(int column, TileJob job) {
  job.source = static_cast<const typename Source::Storage*>(job.source) + column;
  if (job.rowwise != nullptr) {
    job.rowwise += column / 2;
    job.row_scales = static_cast<uint8_t*>(job.row_scales) + column / kMxSide;
  }
  if (job.columnwise != nullptr) {
    job.columnwise += column / 2;
    job.column_scales = static_cast<uint8_t*>(job.column_scales) + column;
  }
  return job;
}

/// FP4, two codes in a byte. 64 codes are half a cache line: of a tile of twice the width those of
/// the first 64 columns are kept until the others join them.
template <class Source, class Element>
bool QuantizeMxNibbles(const TileJob& job, int columns, TileTally& tally) {
  constexpr int kWidth = 2 * kMxSide;
  if (columns < 2 * kWidth) {
    for (int column = 0; column < columns; column += kWidth) {
      const int width = columns - column < kWidth ? columns - column : kWidth;
      if (!QuantizeMxTile<Source, Element>(MxJobFrom<Source>(column, job), width, tally)) {
        return false;
      }
    }
    return true;
  }
  alignas(64) uint8_t rowwise[kMxSide * kMxSide], columnwise[kMxSide * kMxSide];
  // Both directions of tiles of one scale have the same codes.
  const bool has_twins = job.block_dim == 2 && job.rowwise != nullptr;
  const MxFirstHalves halves = {rowwise, has_twins ? rowwise : columnwise};
  TileJob first = job;
  if (job.rowwise != nullptr) first.rowwise = rowwise;
  if (job.columnwise != nullptr) first.columnwise = has_twins ? rowwise : columnwise;
  first.rowwise_stride = first.columnwise_stride = kMxSide;
  if (!QuantizeMxPart<Source, Element>(first, kWidth, {}, tally)) return false;
  TileJob second = MxJobFrom<Source>(kWidth, job);
  // Whole lines begin with the first halves.
  second.rowwise = job.rowwise;
  second.columnwise = job.columnwise;
  return QuantizeMxPart<Source, Element>(second, kWidth, halves, tally);
}

template <class Source>
Mxfp8TileFunction MxTileFrom(DType element) {
  switch (element) {
    case DType::kF8E4M3:
      return &QuantizeMxTile<Source, E4M3>;
    case DType::kF8E5M2:
      return &QuantizeMxTile<Source, E5M2>;
    case DType::kF6E2M3:
      return &QuantizeMxTile<Source, E2M3>;
    case DType::kF6E3M2:
      return &QuantizeMxTile<Source, E3M2>;
    case DType::kF4E2M1x2:
      return &QuantizeMxNibbles<Source, E2M1>;
    default:
      return nullptr;
  }
}

Mxfp8TileFunction FindMxTile(DType source, DType element) {
  switch (source) {
    case DType::kBF16:
      return MxTileFrom<BFloat16>(element);
    case DType::kF16:
      return MxTileFrom<Float16>(element);
    case DType::kF32:
      return MxTileFrom<Float32>(element);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace quantgate
