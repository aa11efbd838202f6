// The 128 x 128 tiles of fp8_block, fp8_tensor and fp8_rowwise of one instruction set: both
// directions from one reading of the source, the columnwise codes transposed. Included by
// block_kernels_*.cc after their lanes.
#pragma once

#include <type_traits>

#include "kernels/quantize/cpu/bf16_lanes_body.h"
#include "kernels/quantize/cpu/block_kernels.h"
#include "kernels/quantize/cpu/encode_lanes_body.h"

namespace quantgate {
namespace {

constexpr int kTileSide = 128;

/// What the first pass keeps of a tile, including the elements: rows that lie a power of two apart
/// fall into few sets of the caches and would be evicted before they are read again.
template <class Source>
struct Fp8Tile {
  alignas(64) typename Source::Storage elements[kTileSide][kTileSide];
  alignas(64) uint32_t row_amax[kTileSide];  // Magnitude bits.
  alignas(64) uint32_t column_amax[kTileSide];
  alignas(64) float row_scales[kTileSide];
  alignas(64) float column_scales[kTileSide];
};

/// Prefetches the cache lines of kCount elements into the L2 cache, since the tile fills the L1.
template <int kCount, class Storage>
void PrefetchRow(const Storage* row) {
  for (int i = 0; i < kCount; i += 64 / sizeof(*row)) PrefetchFar(row + i);
}

/// Copies the tile and finds the amaxes of its rows and columns; returns the largest.
template <class Source>
uint32_t ReadFp8Tile(const TileJob& job, Fp8Tile<Source>& tile) {
  if constexpr (std::is_same_v<Source, BFloat16>) {
    return ReadBf16Block<kTileSide, kTileSide>(static_cast<const uint16_t*>(job.source),
                                               job.source_stride, tile.elements[0], kTileSide,
                                               tile.row_amax, tile.column_amax);
  }
  const auto* source = static_cast<const typename Source::Storage*>(job.source);
  const Ints mask = AllInts(0x7FFFFFFF);
  constexpr int kVectors = kTileSide / kLanes;
  Ints column_max[kVectors], largest = AllInts(0);
  for (int j = 0; j < kVectors; ++j) column_max[j] = AllInts(0);
  for (int first = 0; first < kTileSide; first += kLanes) {
    Ints row_max[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const auto* from = source + (first + i) * job.source_stride;
      auto* row = tile.elements[first + i];
      __builtin_memcpy(row, from, sizeof(tile.elements[0]));
      Ints max = AllInts(0);
      for (int j = 0; j < kVectors; ++j) {
        const Ints magnitude = And(BitsOf(LoadSource<Source>(row + j * kLanes)), mask);
        max = Max(max, magnitude);
        column_max[j] = Max(column_max[j], magnitude);
      }
      row_max[i] = max;
    }
    const Ints of_rows = LargestOfEach(row_max);
    StoreInts(&tile.row_amax[first], of_rows);
    largest = Max(largest, of_rows);
  }
  for (int j = 0; j < kVectors; ++j) StoreInts(&tile.column_amax[j * kLanes], column_max[j]);
  return static_cast<uint32_t>(LargestLane(largest));
}

/// ComputeScale by kDivide of finite amaxes; returns the largest scaled amax.
template <class Element>
Ints Fp8Scales(const uint32_t* amax_bits, const Fp8BlockOptions& options, float* scales) {
  const Ints infinity = AllInts(0x7F800000), one = BitsOf(All(1.0f));
  // Magnitudes are ordered as their bits.
  const Ints bits = Max(BitsOf(Load(reinterpret_cast<const float*>(amax_bits))),
                        BitsOf(All(options.amax_epsilon)));
  const Ints quotient = BitsOf(Over(All(kLargest<Element>), FloatsOf(bits)));
  Ints scale = IfLess(quotient, infinity, quotient, BitsOf(All(options.value_for_infinity)));
  if (options.power_2) scale = And(scale, AllInts(static_cast<int>(0xFF800000)));
  // 1 for an amax of 0, and for an epsilon that is infinite.
  scale = IfLess(AllInts(0), bits, scale, one);
  scale = IfLess(bits, infinity, scale, one);
  Store(scales, FloatsOf(scale));
  return BitsOf(Times(FloatsOf(bits), FloatsOf(scale)));
}

template <class Element>
bool ScaleFp8Lines(const uint32_t* amax, const Fp8BlockOptions& options, float* scales,
                   float* inverses, int64_t inverse_stride) {
  Ints largest = AllInts(0);
  for (int i = 0; i < kTileSide; i += kLanes) {
    largest = Max(largest, Fp8Scales<Element>(amax + i, options, scales + i));
    alignas(64) float inverse[kLanes];
    Store(inverse, Over(All(1.0f), Load(scales + i)));
    for (int j = 0; j < kLanes; ++j) inverses[(i + j) * inverse_stride] = inverse[j];
  }
  return static_cast<uint32_t>(LargestLane(largest)) >= kFirstBeyond<Element>;
}

/// 64 codes of a row, scaled by the scale of the row or by those of the columns.
template <class Source, class Element, bool kByColumn>
Line EncodeFp8Line(const typename Source::Storage* row, float row_scale,
                   const float* column_scales) {
  Ints v[64 / kLanes];
  for (int j = 0; j < 64 / kLanes; ++j) {
    const Floats scale = kByColumn ? Load(column_scales + j * kLanes) : All(row_scale);
    v[j] = EncodeLanes<Element>(Times(LoadSource<Source>(row + j * kLanes), scale));
  }
  return PackLine(v);
}

/// Counts what the codes alone do not show.
template <class Source, class Element, bool kByColumn>
void TallyFp8Values(const typename Source::Storage* source, int64_t stride, const float* row_scales,
                    const float* column_scales, TileTally& tally) {
  const Ints beyond = AllInts(static_cast<int>(kFirstBeyond<Element>) - 1);
  const Ints mask = AllInts(0x7FFFFFFF);
  for (int row = 0; row < kTileSide; ++row) {
    for (int column = 0; column < kTileSide; column += kLanes) {
      const Floats v = LoadSource<Source>(source + row * stride + column);
      const Floats scale = kByColumn ? Load(column_scales + column) : All(row_scales[row]);
      tally.source_zero += CountEqual(And(BitsOf(v), mask), AllInts(0));
      tally.saturated += CountLess(beyond, And(BitsOf(Times(v, scale)), mask));
    }
  }
}

/// Transposes 128 rows of 64 codes and writes the 64 columns.
inline void StoreColumns(const uint8_t (*rows)[64], uint8_t* columns, int64_t stride,
                         bool streams) {
  for (int row = 0; row < kTileSide; row += 64) {
    for (int column = 0; column < 64; column += 16) {
      Line lines[16];
      TransposeBytes64x16(&rows[row][column], 64, lines);
      for (int i = 0; i < 16; ++i) {
        StoreLine(columns + (column + i) * stride + row, lines[i], streams);
      }
    }
  }
}

/// Which copies one encoding makes.
enum class Fp8Copies { kRowwise, kColumnwise, kBoth };

/// Rowwise codes go to their place, columnwise ones through a buffer. encode(row, half) makes the
/// 64 codes of a half of a row.
template <class Source, class Element, Fp8Copies kCopies, class Encode>
void StoreFp8Copies(const TileJob& job, const Encode& encode, ByteTally& tally) {
  constexpr uint8_t kMagnitudes = FormatConstants<Element>::kSignMask - 1;
  const auto* source = static_cast<const typename Source::Storage*>(job.source);
  for (int half = 0; half < kTileSide; half += 64) {
    alignas(64) uint8_t rows[kTileSide][64];
    for (int row = 0; row < kTileSide; ++row) {
      const Line line = encode(row, half);
      PrefetchRow<64>(source + row * job.source_stride + kTileSide + half);
      if constexpr (kCopies != Fp8Copies::kRowwise) StoreLine(rows[row], line, false);
      if constexpr (kCopies != Fp8Copies::kColumnwise) {
        StoreLine(job.rowwise + row * job.rowwise_stride + half, line, job.streams);
      }
      TallyLine(line, kMagnitudes, 1 << Element::kMantissaBits, tally);
    }
    if constexpr (kCopies != Fp8Copies::kRowwise) {
      StoreColumns(rows, job.columnwise + half * job.columnwise_stride, job.columnwise_stride,
                   job.columnwise_streams);
    }
  }
}

/// Quantizes by 16-bit words if there is such a loop; false if not.
template <class Element, Fp8Copies kCopies, class Source>
bool StoreFp8Words(const TileJob& job, const Fp8Tile<Source>& tile, ByteTally& tally) {
  if constexpr (std::is_same_v<Source, BFloat16>) {
    constexpr bool kByColumn = kCopies == Fp8Copies::kColumnwise;
    alignas(64) uint16_t offsets[kTileSide];
    if (!FindWordOffsets<Element>(kByColumn ? tile.column_amax : tile.row_amax,
                                  kByColumn ? tile.column_scales : tile.row_scales, kTileSide,
                                  offsets)) {
      return false;
    }
    StoreFp8Copies<Source, Element, kCopies>(
        job,
        [&](int row, int half) {
          Ints of_line[64 / kWords];
          for (int j = 0; j < 64 / kWords; ++j) {
            of_line[j] =
                kByColumn ? LoadWords(offsets + half + j * kWords) : AllWords(offsets[row]);
          }
          return EncodeWordLine<Element>(&tile.elements[row][half], of_line);
        },
        tally);
    return true;
  }
  return false;
}

/// kBoth: a scale for all. `by_exponent`: scales are powers of two.
template <class Source, class Element, Fp8Copies kCopies>
void MakeFp8Copies(const TileJob& job, const Fp8Tile<Source>& tile, bool by_exponent,
                   bool any_beyond, TileTally* tally) {
  constexpr bool kByColumn = kCopies == Fp8Copies::kColumnwise;
  ByteTally bytes;
  if (!by_exponent || any_beyond || !StoreFp8Words<Element, kCopies>(job, tile, bytes)) {
    StoreFp8Copies<Source, Element, kCopies>(
        job,
        [&](int row, int half) {
          return EncodeFp8Line<Source, Element, kByColumn>(
              &tile.elements[row][half], tile.row_scales[row], &tile.column_scales[half]);
        },
        bytes);
  }
  if (tally == nullptr) return;
  tally->code_zero += bytes.zero;
  tally->code_below_normal += bytes.below_normal;
  if constexpr (std::is_same_v<Source, BFloat16>) {
    if (!any_beyond) {
      if (bytes.zero > 0)
        tally->source_zero += CountZeroWords(tile.elements[0], kTileSide * kTileSide);
      return;
    }
  }
  if (bytes.zero > 0 || any_beyond) {
    TallyFp8Values<Source, Element, kByColumn>(tile.elements[0], kTileSide, tile.row_scales,
                                               tile.column_scales, *tally);
  }
}

/// One scale for the whole tile, stored once per direction.
template <class Source, class Element>
bool ScaleFp8Whole(const TileJob& job, const Fp8BlockOptions& options, uint32_t amax,
                   Fp8Tile<Source>& tile) {
  alignas(64) uint32_t amaxes[kLanes];
  alignas(64) float scales[kLanes], inverses[kLanes];
  StoreInts(amaxes, AllInts(static_cast<int>(amax)));
  const Ints scaled = Fp8Scales<Element>(amaxes, options, scales);
  Store(inverses, Over(All(1.0f), Load(scales)));
  for (int i = 0; i < kTileSide; i += kLanes) {
    Store(&tile.row_scales[i], Load(scales));
    Store(&tile.column_scales[i], Load(scales));
  }
  if (job.row_scales != nullptr) *static_cast<float*>(job.row_scales) = inverses[0];
  if (job.column_scales != nullptr) *static_cast<float*>(job.column_scales) = inverses[0];
  return static_cast<uint32_t>(LargestLane(scaled)) >= kFirstBeyond<Element>;
}

template <class Source, class Element>
bool QuantizeFp8Tile(const TileJob& job, const Fp8BlockOptions& options, TileTally& tally) {
  Fp8Tile<Source> tile;
  const uint32_t amax = ReadFp8Tile<Source>(job, tile);
  if (amax >= 0x7F800000) return false;
  bool row_beyond = false, column_beyond = false;
  if (job.block_dim == 2) {
    row_beyond = column_beyond = ScaleFp8Whole<Source, Element>(job, options, amax, tile);
  } else {
    if (job.rowwise != nullptr) {
      row_beyond =
          ScaleFp8Lines<Element>(tile.row_amax, options, tile.row_scales,
                                 static_cast<float*>(job.row_scales), job.row_scale_stride);
    }
    if (job.columnwise != nullptr) {
      column_beyond =
          ScaleFp8Lines<Element>(tile.column_amax, options, tile.column_scales,
                                 static_cast<float*>(job.column_scales), job.column_scale_stride);
    }
  }
  if (job.block_dim == 2 && job.rowwise != nullptr && job.columnwise != nullptr) {
    MakeFp8Copies<Source, Element, Fp8Copies::kBoth>(job, tile, options.power_2, row_beyond,
                                                     &tally);
    return true;
  }
  if (job.rowwise != nullptr) {
    MakeFp8Copies<Source, Element, Fp8Copies::kRowwise>(job, tile, options.power_2, row_beyond,
                                                        &tally);
  }
  if (job.columnwise != nullptr) {
    MakeFp8Copies<Source, Element, Fp8Copies::kColumnwise>(
        job, tile, options.power_2, column_beyond, job.rowwise == nullptr ? &tally : nullptr);
  }
  return true;
}

/// Writes both copies under one given scale.
template <class Source, class Element>
bool QuantizeFp8TensorTile(const TileJob& job, float scale, TileTally& tally) {
  Fp8Tile<Source> tile;
  const uint32_t amax = ReadFp8Tile<Source>(job, tile);
  if (amax >= 0x7F800000) return false;
  for (int i = 0; i < kTileSide; i += kLanes) Store(&tile.row_scales[i], All(scale));
  const Ints scaled = BitsOf(Times(FloatsOf(AllInts(static_cast<int>(amax))), All(scale)));
  const bool any_beyond = static_cast<uint32_t>(LargestLane(scaled)) >= kFirstBeyond<Element>;
  MakeFp8Copies<Source, Element, Fp8Copies::kBoth>(job, tile, false, any_beyond, &tally);
  return true;
}

// ---- fp8_rowwise: one pass for the amaxes of lines, one for both copies

constexpr int kMostMeasured = 2048;  // Columns.

/// The amaxes of 128 rows and of columns in the source's magnitude codes. Rows are read side by
/// side along their whole length, which the hardware prefetcher follows, and the columns' maxima so
/// far stay in the L1 cache. NaN is larger than every number.
template <class Storage>
struct MeasuredLines {
  alignas(64) Storage rows[kTileSide];
  alignas(64) Storage columns[kMostMeasured];
};

inline void MeasureWords(const uint16_t* source, int64_t stride, int columns,
                         MeasuredLines<uint16_t>& found) {
  for (int i = 0; i < columns; i += kWords) StoreWords(found.columns + i, AllInts(0));
  for (int first = 0; first < kTileSide; first += kWords) {
    Ints eights[kWords / 8];
    for (int i = 0; i < kWords; i += 8) {
      const uint16_t* from = source + (first + i) * stride;
      Ints max[8];
      for (Ints& of_row : max) of_row = AllInts(0);
      for (int column = 0; column < columns; column += kWords) {
        Ints of_column = LoadWords(found.columns + column);
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
          const Ints magnitude = And(LoadWords(from + r * stride + column), AllWords(0x7FFF));
          max[r] = MaxWords(max[r], magnitude);
          of_column = MaxWords(of_column, magnitude);
        }
        StoreWords(found.columns + column, of_column);
      }
      eights[i / 8] = LargestOfEightWords(max);
    }
    StoreWords(found.rows + first, JoinEights(eights));
  }
}

inline void MeasureFloats(const uint32_t* source, int64_t stride, int columns,
                          MeasuredLines<uint32_t>& found) {
  const Ints mask = AllInts(0x7FFFFFFF);
  for (int i = 0; i < columns; i += kLanes) StoreInts(found.columns + i, AllInts(0));
  for (int first = 0; first < kTileSide; first += kLanes) {
    Ints max[kLanes];
    for (Ints& of_row : max) of_row = AllInts(0);
    for (int column = 0; column < columns; column += kLanes) {
      Ints of_column = BitsOf(LoadSource<Float32>(found.columns + column));
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        const uint32_t* from = source + (first + r) * stride + column;
        const Ints magnitude = And(BitsOf(LoadSource<Float32>(from)), mask);
        max[r] = Max(max[r], magnitude);
        of_column = Max(of_column, magnitude);
      }
      StoreInts(found.columns + column, of_column);
    }
    StoreInts(found.rows + first, LargestOfEach(max));
  }
}

