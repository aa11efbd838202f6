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

/// The same of kWords runs of words, whose length is a multiple of kWords: the maxima of eight runs
/// are found together.
inline void LargestOfRuns(const uint16_t* source, int64_t length, uint32_t* amaxes) {
  const Ints mask = AllWords(0x7FFF);
  Ints eights[kWords / 8];
  for (int i = 0; i < kWords; i += 8) {
    Ints max[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) max[r] = And(LoadWords(source + (i + r) * length), mask);
    for (int64_t at = kWords; at < length; at += kWords) {
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        max[r] = MaxWords(max[r], And(LoadWords(source + (i + r) * length + at), mask));
      }
    }
    eights[i / 8] = LargestOfEightWords(max);
  }
  uint16_t words[kWords];
  StoreWords(words, JoinEights(eights));
  for (int i = 0; i < kWords; ++i) amaxes[i] = words[i];
}

template <class Source>
void MeasureLevelRuns(const LevelRuns& runs, uint32_t* amaxes) {
  using Storage = typename Source::Storage;
  constexpr int64_t kLongest = 1024;  // Of eight runs at a time, so that they stay in few pages.
  const auto* source = static_cast<const Storage*>(runs.source);
  int64_t run = 0;
  if constexpr (sizeof(Storage) == 2) {
    const bool is_whole = runs.length % kWords == 0 && runs.length <= kLongest && runs.length > 0;
    for (; is_whole && run + kWords <= runs.runs; run += kWords) {
      LargestOfRuns(source + run * runs.length, runs.length, amaxes + run);
    }
  }
  for (; run < runs.runs; ++run) {
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

/// Intervals of equal width, of which each has at most one midpoint of NF4: interval i mod 32 are
/// the values that, times kScale, round to i.
struct IntervalTable {
  static constexpr float kScale = 15.0f;
  alignas(64) float midpoints[32] = {};  ///< 2, above all values, where there is none.
  alignas(64) int below[32] = {};        ///< How many midpoints lie in the intervals below.
};
constexpr IntervalTable MakeIntervalTable() {
  IntervalTable table;
  for (int i = -16; i < 16; ++i) {
    const int place = i & 31;
    table.midpoints[place] = 2.0f;
    for (int rank = 0; rank < 15; ++rank) {
      const float midpoint = (Nf4Level(rank) + Nf4Level(rank + 1)) / 2.0f;
      const float scaled = midpoint * IntervalTable::kScale - static_cast<float>(i);
      if (scaled < -0.5f) ++table.below[place];
      if (scaled > -0.5f && scaled < 0.5f) table.midpoints[place] = midpoint;
    }
  }
  return table;
}
constexpr IntervalTable kIntervals = MakeIntervalTable();
/// Whether every midpoint has an interval of its own, and is far enough from the bounds of
/// intervals that roundings change nothing: values beside it, rounded the same way, are found in
/// it.
constexpr bool IntervalsDivide(const IntervalTable& table) {
  for (int rank = 0; rank < 15; ++rank) {
    const float midpoint = (Nf4Level(rank) + Nf4Level(rank + 1)) / 2.0f;
    int found = 0;
    for (int i = -15; i <= 15; ++i) {
      const float scaled = midpoint * IntervalTable::kScale - static_cast<float>(i);
      found += scaled > -0.49f && scaled < 0.49f && table.midpoints[i & 31] == midpoint &&
               table.below[i & 31] == rank;
    }
    if (found != 1) return false;
  }
  return true;
}
static_assert(IntervalsDivide(kIntervals));

/// RankLanes of NF4, of values of at most 1 or what products round to there. The sum's last bits
/// are the interval: it is 1.5 * 2^23 with the rounded product added.
template <class Table>
Ints RankByIntervals(const Table& table, Floats values) {
  const Ints interval = BitsOf(FusedTimesPlus(values, All(Table::kScale), All(0x1.8p23f)));
  return AddIfLess(LookUpThirtyTwo(table.below, interval),
                   LookUpThirtyTwo(table.midpoints, interval), values);
}

/// The codes of 64 elements; adds how many are beyond the integers.
template <class Source, Levels kLevels>
Line EncodeLevelLine(const typename Source::Storage* source, Floats factor, int64_t& beyond) {
  Ints v[kLineElements / kLanes];
  for (int j = 0; j < kLineElements / kLanes; ++j) {
    const Floats scaled = Times(LoadSource<Source>(source + j * kLanes), factor);
    if constexpr (!IsTable(kLevels)) {
      v[j] = Nearest(scaled);
    } else if constexpr (kLevels == Levels::kNf4 && kLooksUpThirtyTwo) {
      v[j] = RankByIntervals(kIntervals, scaled);
    } else {
      v[j] = RankLanes(kRankedTable<kLevels>, scaled);
    }
  }
  if constexpr (!IsTable(kLevels)) {
    const Line line = PackClamped(v, LowOf(kLevels), HighOf(kLevels), beyond);
    return kLevels == Levels::kI4 ? MaskAndFlip(line, 15, 0) : line;
  }
  const Line line = PackLine(v);
  if constexpr (kLevels == Levels::kBnbFp4) {
    return LookUpBytes(kRankedTable<kLevels>.places, line);
  }
  return line;
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
  constexpr int kZero = kLevels == Levels::kNf4 ? 7 : 0;
  int64_t source_zero = 0, code_zero = 0, beyond = 0;
  const auto encode = [&](const Storage* source, Floats factor, uint8_t* codes) {
    const Line line = EncodeLevelLine<Source, kLevels>(source, factor, beyond);
    if constexpr (kPerByte == 2) {
      StoreNibbles(codes, line);
    } else {
      StoreLine(codes, line, false);
    }
    // A code of FP4 is 0 by its magnitude.
    const int zeros =
        CountBytes(kLevels == Levels::kBnbFp4 ? MaskAndFlip(line, 7, 0) : line, kZero);
    code_zero += zeros;
    if (zeros != 0) source_zero += CountZeroElements<Source>(source);
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
      code_zero -= kLineElements - rest;
      source_zero -= kLineElements - rest;
    }
    source += runs.length;
    codes += runs.length / kPerByte;
  }
  tally.source_zero += source_zero;
  tally.code_zero += code_zero;
  tally.code_below_normal += code_zero;
  tally.saturated += beyond;
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
