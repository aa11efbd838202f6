// The nvfp4 loops of one instruction set: 16 blocks of a row, 16 columns of blocks. Included by
// block_kernels_*.cc after their lanes.
#pragma once

#include <type_traits>

#include "kernels/quantize/cpu/bf16_lanes_body.h"
#include "kernels/quantize/cpu/block_kernels.h"
#include "kernels/quantize/cpu/encode_lanes_body.h"
#include "kernels/quantize/cpu/hadamard_lanes_body.h"
#include "kernels/quantize/cpu/random_lanes_body.h"

namespace quantgate {
namespace {

/// MakeNvfp4BlockScale by kTwoLevel of finite amaxes: codes, and what multiplies the elements.
inline Floats NvScales(Floats amax, float encode_sixth, float decode, Ints* codes) {
  const Floats float_max = All(kLargest<Float32>);
  const Floats unit = MinMagnitude(Times(amax, All(encode_sixth)), float_max);
  const Ints code = And(EncodeMagnitude<E4M3>(unit), AllInts(0x7F));
  const Ints normal = Plus(ShiftLeft<20>(code), AllInts((127 - E4M3::kBias) << 23));
  const Ints subnormal = BitsOf(Times(Convert(code), All(0x1p-9f)));
  const Floats decoded = FloatsOf(IfLess(code, AllInts(8), subnormal, normal));
  *codes = code;
  return MinMagnitude(Over(All(1.0f), Times(decoded, All(decode))), float_max);
}

/// E2M1 codes at bit 22 of each lane, their sign at bit 25, before what kCodeFlip flips; the other
/// bits are not defined. A float's exponent and first mantissa bit, from 1.0 on, are the code's
/// with 252 added, which is 4 modulo 8; below 1.0 the two codes 0 and 1 stand for [0, 1/2) and
/// [1/2, 1).
constexpr int kCodeShift = 22;
constexpr int kCodeFlip = 4;

/// EncodeE2m1Stochastic of values that are not NaN, and the bits of AddRandomPart, where that is
/// below 8. `random` holds random * 2^kRandomShift.
template <int kRandomShift>
Ints EncodeStochasticLanes(Floats value, Ints random, Ints& t) {
  const Ints magnitude = And(BitsOf(value), AllInts(0x7FFFFFFF));
  // The power of two of a, at least 1, is twice the step; a 256th of that for a unit of `random`.
  const Ints power = Max(And(magnitude, AllInts(0x7F800000)), BitsOf(All(1.0f)));
  const Floats unit = FloatsOf(Minus(power, AllInts((9 + kRandomShift) << 23)));
  t = BitsOf(FusedTimesPlus(Convert(random), unit, FloatsOf(magnitude)));
  const Ints half = BitsOf(All(0.5f));
  const Ints bounded = Min(Max(t, BitsOf(All(0.75f))), BitsOf(All(6.0f)));
  const Ints code = IfLess(t, half, half, bounded);
  return Select(AllInts(8 << kCodeShift), ShiftRight<31 - 25>(BitsOf(value)), code);
}

/// The same of EncodeFloat<E2M1>.
inline Ints EncodeNearestLanes(Floats value) {
  const Ints magnitude = ShiftLeft<kCodeShift>(EncodeMagnitude<E2M1>(value));
  const Ints flipped = Xor3(magnitude, AllInts(kCodeFlip << kCodeShift), AllInts(0));
  return Select(AllInts(8 << kCodeShift), ShiftRight<31 - 25>(BitsOf(value)), flipped);
}

/// Elements that are `rounded` beyond kNvBeyond are saturated.
template <bool kStochastic, int kRandomShift>
Ints EncodeNv(Floats scaled, Ints random, Ints& rounded) {
  if constexpr (kStochastic) return EncodeStochasticLanes<kRandomShift>(scaled, random, rounded);
  rounded = And(BitsOf(scaled), AllInts(0x7FFFFFFF));
  return EncodeNearestLanes(scaled);
}

/// The code alone in each lane.
inline Ints CodeOf(Ints encoded) {
  const Ints nibble = And(ShiftRight<kCodeShift>(encoded), AllInts(0xF));
  return Xor3(nibble, AllInts(kCodeFlip), AllInts(0));
}

template <bool kStochastic>
constexpr int kNvBeyond =
    static_cast<int>(FirstBeyondBits<E2M1>(kStochastic ? ElementRounding::kStochastic
                                                       : ElementRounding::kNearestEven)) -
    1;

// ---- rowwise: 16 blocks

struct NvRow {
  alignas(64) uint32_t amax[kNvSide];
  alignas(64) float factors[kNvSide];
  alignas(64) uint32_t random[kNvSide * 4];
};

/// Finds the amaxes of the blocks and counts zeros.
template <class Source>
void ReadNvRow(const typename Source::Storage* source, NvRow& row, int& zeros) {
  if constexpr (std::is_same_v<Source, BFloat16>) {
    Ints v[kNvSide * kNvSide / kWords];
    for (int i = 0; i < kNvSide * kNvSide / kWords; ++i) {
      v[i] = And(LoadWords(source + i * kWords), AllWords(0x7FFF));
      zeros += CountZeroMagnitudes(v[i]);
    }
    WidenLargestOfSixteens(row.amax, v);
    return;
  }
  const Ints mask = AllInts(0x7FFFFFFF);
  for (int first = 0; first < kNvSide; first += kLanes) {
    Ints max[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      max[i] = AllInts(0);
      for (int j = 0; j < kNvSide; j += kLanes) {
        const Floats v = LoadSource<Source>(source + (first + i) * kNvSide + j);
        const Ints magnitude = And(BitsOf(v), mask);
        max[i] = Max(max[i], magnitude);
        zeros += CountEqual(magnitude, AllInts(0));
      }
    }
    StoreInts(&row.amax[first], LargestOfEach(max));
  }
}

inline bool IsFinite(const NvRow& row) {
  int infinite = 0;
  for (int i = 0; i < kNvSide; i += kLanes) {
    const Ints amax = BitsOf(Load(reinterpret_cast<const float*>(&row.amax[i])));
    infinite += CountLess(AllInts(0x7F7FFFFF), amax);
  }
  return infinite == 0;
}

inline void ScaleNvRow(const Nvfp4RowJob& job, const uint32_t* amax, NvRow& row) {
  for (int i = 0; i < kNvSide; i += kLanes) {
    Ints codes;
    const Floats factors = NvScales(Load(reinterpret_cast<const float*>(amax + i)),
                                    job.encode_sixth, job.decode, &codes);
    Store(&row.factors[i], factors);
    StoreLowBytes(job.scales + i, codes);
  }
}

inline void DrawNvRow(const Nvfp4RowJob& job, NvRow& row) {
  for (int i = 0; i < kNvSide; i += kLanes) {
    Ints words[4];
    DrawLanes(job.random, Plus(AllInts(static_cast<int>(job.block + i)), Iota()),
              AllInts(static_cast<int>(job.line)), words);
    StoreInterleaved(&row.random[4 * i], words);
  }
}

/// The random bytes of a block, where StoreInterleaved left them.
inline const uint8_t* RandomOf(const NvRow& row, int block) {
  const int first = block / kLanes * kLanes, lane = block % kLanes;
  return reinterpret_cast<const uint8_t*>(&row.random[4 * first]) + lane % 4 * (4 * kLanes) +
         lane / 4 * 16;
}

template <class Source, bool kStochastic>
void EncodeNvRow(const Nvfp4RowJob& job, const NvRow& row, TileTally& tally) {
  const auto* source = static_cast<const typename Source::Storage*>(job.source);
  const Ints beyond = AllInts(kNvBeyond<kStochastic>);
  ByteTally bytes;
  Ints saturated = AllInts(0);
  for (int block = 0; block < kNvSide; block += 4) {
    Ints codes[64 / kLanes];
    for (int j = 0; j < 64 / kLanes; ++j) {
      const int b = block + j / kNvVectors, i = j % kNvVectors * kLanes;
      const Floats scaled =
          Times(LoadSource<Source>(source + b * kNvSide + i), All(row.factors[b]));
      Ints random = AllInts(0), rounded;
      if constexpr (kStochastic) random = LoadBytes(RandomOf(row, b) + i);
      codes[j] = ShiftRight<kCodeShift>(EncodeNv<kStochastic, 0>(scaled, random, rounded));
      saturated = AddIfLess(saturated, beyond, rounded);
    }
    const Line line = MaskAndFlip(PackLine(codes), 0xF, kCodeFlip);
    TallyLine(line, 7, 2, bytes);
    StoreNibbles(job.codes + block * kNvSide / 2, line);
  }
  tally.saturated += SumOfLanes(saturated);
  tally.code_zero += bytes.zero;
  tally.code_below_normal += bytes.below_normal;
}

template <class Source>
bool QuantizeNvRow(const Nvfp4RowJob& job, TileTally& tally) {
  NvRow row;
  int zeros = 0;
  ReadNvRow<Source>(static_cast<const typename Source::Storage*>(job.source), row, zeros);
  if (!IsFinite(row)) return false;
  tally.source_zero += zeros;
  ScaleNvRow(job, job.amax != nullptr ? job.amax : row.amax, row);
  if (job.random.is_used) {
    DrawNvRow(job, row);
    EncodeNvRow<Source, true>(job, row, tally);
  } else {
    EncodeNvRow<Source, false>(job, row, tally);
  }
  return true;
}

/// Amaxes of 16 tiles of 16 x 16 side by side.
template <class Source>
void FindNvTileAmaxes(const void* source, int64_t stride, uint32_t* amaxes) {
  const auto* from = static_cast<const typename Source::Storage*>(source);
  const Ints mask = AllInts(0x7FFFFFFF);
  for (int first = 0; first < kNvSide; first += kLanes) {
    Ints max[kLanes];
    for (Ints& m : max) m = AllInts(0);
    for (int r = 0; r < kNvSide; ++r) {
      for (int i = 0; i < kLanes; ++i) {
        for (int j = 0; j < kNvSide; j += kLanes) {
          const Floats v = LoadSource<Source>(from + r * stride + (first + i) * kNvSide + j);
          max[i] = Max(max[i], And(BitsOf(v), mask));
        }
      }
    }
    StoreInts(amaxes + first, LargestOfEach(max));
  }
}

// ---- columnwise: 16 columns of up to 8 blocks

/// What codes of kLanes columns are, by element: for the copy that is counted.
template <bool kStochastic>
void TallyNv(Floats value, Ints rounded, Ints code, TileTally& tally) {
  const Ints mask = AllInts(0x7FFFFFFF), magnitude = And(code, AllInts(7));
  tally.source_zero += CountEqual(And(BitsOf(value), mask), AllInts(0));
  tally.code_zero += CountEqual(magnitude, AllInts(0));
  tally.code_below_normal += CountLess(magnitude, AllInts(2));
  tally.saturated += CountLess(AllInts(kNvBeyond<kStochastic>), rounded);
}

/// Shifts a nibble from kCodeShift to kTo.
template <int kTo>
Ints MoveNibble(Ints encoded) {
  if constexpr (kTo > kCodeShift) return ShiftLeft<kTo - kCodeShift>(encoded);
  return ShiftRight<kCodeShift - kTo>(encoded);
}

/// Row r's random byte of words[r / 4], left where it is but for the highest, which would be a
/// sign.
template <int kByte>
Ints RandomByte(Ints word) {
  if constexpr (kByte == 3) return ShiftRight<24>(word);
  return And(word, AllInts(0xFF << 8 * kByte));
}

template <bool kStochastic, bool kCounts, int kRow>
void EncodeNvColumnRow(const Floats* v, Floats factors, const Ints* words, Ints* packed,
                       TileTally& tally) {
  if constexpr (kRow < kNvSide) {
    const Floats scaled = Times(v[kRow], factors);
    constexpr int kByte = kRow % 4, kNibble = 4 * (kRow % 8);
    constexpr int kRandomShift = kByte == 3 ? 0 : 8 * kByte;
    Ints random = AllInts(0), rounded;
    if constexpr (kStochastic) random = RandomByte<kByte>(words[kRow / 4]);
    const Ints encoded = EncodeNv<kStochastic, kRandomShift>(scaled, random, rounded);
    if constexpr (kCounts) TallyNv<kStochastic>(v[kRow], rounded, CodeOf(encoded), tally);
    packed[kRow / 8] = MaskedOr(MoveNibble<kNibble>(encoded),
                                AllInts(static_cast<int>(0xFu << kNibble)), packed[kRow / 8]);
    EncodeNvColumnRow<kStochastic, kCounts, kRow + 1>(v, factors, words, packed, tally);
  }
}

/// The blocks of 16 columns in 16 rows: false where an element is not finite.
template <class Source, bool kStochastic>
bool QuantizeNvBlock(const Nvfp4ColumnJob& job, int group, uint32_t (*codes)[2 * 8],
                     uint8_t (*scales)[8], TileTally& tally) {
  const auto* source = static_cast<const typename Source::Storage*>(job.source) +
                       group * kNvSide * job.source_stride;
  const auto* ahead = static_cast<const uint8_t*>(job.ahead) + group * kNvSide * job.ahead_stride;
  for (int r = 0; r < kNvSide; ++r) PrefetchFar(ahead + r * job.ahead_stride);
  Floats v[kNvVectors][kNvSide];
  Ints max[kNvVectors], largest = AllInts(0);
  for (int h = 0; h < kNvVectors; ++h) {
    max[h] = ReadNvColumns<Source>(source + h * kLanes, job.source_stride, v[h]);
    if (job.transforms) TransformColumnsInLanes(v[h], max[h]);
    largest = Max(largest, max[h]);
  }
  const int tile_max = LargestLane(largest);
  if (tile_max >= 0x7F800000) return false;
  for (int h = 0; h < kNvVectors; ++h) {
    const Ints amax = job.block_dim == 2 ? AllInts(tile_max) : max[h];
    Ints scale_codes, words[4], packed[2] = {AllInts(0), AllInts(0)};
    const Floats factors = NvScales(FloatsOf(amax), job.encode_sixth, job.decode, &scale_codes);
    if constexpr (kStochastic) {
      DrawLanes(job.random, AllInts(static_cast<int>(job.block + group)),
                Plus(AllInts(static_cast<int>(job.line + h * kLanes)), Iota()), words);
    }
    if (job.counts) {
      EncodeNvColumnRow<kStochastic, true, 0>(v[h], factors, words, packed, tally);
    } else {
      EncodeNvColumnRow<kStochastic, false, 0>(v[h], factors, words, packed, tally);
    }
    alignas(64) uint32_t low[kLanes], high[kLanes];
    uint8_t bytes[kLanes];
    const Ints flip = AllInts(0x11111111 * kCodeFlip);
    StoreInts(low, Xor3(packed[0], flip, AllInts(0)));
    StoreInts(high, Xor3(packed[1], flip, AllInts(0)));
    StoreLowBytes(bytes, scale_codes);
    for (int i = 0; i < kLanes; ++i) {
      codes[h * kLanes + i][2 * group] = low[i];
      codes[h * kLanes + i][2 * group + 1] = high[i];
      scales[h * kLanes + i][group] = bytes[i];
    }
  }
  return true;
}

template <class Source>
uint32_t QuantizeNvColumns(const Nvfp4ColumnJob& job, TileTally& tally) {
  alignas(64) uint32_t codes[kNvSide][2 * 8];
  uint8_t scales[kNvSide][8];
  uint32_t left = 0;
  for (int group = 0; group < job.groups; ++group) {
    const bool is_done = job.random.is_used
                             ? QuantizeNvBlock<Source, true>(job, group, codes, scales, tally)
                             : QuantizeNvBlock<Source, false>(job, group, codes, scales, tally);
    if (!is_done) left |= 1u << group;
  }
  for (int column = 0; column < kNvSide; ++column) {
    uint8_t* to = job.codes + column * job.code_stride;
    if (job.groups == 8) {
      StoreLine(to, LoadLine(reinterpret_cast<const uint8_t*>(codes[column])), job.streams);
      __builtin_memcpy(job.scales + column * job.scale_stride, scales[column], 8);
    } else {
      __builtin_memcpy(to, codes[column], static_cast<size_t>(8 * job.groups));
      __builtin_memcpy(job.scales + column * job.scale_stride, scales[column],
                       static_cast<size_t>(job.groups));
    }
  }
  return left;
}

Nvfp4Functions FindNvfp4(DType source) {
  switch (source) {
    case DType::kBF16:
      return {&QuantizeNvRow<BFloat16>, &QuantizeNvColumns<BFloat16>, &FindNvTileAmaxes<BFloat16>,
              &TransformNvTile, &FindTransformedAmax};
    case DType::kF16:
      return {&QuantizeNvRow<Float16>, &QuantizeNvColumns<Float16>, &FindNvTileAmaxes<Float16>,
              nullptr, nullptr};
    case DType::kF32:
      return {&QuantizeNvRow<Float32>, &QuantizeNvColumns<Float32>, &FindNvTileAmaxes<Float32>,
              nullptr, nullptr};
    default:
      return {};
  }
}

}  // namespace
}  // namespace quantgate