/// Raises amaxes, fp32 magnitude bits, to magnitude codes.
template <class Source>
void RaiseAmaxes(const typename Source::Storage* found, int count, uint32_t* amax) {
  for (int i = 0; i < count; i += kLanes) {
    const Ints seen = BitsOf(Load(reinterpret_cast<const float*>(amax + i)));
    StoreInts(amax + i, Max(seen, BitsOf(LoadSource<Source>(found + i))));
  }
}

/// Raises the amaxes of lines to those of 128 rows and some columns.
template <class Source>
bool MeasureFp8Lines(const void* source, int64_t stride, int columns, uint32_t* row_amax,
                     uint32_t* column_amax) {
  using Storage = typename Source::Storage;
  MeasuredLines<Storage> found;
  if constexpr (std::is_same_v<Source, Float32>) {
    MeasureFloats(static_cast<const Storage*>(source), stride, columns, found);
  } else {
    MeasureWords(static_cast<const Storage*>(source), stride, columns, found);
  }
  alignas(64) uint32_t of_rows[kTileSide] = {};
  RaiseAmaxes<Source>(found.rows, kTileSide, of_rows);
  Ints largest = AllInts(0);
  for (int i = 0; i < kTileSide; i += kLanes) {
    largest = Max(largest, BitsOf(Load(reinterpret_cast<const float*>(of_rows + i))));
  }
  if (LargestLane(largest) >= 0x7F800000) return false;
  RaiseAmaxes<Source>(found.rows, kTileSide, row_amax);
  RaiseAmaxes<Source>(found.columns, columns, column_amax);
  return true;
}

