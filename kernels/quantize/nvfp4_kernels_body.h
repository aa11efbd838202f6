// The nvfp4 loops of one instruction set: 16 blocks of a row, columns of 16 blocks, the Hadamard
// transform. Included by block_kernels_*.cc after their lanes.
#pragma once

#include "kernels/quantize/block_kernels.h"
#include "kernels/quantize/encode_lanes_body.h"
#include "kernels/quantize/random_lanes_body.h"

namespace quantgate {
namespace {

constexpr int kNvSide = 16;
constexpr int kNvVectors = kNvSide / kLanes;  // Of a block.

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

/// EncodeE2m1Stochastic for finite values; the code alone in each lane. `random` is 0 to 255.
inline Ints EncodeStochasticLanes(Floats value, Ints random) {
  const Ints exponent = AllInts(0x7F800000), one = BitsOf(All(1.0f));
  const Floats largest = All(6.0f);
  // The power of two of a, at least 1, is twice the step.
  const Floats a = MinMagnitude(value, largest);
  const Ints power_a = Max(And(BitsOf(a), exponent), one);
  const Floats step = FloatsOf(Minus(power_a, AllInts(9 << 23)));  // A 256th of it.
  const Floats t = MinMagnitude(FusedTimesPlus(Convert(random), step, a), largest);
  const Ints power = Max(And(BitsOf(t), exponent), one);
  const Floats inverse_step = FloatsOf(Minus(AllInts(255 << 23), power));  // 2 / power.
  const Ints steps = Truncate(Times(t, inverse_step));
  // Codes of a binade begin at 2 more than those of the one below.
  const Ints magnitude = Plus(steps, Minus(ShiftRight<22>(power), AllInts(127 << 1)));
  return MaskedOr(ShiftRight<28>(BitsOf(value)), AllInts(8), magnitude);
}

template <bool kStochastic>
Ints EncodeNv(Floats scaled, Ints random) {
  if constexpr (kStochastic) return EncodeStochasticLanes(scaled, random);
  return EncodeLanes<E2M1>(scaled);
}

template <bool kStochastic>
constexpr int kNvBeyond = static_cast<int>(FirstBeyondBits<E2M1>(
    kStochastic ? ElementRounding::kStochastic : ElementRounding::kNearestEven));

// ---- rowwise: 16 blocks

struct NvRow {
  alignas(64) float values[kNvSide][kNvSide];  // [block][element]
  alignas(64) uint32_t amax[kNvSide];
  alignas(64) float factors[kNvSide];
  alignas(64) uint32_t random[kNvSide * 4];
};

/// Widens the row and finds the amaxes of its blocks; returns the largest, and the smallest
/// magnitude.
template <class Source>
uint32_t ReadNvRow(const typename Source::Storage* source, NvRow& row, Ints* smallest) {
  const Ints mask = AllInts(0x7FFFFFFF);
  Ints largest = AllInts(0);
  for (int first = 0; first < kNvSide; first += kLanes) {
    Ints max[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      max[i] = AllInts(0);
      for (int j = 0; j < kNvSide; j += kLanes) {
        const Floats v = LoadSource<Source>(source + (first + i) * kNvSide + j);
        Store(&row.values[first + i][j], v);
        const Ints magnitude = And(BitsOf(v), mask);
        max[i] = Max(max[i], magnitude);
        *smallest = Min(*smallest, magnitude);
      }
    }
    const Ints of_blocks = LargestOfEach(max);
    StoreInts(&row.amax[first], of_blocks);
    largest = Max(largest, of_blocks);
  }
  return static_cast<uint32_t>(LargestLane(largest));
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

template <bool kStochastic>
void EncodeNvRow(const Nvfp4RowJob& job, const NvRow& row, TileTally& tally) {
  const Ints mask = AllInts(0x7FFFFFFF), beyond = AllInts(kNvBeyond<kStochastic> - 1);
  ByteTally bytes;
  for (int block = 0; block < kNvSide; block += 2) {
    Ints codes[32 / kLanes];
    for (int j = 0; j < 32 / kLanes; ++j) {
      const int b = block + j / kNvVectors, i = j % kNvVectors * kLanes;
      const Floats scaled = Times(Load(&row.values[b][i]), All(row.factors[b]));
      tally.saturated += CountLess(beyond, And(BitsOf(scaled), mask));
      Ints random = AllInts(0);
      if constexpr (kStochastic) random = LoadBytes(RandomOf(row, b) + i);
      codes[j] = EncodeNv<kStochastic>(scaled, random);
    }
    alignas(32) uint8_t unpacked[32];
    StoreLowBytes32(unpacked, codes);
    TallyBytes32(unpacked, 7, 2, bytes);
    StoreNibbles32(job.codes + block * kNvSide / 2, unpacked);
  }
  tally.code_zero += bytes.zero;
  tally.code_below_normal += bytes.below_normal;
}

template <class Source>
bool QuantizeNvRow(const Nvfp4RowJob& job, TileTally& tally) {
  NvRow row;
  Ints smallest = AllInts(INT32_MAX);
  const auto* source = static_cast<const typename Source::Storage*>(job.source);
  if (ReadNvRow<Source>(source, row, &smallest) >= 0x7F800000) return false;
  ScaleNvRow(job, job.amax != nullptr ? job.amax : row.amax, row);
  if (job.random.is_used) {
    DrawNvRow(job, row);
    EncodeNvRow<true>(job, row, tally);
  } else {
    EncodeNvRow<false>(job, row, tally);
  }
  if (CountEqual(smallest, AllInts(0)) == 0) return true;
  for (int block = 0; block < kNvSide; ++block) {
    for (int i = 0; i < kNvSide; i += kLanes) {
      const Ints bits = BitsOf(Load(&row.values[block][i]));
      tally.source_zero += CountEqual(And(bits, AllInts(0x7FFFFFFF)), AllInts(0));
    }
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

/// kLanes columns of 16 rows.
template <class Source>
Ints ReadNvColumns(const typename Source::Storage* source, int64_t stride, Floats* v) {
  Ints max = AllInts(0);
  for (int r = 0; r < kNvSide; ++r) {
    v[r] = LoadSource<Source>(source + r * stride);
    max = Max(max, And(BitsOf(v[r]), AllInts(0x7FFFFFFF)));
  }
  return max;
}

/// What codes of kLanes columns are, by element: for the copy that is counted.
template <bool kStochastic>
void TallyNv(Floats value, Floats scaled, Ints code, TileTally& tally) {
  const Ints mask = AllInts(0x7FFFFFFF), magnitude = And(code, AllInts(7));
  tally.source_zero += CountEqual(And(BitsOf(value), mask), AllInts(0));
  tally.code_zero += CountEqual(magnitude, AllInts(0));
  tally.code_below_normal += CountLess(magnitude, AllInts(2));
  tally.saturated += CountLess(AllInts(kNvBeyond<kStochastic> - 1), And(BitsOf(scaled), mask));
}

/// Row r's random byte of words[r / 4], in each lane.
template <int kRow>
Ints RandomByte(const Ints* words) {
  return And(ShiftRight<8 * (kRow % 4)>(words[kRow / 4]), AllInts(0xFF));
}

template <bool kStochastic, int kRow>
void EncodeNvColumnRow(const Floats* v, Floats factors, const Ints* words, bool counts,
                       Ints* packed, TileTally& tally) {
  if constexpr (kRow < kNvSide) {
    const Floats scaled = Times(v[kRow], factors);
    Ints random = AllInts(0);
    if constexpr (kStochastic) random = RandomByte<kRow>(words);
    const Ints code = EncodeNv<kStochastic>(scaled, random);
    if (counts) TallyNv<kStochastic>(v[kRow], scaled, code, tally);
    constexpr int kNibble = 4 * (kRow % 8);
    packed[kRow / 8] = MaskedOr(ShiftLeft<kNibble>(code),
                                AllInts(static_cast<int>(0xFu << kNibble)), packed[kRow / 8]);
    EncodeNvColumnRow<kStochastic, kRow + 1>(v, factors, words, counts, packed, tally);
  }
}

/// The blocks of 16 columns in 16 rows: false where an element is not finite.
template <class Source, bool kStochastic>
bool QuantizeNvBlock(const Nvfp4ColumnJob& job, int group, uint32_t (*codes)[2 * 8],
                     uint8_t (*scales)[8], TileTally& tally) {
  const auto* source = static_cast<const typename Source::Storage*>(job.source) +
                       group * kNvSide * job.source_stride;
  Floats v[kNvVectors][kNvSide];
  Ints max[kNvVectors], largest = AllInts(0);
  for (int h = 0; h < kNvVectors; ++h) {
    max[h] = ReadNvColumns<Source>(source + h * kLanes, job.source_stride, v[h]);
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
    EncodeNvColumnRow<kStochastic, 0>(v[h], factors, words, job.counts, packed, tally);
    alignas(64) uint32_t low[kLanes], high[kLanes];
    uint8_t bytes[kLanes];
    StoreInts(low, packed[0]);
    StoreInts(high, packed[1]);
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

// ---- the Hadamard transform

/// kLanes columns of 16 rows of bf16; false where scalar code must do it: infinities, NaN, and
/// exponents so small that results could be subnormal.
inline bool TransformNvLanes(const uint16_t* in, uint16_t* out, int64_t stride, Ints* amax) {
  constexpr int kSmallestField = 28;
  Floats v[kNvSide];
  const Ints max = ReadNvColumns<BFloat16>(in, stride, v);
  if (LargestLane(max) >= 0x7F800000) return false;
  const Ints limit = AllInts(kSmallestField << 23);
  if (LargestLane(IfLess(max, limit, max, AllInts(0))) > 0) return false;
  // Multiplying by 2^(25 - exponent) and truncating aligns to the largest exponent.
  const Ints field = Max(And(max, AllInts(0x7F800000)), limit);
  const Floats align = FloatsOf(Minus(AllInts(static_cast<int>(279u << 23)), field));
  const Floats negative = FloatsOf(Or(BitsOf(align), AllInts(INT32_MIN)));
  Ints s[kNvSide];
  for (int i = 0; i < kNvSide; ++i) {
    s[i] = Truncate(Times(v[i], (0xD7E8 >> i & 1) != 0 ? negative : align));
  }
  for (int distance = 1; distance < kNvSide; distance *= 2) {
    for (int i = 0; i < kNvSide; ++i) {
      if ((i & distance) != 0) continue;
      const Ints low = s[i], high = s[i + distance];
      s[i] = Plus(low, high);
      s[i + distance] = Minus(low, high);
    }
  }
  const Floats unit = FloatsOf(Minus(field, AllInts(27 << 23)));
  for (int j = 0; j < kNvSide; ++j) {
    const Ints bits = BitsOf(Times(ConvertTowardZero(s[j]), unit));
    // To nearest even in the upper half.
    const Ints odd = And(ShiftRight<16>(bits), AllInts(1));
    const Ints rounded = Plus(Plus(bits, AllInts(0x7FFF)), odd);
    StoreHighWords(out + j * stride, rounded);
    *amax = Max(*amax, And(rounded, AllInts(0x7FFF0000)));
  }
  return true;
}

/// 16 columns of 16 rows; returns the largest magnitude as fp32 bits, or kNotTransformed.
inline uint32_t TransformNvTile(const uint16_t* in, uint16_t* out, int64_t stride) {
  Ints amax = AllInts(0);
  for (int h = 0; h < kNvVectors; ++h) {
    if (!TransformNvLanes(in + h * kLanes, out + h * kLanes, stride, &amax)) {
      return kNotTransformed;
    }
  }
  return static_cast<uint32_t>(LargestLane(amax));
}

Nvfp4Functions FindNvfp4(DType source) {
  switch (source) {
    case DType::kBF16:
      return {&QuantizeNvRow<BFloat16>, &QuantizeNvColumns<BFloat16>, &FindNvTileAmaxes<BFloat16>,
              &TransformNvTile};
    case DType::kF16:
      return {&QuantizeNvRow<Float16>, &QuantizeNvColumns<Float16>, &FindNvTileAmaxes<Float16>,
              nullptr};
    case DType::kF32:
      return {&QuantizeNvRow<Float32>, &QuantizeNvColumns<Float32>, &FindNvTileAmaxes<Float32>,
              nullptr};
    default:
      return {};
  }
}

}  // namespace
}  // namespace quantgate
