// The nvfp4 loops of one instruction set: 16 blocks of a row, 16 lines of blocks. Included by
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

/// The scales of blocks in lanes: codes, what they stand for, and the factors of the elements.
struct NvScales {
  Ints codes;
  Floats values, factors;
};

/// The scales that MakeNvfp4BlockScale by kTwoLevel, or MakeFourOverSixScales, makes where it casts
/// `unit` to E4M3; `unit` has no NaN.
inline NvScales MakeNvScales(Floats unit, Floats decode) {
  const Ints code = And(EncodeMagnitude<E4M3>(unit), AllInts(0x7F));
  const Ints normal = Plus(ShiftLeft<20>(code), AllInts((127 - E4M3::kBias) << 23));
  const Ints subnormal = BitsOf(Times(Convert(code), All(0x1p-9f)));
  const Floats value = FloatsOf(IfLess(code, AllInts(8), subnormal, normal));
  const Floats inverse = Over(All(1.0f), Times(value, decode));
  return {code, value, MinMagnitude(inverse, All(kLargest<Float32>))};
}

/// E2M1 codes at bit 22 of each lane with the sign at bit 25, before kCodeFlip is applied; the
/// other bits are undefined. A float's exponent and first mantissa bit, from 1.0 on, are the code's
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

/// The same for EncodeFloat<E2M1>.
inline Ints EncodeNearestLanes(Floats value) {
  const Ints magnitude = ShiftLeft<kCodeShift>(EncodeMagnitude<E2M1>(value));
  const Ints flipped = Xor3(magnitude, AllInts(kCodeFlip << kCodeShift), AllInts(0));
  return Select(AllInts(8 << kCodeShift), ShiftRight<31 - 25>(BitsOf(value)), flipped);
}

/// Elements whose `rounded` is beyond kNvBeyond are saturated.
template <bool kStochastic, int kRandomShift>
Ints EncodeNv(Floats scaled, Ints random, Ints& rounded) {
  if constexpr (kStochastic) return EncodeStochasticLanes<kRandomShift>(scaled, random, rounded);
  rounded = And(BitsOf(scaled), AllInts(0x7FFFFFFF));
  return EncodeNearestLanes(scaled);
}

/// Only the code in each lane.
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
    const Floats block_amax = Load(reinterpret_cast<const float*>(amax + i));
    const NvScales scales = MakeNvScales(Times(block_amax, All(job.encode_sixth)), All(job.decode));
    Store(&row.factors[i], scales.factors);
    StoreLowBytes(job.scales + i, scales.codes);
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

// ---- 16 lines of up to 8 blocks, a line to a lane