/// Whether a product of an amax and its line's factor rounds beyond the largest code.
template <class Element>
bool AnyBeyond(const uint32_t* amax, const float* scales) {
  Ints largest = AllInts(0);
  for (int i = 0; i < kTileSide; i += kLanes) {
    const Floats magnitudes = Load(reinterpret_cast<const float*>(amax + i));
    largest = Max(largest, BitsOf(Times(magnitudes, Load(scales + i))));
  }
  return static_cast<uint32_t>(LargestLane(largest)) >= kFirstBeyond<Element>;
}

/// Writes the copies from one reading of the source: encode_row and encode_column(row, half) make
/// the 64 codes of a half of a row under the factor of the row and under those of the columns. The
/// tally is of the rowwise codes if they are made.
template <class Source, class Element, bool kRowwise, class EncodeRow, class EncodeColumn>
void StoreFp8LineCopies(const TileJob& job, const EncodeRow& encode_row,
                        const EncodeColumn& encode_column, ByteTally& tally) {
  constexpr uint8_t kMagnitudes = FormatConstants<Element>::kSignMask - 1;
  const auto* source = static_cast<const typename Source::Storage*>(job.source);
  for (int half = 0; half < kTileSide; half += 64) {
    alignas(64) uint8_t rows[kTileSide][64];
    for (int row = 0; row < kTileSide; ++row) {
      const Line of_columns = encode_column(row, half);
      PrefetchRow<64>(source + row * job.source_stride + kTileSide + half);
      if constexpr (kRowwise) {
        const Line of_row = encode_row(row, half);
        StoreLine(job.rowwise + row * job.rowwise_stride + half, of_row, job.streams);
        TallyLine(of_row, kMagnitudes, 1 << Element::kMantissaBits, tally);
      } else {
        TallyLine(of_columns, kMagnitudes, 1 << Element::kMantissaBits, tally);
      }
      StoreLine(rows[row], of_columns, false);
    }
    StoreColumns(rows, job.columnwise + half * job.columnwise_stride, job.columnwise_stride,
                 job.columnwise_streams);
  }
}

