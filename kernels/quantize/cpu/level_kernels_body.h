// The loops of levels of one instruction set: the amaxes of runs, and their codes. Included by
// block_kernels_*.cc after their lanes.
#pragma once

#include "kernels/numerics/level_rule.h"
#include "kernels/quantize/cpu/bf16_lanes_body.h"
#include "kernels/quantize/cpu/block_kernels.h"

namespace quantgate {
namespace {

constexpr int kLineElements = 64;

/// The largest magnitude code, NaN above all others.
template <class Source>
uint32_t LargestMagnitude(const typename Source::Storage* source, int64_t count) {
  constexpr bool kIsWord = sizeof(*source) == 2;
  constexpr int kStep = kIsWord ? kWords : kLanes;
  const auto larger = [&](Ints max, int64_t i) {
    if constexpr (kIsWord) {
      return MaxWords(max, And(LoadWords(source + i), AllWords(0x7FFF)));
    } else {
      return Max(max, And(BitsOf(LoadSource<Source>(source + i)), AllInts(0x7FFFFFFF)));
    }
  };
  // Four maxima at a time, since the next step of one must wait for the last.
  Ints max[4];
  for (Ints& one : max) one = AllInts(0);
  int64_t i = 0;
  for (; i + 4 * kStep <= count; i += 4 * kStep) {
    for (int j = 0; j < 4; ++j) max[j] = larger(max[j], i + j * kStep);
  }
  for (; i + kStep <= count; i += kStep) max[0] = larger(max[0], i);
  Ints lanes;
  if constexpr (kIsWord) {
    const Ints words = MaxWords(MaxWords(max[0], max[1]), MaxWords(max[2], max[3]));
    lanes = Max(And(words, AllInts(0xFFFF)), ShiftRight<16>(words));
  } else {
    lanes = Max(Max(max[0], max[1]), Max(max[2], max[3]));
  }
  auto largest = static_cast<uint32_t>(LargestLane(lanes));
  for (; i < count; ++i) {
    const uint32_t magnitude = source[i] & (FormatConstants<Source>::kSignMask - 1u);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

template <class Source>
void MeasureLevelRuns(const LevelRuns& runs, uint32_t* amaxes) {
  const auto* source = static_cast<const typename Source::Storage*>(runs.source);
  for (int64_t run = 0; run < runs.runs; ++run) {
    amaxes[run] = LargestMagnitude<Source>(source + run * runs.length, runs.length);
  }
}

/// A table in the order of its levels, for a search by halves: the midpoint at place i of depth d
/// halves what the d comparisons before have left.
struct RankedTable {
  float midpoints[4][8] = {};
  uint8_t places[16] = {};
};
template <Levels kLevels>
constexpr RankedTable MakeRankedTable() {
  RankedTable table;
  const auto place = [](int rank) { return kLevels == Levels::kNf4 ? rank : BnbFp4Ranked(rank); };
  for (int rank = 0; rank < 16; ++rank) table.places[rank] = static_cast<uint8_t>(place(rank));
  for (int depth = 0; depth < 4; ++depth) {
    for (int i = 0; i < 1 << depth; ++i) {
      const int below = (2 * i + 1) << (3 - depth);  // As many ranks lie below the midpoint.
      const float low = LevelOf(kLevels, static_cast<uint8_t>(place(below - 1)));
      const float high = LevelOf(kLevels, static_cast<uint8_t>(place(below)));
      table.midpoints[depth][i] = (low + high) / 2.0f;
    }
  }
  return table;
}
template <Levels kLevels>
constexpr RankedTable kRankedTable = MakeRankedTable<kLevels>();

/// How many midpoints lie below each lane.
inline Ints RankLanes(const RankedTable& table, Floats values) {
  Ints rank = AddIfLess(AllInts(0), All(table.midpoints[0][0]), values);
  for (int depth = 1; depth < 4; ++depth) {
    rank = AddIfLess(Plus(rank, rank), LookUpEight(table.midpoints[depth], rank), values);
  }
  return rank;
}

/// The codes of 64 elements, and how many are beyond the integers in the lanes of `beyond`.
template <class Source, Levels kLevels>
Line EncodeLevelLine(const typename Source::Storage* source, Floats factor, Ints& beyond) {
  Ints v[kLineElements / kLanes];
  for (int j = 0; j < kLineElements / kLanes; ++j) {
    const Floats scaled = Times(LoadSource<Source>(source + j * kLanes), factor);
    if constexpr (IsTable(kLevels)) {
      v[j] = RankLanes(kRankedTable<kLevels>, scaled);
    } else {
      constexpr int kLow = LowOf(kLevels), kHigh = HighOf(kLevels);
      const Ints low = AllInts(kLow), high = AllInts(kHigh);
      const Ints number = Nearest(scaled);
      beyond = AddIfLess(AddIfLess(beyond, high, number), number, low);
      v[j] = Min(Max(number, low), high);
    }
  }
  const Line line = PackLine(v);
  if constexpr (kLevels == Levels::kBnbFp4) {
    return LookUpBytes(kRankedTable<kLevels>.places, line);
  }
  return kLevels == Levels::kI4 ? MaskAndFlip(line, 15, 0) : line;
}

/// How many of 64 elements are 0.
template <class Source>
int CountZeroElements(const typename Source::Storage* source) {
  int zeros = 0;
  if constexpr (sizeof(*source) == 2) {
    for (int i = 0; i < kLineElements; i += kWords) {
      zeros += CountZeroMagnitudes(LoadWords(source + i));
    }
  } else {
    for (int i = 0; i < kLineElements; i += kLanes) {
      const Ints magnitudes = And(BitsOf(LoadSource<Source>(source + i)), AllInts(0x7FFFFFFF));
      zeros += CountEqual(magnitudes, AllInts(0));
    }
  }
  return zeros;
}

template <class Source, Levels kLevels>
void EncodeLevelRuns(const LevelRuns& runs, TileTally& tally) {
  using Storage = typename Source::Storage;
  constexpr int kPerByte = 8 / BitsOf(kLevels);
  // The bits that say whether the value is 0, and what they then are.
  constexpr int kMask = kLevels == Levels::kBnbFp4 ? 7 : kPerByte == 2 ? 15 : 255;
  constexpr int kZero = kLevels == Levels::kNf4 ? 7 : 0;
  ByteTally bytes;
  Ints beyond = AllInts(0);
  int64_t source_zero = 0;
  const auto encode = [&](const Storage* source, Floats factor, uint8_t* codes) {
    const Line line = EncodeLevelLine<Source, kLevels>(source, factor, beyond);
    if constexpr (kPerByte == 2) {
      StoreNibbles(codes, line);
    } else {
      StoreLine(codes, line, false);
    }
    const int64_t zeros = bytes.zero;
    TallyLine(MaskAndFlip(line, kMask, kZero), 255, 1, bytes);
    if (bytes.zero != zeros) source_zero += CountZeroElements<Source>(source);
  };
  const auto* source = static_cast<const Storage*>(runs.source);
  uint8_t* codes = runs.codes;
  for (int64_t run = 0; run < runs.runs; ++run) {
    const Floats factor = All(runs.factors[run]);
    int64_t i = 0;
    for (; i + kLineElements <= runs.length; i += kLineElements) {
      encode(source + i, factor, codes + i / kPerByte);
    }
    if (const int64_t rest = runs.length - i; rest != 0) {
      Storage padded[kLineElements] = {};
      uint8_t of_padded[kLineElements];
      __builtin_memcpy(padded, source + i, static_cast<size_t>(rest) * sizeof(Storage));
      encode(padded, factor, of_padded);
      __builtin_memcpy(codes + i / kPerByte, of_padded, static_cast<size_t>(rest / kPerByte));
      bytes.zero -= kLineElements - rest;
      source_zero -= kLineElements - rest;
    }
    source += runs.length;
    codes += runs.length / kPerByte;
  }
  tally.source_zero += source_zero;
  tally.code_zero += bytes.zero;
  tally.code_below_normal += bytes.zero;
  tally.saturated += SumOfLanes(beyond);
}

template <class Source>
LevelFunctions LevelsFrom(Levels levels) {
  const auto with = [](auto encode) { return LevelFunctions{&MeasureLevelRuns<Source>, encode}; };
  switch (levels) {
    case Levels::kI8:
      return with(&EncodeLevelRuns<Source, Levels::kI8>);
    case Levels::kI4:
      return with(&EncodeLevelRuns<Source, Levels::kI4>);
    case Levels::kNf4:
      return with(&EncodeLevelRuns<Source, Levels::kNf4>);
    case Levels::kBnbFp4:
      return with(&EncodeLevelRuns<Source, Levels::kBnbFp4>);
    default:
      return {};
  }
}

LevelFunctions FindLevels(DType source, Levels levels) {
  switch (source) {
    case DType::kBF16:
      return LevelsFrom<BFloat16>(levels);
    case DType::kF16:
      return LevelsFrom<Float16>(levels);
    case DType::kF32:
      return LevelsFrom<Float32>(levels);
    default:
      return {};
  }
}

}  // namespace
}  // namespace quantgate