/// As ReadNvColumns, but the lines are rows: reads kLanes rows of 16 elements and transposes them,
/// so that register i of `v` holds element i of every row. Each round of interleaving moves one bit
/// of an element's place in its register to the number of its register.
template <class Source>
Ints ReadNvRows(const typename Source::Storage* source, int64_t stride, Floats* v) {
  Ints max = AllInts(0);
#pragma GCC unroll 2
  for (Floats* square = v; square < v + kNvSide; square += kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      square[i] = LoadSource<Source>(source + i * stride + (square - v));
    }
#pragma GCC unroll 4
    for (int round = 1; round < kLanes; round *= 2) {
      Floats turned[kLanes];
#pragma GCC unroll 8
      for (int i = 0; i < kLanes / 2; ++i) {
        Interleave(square[i], square[i + kLanes / 2], &turned[2 * i], &turned[2 * i + 1]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = turned[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) max = Max(max, And(BitsOf(square[i]), AllInts(0x7FFFFFFF)));
  }
  return max;
}

/// CandidateError of each line.
template <bool kSquares>
Floats NvErrors(const Floats* v, const NvScales& scales, Floats amax, Floats code_max) {
  const Ints mask = AllInts(0x7FFFFFFF);
  Floats sum = All(0.0f);
#pragma GCC unroll 16
  for (int i = 0; i < kNvSide; ++i) {
    // Values and what is dequantized have one sign, which errors do not depend on.
    const Floats rounded = RoundMagnitude<E2M1>(Times(v[i], scales.factors));
    const Floats dequantized = Over(Times(Times(rounded, scales.values), amax), code_max);
    const Floats d = Minus(dequantized, FloatsOf(And(BitsOf(v[i]), mask)));
    sum = Plus(sum, kSquares ? Times(d, d) : FloatsOf(And(BitsOf(d), mask)));
  }
  return sum;
}

/// The error of a tile in place of those of its lines.
inline void AddUpTile(float* errors) {
  for (int distance = kNvSide / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) errors[i] += errors[i + distance];
  }
  for (int i = 1; i < kNvSide; ++i) errors[i] = errors[0];
}

/// PickScale under 4over6, of finite amaxes.
template <bool kSquares>
void PickNvScales(const Nvfp4LineJob& job, const Floats (*v)[kNvSide], const Ints* amax,
                  NvScales* picked) {
  NvScales six[kNvVectors], four[kNvVectors];
  alignas(64) float errors6[kNvSide], errors4[kNvSide];
  for (int h = 0; h < kNvVectors; ++h) {
    const int line = h * kLanes;
    const Floats decode = Load(job.decode + line);
    const Floats base = Times(Over(FloatsOf(amax[h]), All(6.0f)), Load(job.encode + line));
    six[h] = MakeNvScales(base, decode);
    four[h] = MakeNvScales(Times(base, All(1.5f)), decode);
    const Floats tensor_amax = Load(job.amax + line), code_max = All(job.code_max);
    Store(errors6 + line, NvErrors<kSquares>(v[h], six[h], tensor_amax, code_max));
    Store(errors4 + line, NvErrors<kSquares>(v[h], four[h], tensor_amax, code_max));
  }
  if (job.block_dim == 2) {
    AddUpTile(errors6);
    AddUpTile(errors4);
  }
  for (int h = 0; h < kNvVectors; ++h) {
    const Floats error6 = Load(errors6 + h * kLanes), error4 = Load(errors4 + h * kLanes);
    const auto pick = [&](Ints of_six, Ints of_four) {
      return IfLess(error4, error6, of_four, of_six);
    };
    picked[h].codes = pick(six[h].codes, four[h].codes);
    picked[h].factors = FloatsOf(pick(BitsOf(six[h].factors), BitsOf(four[h].factors)));
  }
}

/// The kinds of the codes of kLanes lines, by element, for the copy that is counted.
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

/// The random byte of row r in words[r / 4]. It stays in place unless it is the highest byte, where
/// it would be a sign.
template <int kByte>
Ints RandomByte(Ints word) {
  if constexpr (kByte == 3) return ShiftRight<24>(word);
  return And(word, AllInts(0xFF << 8 * kByte));
}

template <bool kStochastic, bool kCounts, int kElement>
void EncodeNvElement(const Floats* v, Floats factors, const Ints* words, Ints* packed,
                     TileTally& tally) {
  if constexpr (kElement < kNvSide) {
    const Floats scaled = Times(v[kElement], factors);
    constexpr int kByte = kElement % 4, kNibble = 4 * (kElement % 8);
    constexpr int kRandomShift = kByte == 3 ? 0 : 8 * kByte;
    Ints random = AllInts(0), rounded;
    if constexpr (kStochastic) random = RandomByte<kByte>(words[kElement / 4]);
    const Ints encoded = EncodeNv<kStochastic, kRandomShift>(scaled, random, rounded);
    if constexpr (kCounts) TallyNv<kStochastic>(v[kElement], rounded, CodeOf(encoded), tally);
    packed[kElement / 8] =
        MaskedOr(MoveNibble<kNibble>(encoded), AllInts(static_cast<int>(0xFu << kNibble)),
                 packed[kElement / 8]);
    EncodeNvElement<kStochastic, kCounts, kElement + 1>(v, factors, words, packed, tally);
  }
}

/// Quantizes a block of each of 16 lines; false if an element is not finite.
template <class Source, bool kStochastic>
bool QuantizeNvBlock(const Nvfp4LineJob& job, int group, uint32_t (*codes)[2 * 8],
                     uint8_t (*scales)[8], TileTally& tally) {
  using Storage = typename Source::Storage;
  const int64_t stride = job.source_stride;
  const auto* source =
      static_cast<const Storage*>(job.source) + group * kNvSide * (job.is_rowwise ? 1 : stride);
  const int64_t ahead_step = job.is_rowwise ? int64_t{sizeof(Storage)} : job.ahead_stride;
  const auto* ahead = static_cast<const uint8_t*>(job.ahead) + group * kNvSide * ahead_step;
  for (int r = 0; r < kNvSide; ++r) PrefetchFar(ahead + r * job.ahead_stride);
  Floats v[kNvVectors][kNvSide];
  Ints max[kNvVectors], largest = AllInts(0);
  for (int h = 0; h < kNvVectors; ++h) {
    max[h] = job.is_rowwise ? ReadNvRows<Source>(source + h * kLanes * stride, stride, v[h])
                            : ReadNvColumns<Source>(source + h * kLanes, stride, v[h]);
    if (job.transforms) TransformColumnsInLanes(v[h], max[h]);
    largest = Max(largest, max[h]);
  }
  const int tile_max = LargestLane(largest);
  if (tile_max >= 0x7F800000) return false;
  if (job.block_dim == 2) {
    for (Ints& amax : max) amax = AllInts(tile_max);
  }
  NvScales scales_of[kNvVectors];
  if (job.picks) {
    const auto pick = job.squares ? PickNvScales<true> : PickNvScales<false>;
    pick(job, v, max, scales_of);
  }
  for (int h = 0; h < kNvVectors; ++h) {
    if (!job.picks) {
      const Floats unit = Times(FloatsOf(max[h]), Load(job.encode_sixth + h * kLanes));
      scales_of[h] = MakeNvScales(unit, Load(job.decode + h * kLanes));
    }
    const Floats factors = scales_of[h].factors;
    Ints words[4], packed[2] = {AllInts(0), AllInts(0)};
    if constexpr (kStochastic) {
      DrawLanes(job.random, AllInts(static_cast<int>(job.block + group)),
                Plus(AllInts(static_cast<int>(job.line + h * kLanes)), Iota()), words);
    }
    if (job.counts) {
      EncodeNvElement<kStochastic, true, 0>(v[h], factors, words, packed, tally);
    } else {
      EncodeNvElement<kStochastic, false, 0>(v[h], factors, words, packed, tally);
    }
    alignas(64) uint32_t low[kLanes], high[kLanes];
    uint8_t bytes[kLanes];
    const Ints flip = AllInts(0x11111111 * kCodeFlip);
    StoreInts(low, Xor3(packed[0], flip, AllInts(0)));
    StoreInts(high, Xor3(packed[1], flip, AllInts(0)));
    StoreLowBytes(bytes, scales_of[h].codes);
    for (int i = 0; i < kLanes; ++i) {
      codes[h * kLanes + i][2 * group] = low[i];
      codes[h * kLanes + i][2 * group + 1] = high[i];
      scales[h * kLanes + i][group] = bytes[i];
    }
  }
  return true;
}

template <class Source>
uint32_t QuantizeNvLines(const Nvfp4LineJob& job, TileTally& tally) {
  alignas(64) uint32_t codes[kNvSide][2 * 8];
  uint8_t scales[kNvSide][8];
  uint32_t left = 0;
  for (int group = 0; group < job.groups; ++group) {
    const bool is_done = job.random.is_used
                             ? QuantizeNvBlock<Source, true>(job, group, codes, scales, tally)
                             : QuantizeNvBlock<Source, false>(job, group, codes, scales, tally);
    if (!is_done) left |= 1u << group;
  }
  for (int line = 0; line < kNvSide; ++line) {
    uint8_t* to = job.codes + line * job.code_stride;
    if (job.groups == 8) {
      StoreLine(to, LoadLine(reinterpret_cast<const uint8_t*>(codes[line])), job.streams);
      __builtin_memcpy(job.scales + line * job.scale_stride, scales[line], 8);
    } else {
      __builtin_memcpy(to, codes[line], static_cast<size_t>(8 * job.groups));
      __builtin_memcpy(job.scales + line * job.scale_stride, scales[line],
                       static_cast<size_t>(job.groups));
    }
  }
  return left;
}

Nvfp4Functions FindNvfp4(DType source) {
  switch (source) {
    case DType::kBF16:
      return {&QuantizeNvRow<BFloat16>, &QuantizeNvLines<BFloat16>, &FindNvTileAmaxes<BFloat16>,
              &TransformNvTile, &FindTransformedAmax};
    case DType::kF16:
      return {&QuantizeNvRow<Float16>, &QuantizeNvLines<Float16>, &FindNvTileAmaxes<Float16>,
              nullptr, nullptr};
    case DType::kF32:
      return {&QuantizeNvRow<Float32>, &QuantizeNvLines<Float32>, &FindNvTileAmaxes<Float32>,
              nullptr, nullptr};
    default:
      return {};
  }
}

}  // namespace
}  // namespace quantgate