/// Quantizes by 16-bit words if there is such a loop; false if not.
template <class Source, class Element, bool kRowwise>
bool StoreFp8LineWords(const TileJob& job, ByteTally& tally) {
  if constexpr (std::is_same_v<Source, BFloat16>) {
    alignas(64) uint16_t of_rows[kTileSide], of_columns[kTileSide];
    if (kRowwise &&
        !FindWordOffsets<Element>(job.row_amax, static_cast<const float*>(job.row_scales),
                                  kTileSide, of_rows)) {
      return false;
    }
    if (!FindWordOffsets<Element>(job.column_amax, static_cast<const float*>(job.column_scales),
                                  kTileSide, of_columns)) {
      return false;
    }
    const auto* source = static_cast<const uint16_t*>(job.source);
    StoreFp8LineCopies<Source, Element, kRowwise>(
        job,
        [&](int row, int half) {
          Ints of_line[64 / kWords];
          for (Ints& offset : of_line) offset = AllWords(of_rows[row]);
          return EncodeWordLine<Element>(source + row * job.source_stride + half, of_line);
        },
        [&](int row, int half) {
          Ints of_line[64 / kWords];
          for (int j = 0; j < 64 / kWords; ++j) {
            of_line[j] = LoadWords(of_columns + half + j * kWords);
          }
          return EncodeWordLine<Element>(source + row * job.source_stride + half, of_line);
        },
        tally);
    return true;
  }
  return false;
}

template <class Source, class Element, bool kRowwise>
void MakeFp8LineCopies(const TileJob& job, bool power_2, TileTally& tally) {
  const auto* source = static_cast<const typename Source::Storage*>(job.source);
  const auto* row_scales = static_cast<const float*>(job.row_scales);
  const auto* column_scales = static_cast<const float*>(job.column_scales);
  const bool column_beyond = AnyBeyond<Element>(job.column_amax, column_scales);
  bool row_beyond = false;
  if constexpr (kRowwise) row_beyond = AnyBeyond<Element>(job.row_amax, row_scales);
  ByteTally bytes;
  if (!power_2 || row_beyond || column_beyond ||
      !StoreFp8LineWords<Source, Element, kRowwise>(job, bytes)) {
    StoreFp8LineCopies<Source, Element, kRowwise>(
        job,
        [&](int row, int half) {
          return EncodeFp8Line<Source, Element, false>(source + row * job.source_stride + half,
                                                       row_scales[row], nullptr);
        },
        [&](int row, int half) {
          return EncodeFp8Line<Source, Element, true>(source + row * job.source_stride + half, 0,
                                                      column_scales + half);
        },
        bytes);
  }
  tally.code_zero += bytes.zero;
  tally.code_below_normal += bytes.below_normal;
  const bool any_beyond = kRowwise ? row_beyond : column_beyond;
  if constexpr (std::is_same_v<Source, BFloat16>) {
    if (!any_beyond) {
      for (int row = 0; row < kTileSide && bytes.zero > 0; ++row) {
        tally.source_zero += CountZeroWords(source + row * job.source_stride, kTileSide);
      }
      return;
    }
  }
  if (bytes.zero > 0 || any_beyond) {
    TallyFp8Values<Source, Element, !kRowwise>(source, job.source_stride, row_scales, column_scales,
                                               tally);
  }
}

/// Writes the copies under the given factors of the lines.
template <class Source, class Element>
void QuantizeFp8LineTile(const TileJob& job, bool power_2, TileTally& tally) {
  if (job.rowwise != nullptr) {
    MakeFp8LineCopies<Source, Element, true>(job, power_2, tally);
  } else {
    MakeFp8LineCopies<Source, Element, false>(job, power_2, tally);
  }
}

template <class Source>
Fp8BlockTileFunction Fp8TileFrom(DType element) {
  return element == DType::kF8E4M3   ? &QuantizeFp8Tile<Source, E4M3>
         : element == DType::kF8E5M2 ? &QuantizeFp8Tile<Source, E5M2>
                                     : nullptr;
}

template <class Source>
Fp8TensorTileFunction Fp8TensorTileFrom(DType element) {
  return element == DType::kF8E4M3   ? &QuantizeFp8TensorTile<Source, E4M3>
         : element == DType::kF8E5M2 ? &QuantizeFp8TensorTile<Source, E5M2>
                                     : nullptr;
}

template <class Source>
Fp8LineTileFunction Fp8LineTileFrom(DType element) {
  return element == DType::kF8E4M3   ? &QuantizeFp8LineTile<Source, E4M3>
         : element == DType::kF8E5M2 ? &QuantizeFp8LineTile<Source, E5M2>
                                     : nullptr;
}

Fp8LineAmaxFunction FindFp8LineAmax(DType source) {
  switch (source) {
    case DType::kBF16:
      return &MeasureFp8Lines<BFloat16>;
    case DType::kF16:
      return &MeasureFp8Lines<Float16>;
    case DType::kF32:
      return &MeasureFp8Lines<Float32>;
    default:
      return nullptr;
  }
}

Fp8LineTileFunction FindFp8LineTile(DType source, DType element) {
  switch (source) {
    case DType::kBF16:
      return Fp8LineTileFrom<BFloat16>(element);
    case DType::kF16:
      return Fp8LineTileFrom<Float16>(element);
    case DType::kF32:
      return Fp8LineTileFrom<Float32>(element);
    default:
      return nullptr;
  }
}

Fp8TensorTileFunction FindFp8TensorTile(DType source, DType element) {
  switch (source) {
    case DType::kBF16:
      return Fp8TensorTileFrom<BFloat16>(element);
    case DType::kF16:
      return Fp8TensorTileFrom<Float16>(element);
    case DType::kF32:
      return Fp8TensorTileFrom<Float32>(element);
    default:
      return nullptr;
  }
}

Fp8BlockTileFunction FindFp8Tile(DType source, DType element) {
  switch (source) {
    case DType::kBF16:
      return Fp8TileFrom<BFloat16>(element);
    case DType::kF16:
      return Fp8TileFrom<Float16>(element);
    case DType::kF32:
      return Fp8TileFrom<Float32>(element);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace quantgate
