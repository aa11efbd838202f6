// Codes that number levels: integers, and places in a table (NF4, and bitsandbytes' FP4). A code
// stands for its level times the scale of its group, counted from a zero point where there is one.
// The steps from the extremes of a group to its scale, and from an element to its code, are those
// of the library that scale_rule names, each rounded where the library rounds; formulas, libraries
// and versions: docs/quantizers.md section 11. Stored tensors of the libraries hold them
// (tests/data/libraries, library_rules_test).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/library_rule.h"

namespace quantgate {

/// What codes number.
enum class Levels : uint8_t { kI8, kU8, kI4, kU4, kNf4, kBnbFp4 };

/// The level that stands for zero.
enum class ZeroPoint : uint8_t {
  kNone,     ///< Zero: value = level * scale.
  kInteger,  ///< A code: value = (level - zero point) * scale.
  kFloat,    ///< A number: value = level * scale + zero point.
};

QG_HOST_DEVICE constexpr bool IsTable(Levels levels) { return levels >= Levels::kNf4; }
QG_HOST_DEVICE constexpr bool IsSigned(Levels levels) {
  return levels == Levels::kI8 || levels == Levels::kI4;
}
/// The number of bits of a code.
QG_HOST_DEVICE constexpr int BitsOf(Levels levels) { return levels <= Levels::kU8 ? 8 : 4; }
/// The least and the largest integer; of tables those of the places.
QG_HOST_DEVICE constexpr int LowOf(Levels levels) {
  return IsSigned(levels) ? -(1 << (BitsOf(levels) - 1)) : 0;
}
QG_HOST_DEVICE constexpr int HighOf(Levels levels) {
  return LowOf(levels) + (1 << BitsOf(levels)) - 1;
}

/// The value of a place in the table of NF4 (QLoRA, appendix E), as bitsandbytes has it.
QG_HOST_DEVICE constexpr float Nf4Level(int place) {
  constexpr float kLevels[16] = {-1.0f,
                                 -0.6961928009986877f,
                                 -0.5250730514526367f,
                                 -0.39491748809814453f,
                                 -0.28444138169288635f,
                                 -0.18477343022823334f,
                                 -0.09105003625154495f,
                                 0.0f,
                                 0.07958029955625534f,
                                 0.16093020141124725f,
                                 0.24611230194568634f,
                                 0.33791524171829224f,
                                 0.44070982933044434f,
                                 0.5626170039176941f,
                                 0.7229568362236023f,
                                 1.0f};
  return kLevels[place];
}
/// The same with four digits, of which torchao and ModelOpt make theirs.
QG_HOST_DEVICE constexpr float Nf4LevelOfFourDigits(int place) {
  constexpr float kLevels[16] = {-1.0f,    -0.6962f, -0.5251f, -0.3949f, -0.2844f, -0.1848f,
                                 -0.0911f, 0.0f,     0.0796f,  0.1609f,  0.2461f,  0.3379f,
                                 0.4407f,  0.5626f,  0.723f,   1.0f};
  return kLevels[place];
}
/// bitsandbytes' FP4: a sign bit and a magnitude in twelfths; place 8 is a zero, too.
QG_HOST_DEVICE constexpr float BnbFp4Level(int place) {
  constexpr float kTwelfths[8] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
  const float magnitude = kTwelfths[place & 7] / 12.0f;
  return place > 8 ? -magnitude : magnitude;
}
/// The places of BnbFp4Level in the order of their levels.
QG_HOST_DEVICE constexpr int BnbFp4Ranked(int rank) {
  constexpr int kPlaces[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
  return kPlaces[rank];
}

/// The level of a code, whose bits above BitsOf are not read.
QG_HOST_DEVICE constexpr float LevelOf(Levels levels, uint8_t code) {
  switch (levels) {
    case Levels::kI8:
      return static_cast<float>(static_cast<int8_t>(code));
    case Levels::kU8:
      return static_cast<float>(code);
    case Levels::kI4:
      return static_cast<float>(((code & 15) ^ 8) - 8);
    case Levels::kU4:
      return static_cast<float>(code & 15);
    case Levels::kNf4:
      return Nf4Level(code & 15);
    case Levels::kBnbFp4:
      break;
  }
  return BnbFp4Level(code & 15);
}
/// The code of a level's number: an integer within [LowOf, HighOf], or a place.
QG_HOST_DEVICE constexpr uint8_t CodeOfNumber(Levels levels, int number) {
  return static_cast<uint8_t>(number & (BitsOf(levels) == 8 ? 0xFF : 15));
}

/// A rule in the form that kernels take.
struct LevelRule {
  ScaleRule rule = ScaleRule::kTorchao;  ///< Resolved.
  Levels levels = Levels::kI8;
  ZeroPoint zero_point = ZeroPoint::kNone;
  StepFormat source = StepFormat::kF32;
  StepDType operation_dtype = StepDType::kF32;  ///< kTorchao: what its operations on elements have.
  bool is_whole = false;                        ///< One scale for the whole tensor.
};

/// What a rule reads of the elements of a group. NaN elements are left out; 0 where none is left.
struct GroupExtremes {
  float least = 0.0f, most = 0.0f;
  float first_largest = 0.0f;  ///< The first element of the largest magnitude, with its sign.
  bool is_partial = false;     ///< The group is shorter than its rule says.
};

/// What the elements of a group meet, and what is stored of it.
struct LevelScale {
  float factor = 1.0f;  ///< Multiplies or divides elements, less `start`.
  bool divides = false;
  float start = 0.0f;      ///< What elements are counted from.
  float shift = 0.0f;      ///< What is added to the quotient.
  float scale_inv = 1.0f;  ///< Stored.
  float zero = 0.0f;       ///< Stored, under a zero point: a code's number, or a number.
};

namespace level_steps {

using library_steps::EpsilonOf;
using library_steps::Flushed;
using library_steps::QwixReciprocal;
using library_steps::QwixScale;
using library_steps::RoundTo;
using library_steps::SmallestNormalOf;
using library_steps::Within;

QG_HOST_DEVICE inline float Larger(float a, float b) { return a < b ? b : a; }

/// The integer nearest to `value`, ties to even; the rounding mode is that.
QG_HOST_DEVICE inline float Nearest(float value) { return std::rint(value); }

/// `value` within [low, high]; 0 for NaN, of which the libraries make what the processor gives.
QG_HOST_DEVICE inline float Clamped(float value, float low, float high) {
  return value != value ? Within(0.0f, low, high) : Within(value, low, high);
}

/// t(number * t(1 / value)): torch's number / tensor.
QG_HOST_DEVICE inline float NumberOver(StepFormat t, float number, float value) {
  return RoundTo(t, number * RoundTo(t, 1.0f / value));
}

/// 1 / value, and 0 for 0.
QG_HOST_DEVICE inline float ReciprocalOrZero(float value) {
  return value == 0.0f ? 0.0f : 1.0f / value;
}

QG_HOST_DEVICE inline StepFormat WidthOf(const LevelRule& rule) {
  return library_steps::FormatOfStep(rule.operation_dtype, rule.source);
}

/// Torchao's and compressed-tensors': of the extremes with 0 among them. `smallest` is the floor of
/// the scale; an integer zero point is low - min / scale, rounded as the library does.
QG_HOST_DEVICE inline LevelScale AffineScale(const LevelRule& rule, const GroupExtremes& group) {
  const StepFormat t = rule.source;
  const bool is_torchao = rule.rule == ScaleRule::kTorchao;
  const float low = static_cast<float>(LowOf(rule.levels));
  const float high = static_cast<float>(HighOf(rule.levels));
  const float least = group.least < 0.0f ? group.least : 0.0f;
  const float most = group.most > 0.0f ? group.most : 0.0f;
  LevelScale made;
  float scale = rule.zero_point == ZeroPoint::kNone
                    ? RoundTo(t, Larger(-least, most) / ((high - low) / 2.0f))
                    : RoundTo(t, RoundTo(t, most - least) / (high - low));
  if (is_torchao) {
    const bool is_f32 =
        WidthOf(rule) == StepFormat::kF32 && rule.operation_dtype == StepDType::kF32;
    scale = Larger(scale, is_f32 ? 0x1p-23f : SmallestNormalOf(t));
  }
  if (rule.zero_point == ZeroPoint::kInteger) {
    const float steps = RoundTo(t, least / scale);
    made.zero = is_torchao ? Clamped(RoundTo(t, low - Nearest(steps)), low, high)
                           : Nearest(Clamped(RoundTo(t, low - steps), low, high));
    made.shift = made.zero;
  }
  if (!is_torchao && scale == 0.0f) scale = EpsilonOf(t);
  made.scale_inv = scale;
  made.divides = !is_torchao;
  made.factor = is_torchao ? RoundTo(WidthOf(rule), 1.0f / scale) : scale;
  return made;
}

/// A scale that multiplies, s = t(number / amax), of which t(1 / s) is stored.
QG_HOST_DEVICE inline LevelScale Multiplier(StepFormat t, float number, float amax) {
  LevelScale made;
  made.factor = NumberOver(t, number, amax);
  made.scale_inv = RoundTo(t, 1.0f / made.factor);
  return made;
}

/// A scale that divides, t(amax / number).
QG_HOST_DEVICE inline LevelScale Divider(StepFormat t, float amax, float number) {
  LevelScale made;
  made.factor = made.scale_inv = RoundTo(t, amax / number);
  made.divides = true;
  return made;
}

/// optimum-quanto's of integers of four bits: from the least value itself.
QG_HOST_DEVICE inline LevelScale QuantoFewBits(const LevelRule& rule, const GroupExtremes& group) {
  const StepFormat t = rule.source;
  const float high = static_cast<float>(HighOf(rule.levels));
  LevelScale made = Divider(t, RoundTo(t, group.most - group.least), high);
  if (rule.zero_point == ZeroPoint::kInteger) {
    made.zero = made.shift = Clamped(Nearest(RoundTo(t, -group.least / made.factor)), 0.0f, high);
  } else {
    made.zero = made.start = group.least;
  }
  return made;
}

/// Torchao's of tinygemm: the zero point is the value of code 8, here of level 0.
QG_HOST_DEVICE inline LevelScale TinygemmScale(const LevelRule& rule, const GroupExtremes& group) {
  const StepFormat t = rule.source;
  LevelScale made;
  made.factor = made.scale_inv =
      Larger(RoundTo(t, RoundTo(t, group.most - group.least) / 15.0f), SmallestNormalOf(t));
  made.divides = true;
  const float middle = RoundTo(t, made.factor * 8.0f);
  made.zero = RoundTo(t, group.least + middle);
  made.start = RoundTo(t, made.zero - middle);
  return made;
}

/// ggml's Q8_0, Q4_0 and Q4_1: what is stored is rounded to f16, what elements meet is not.
QG_HOST_DEVICE inline LevelScale GgufLevelScale(const LevelRule& rule, const GroupExtremes& group,
                                                float amax) {
  LevelScale made;
  float scale = amax / 127.0f;
  if (rule.levels == Levels::kI4) scale = group.first_largest / -8.0f;
  if (rule.levels == Levels::kU4) {
    scale = (group.most - group.least) / 15.0f;
    made.start = group.least;
    made.zero = RoundTo(StepFormat::kF16, group.least);
  }
  made.factor = ReciprocalOrZero(scale);
  made.scale_inv = RoundTo(StepFormat::kF16, scale);
  return made;
}

/// Qwix's of integers and NF4, by JAX on a CPU.
QG_HOST_DEVICE inline LevelScale QwixLevelScale(const LevelRule& rule, const GroupExtremes& group,
                                                float amax) {
  const StepFormat t = rule.source;
  LibraryRule as_float;
  as_float.source = t;
  as_float.is_whole = rule.is_whole;
  const float low = static_cast<float>(LowOf(rule.levels));
  const float high = static_cast<float>(HighOf(rule.levels));
  LevelScale made;
  if (rule.zero_point == ZeroPoint::kInteger) {
    const float least = Flushed(group.least < 0.0f ? group.least : 0.0f);
    const float most = Flushed(group.most > 0.0f ? group.most : 0.0f);
    made.scale_inv = QwixScale(as_float, RoundTo(t, most - least), high - low);
    const float steps = RoundTo(t, low - RoundTo(t, least / made.scale_inv));
    made.zero = made.shift = Clamped(Nearest(steps), low, high);
  } else {
    made.scale_inv = QwixScale(as_float, amax, IsTable(rule.levels) ? 1.0f : (high - low) / 2.0f);
  }
  made.factor = QwixReciprocal(t, made.scale_inv);
  return made;
}

/// bitsandbytes' of a run of elements for a table: their amax; of a run that is shorter the amax
/// is at least 1e-38, and divides.
QG_HOST_DEVICE inline LevelScale BitsandbytesScale(const GroupExtremes& group, float amax) {
  const float safe = Larger(amax, 1e-38f);
  LevelScale made;
  made.scale_inv = group.is_partial ? safe : amax;
  made.divides = group.is_partial;
  made.factor = group.is_partial ? safe : 1.0f / safe;
  return made;
}

/// What NF4's levels are rounded to by torchao and ModelOpt.
QG_HOST_DEVICE inline float RoundedNf4Level(const LevelRule& rule, int place) {
  const StepFormat t = rule.rule == ScaleRule::kModelopt ? StepFormat::kBF16 : rule.source;
  return RoundTo(t, Nf4LevelOfFourDigits(place));
}

/// The level with the least distance, of equal ones the first: place 0 for NaN.
QG_HOST_DEVICE inline int NearestNf4(const LevelRule& rule, float quotient) {
  const bool is_qwix = rule.rule == ScaleRule::kQwix;
  const StepFormat t = is_qwix ? StepFormat::kF32 : rule.source;
  int nearest = 0;
  float least = 0.0f;
  for (int place = 0; place < 16; ++place) {
    const float level = is_qwix ? Nf4Level(place) : RoundedNf4Level(rule, place);
    const float distance = std::fabs(RoundTo(t, quotient - level));
    if (place != 0 && !(distance < least)) continue;
    nearest = place;
    least = distance;
  }
  return nearest;
}

/// How many midpoints of neighbouring levels lie below, as a place; the largest for NaN (infinity
/// times 0), which torch's bucketize puts behind all bounds. Of BnbFp4Level's two zeros the place 8
/// is above the midpoint, which is 0: elements a little above 0 get it.
QG_HOST_DEVICE inline int RankedPlace(Levels levels, float quotient) {
  const bool is_nf4 = levels == Levels::kNf4;
  const auto level_at = [&](int rank) {
    return is_nf4 ? Nf4Level(rank) : BnbFp4Level(BnbFp4Ranked(rank));
  };
  const float within = Within(quotient, -1.0f, 1.0f);
  int rank = quotient != quotient ? 15 : 0;
  while (rank < 15 && (level_at(rank) + level_at(rank + 1)) / 2.0f < within) ++rank;
  return is_nf4 ? rank : BnbFp4Ranked(rank);
}

}  // namespace level_steps

/// The scale of a group.
QG_HOST_DEVICE inline LevelScale MakeLevelScale(const LevelRule& rule, const GroupExtremes& group) {
  const StepFormat t = rule.source;
  const float amax = level_steps::Larger(std::fabs(group.least), std::fabs(group.most));
  const bool is_table = IsTable(rule.levels);
  LevelScale made;
  switch (rule.rule) {
    case ScaleRule::kCompressedTensors:
      made = level_steps::AffineScale(rule, group);
      break;
    case ScaleRule::kModelopt:
      made = is_table                     ? level_steps::Divider(t, amax, 1.0f)
             : rule.levels == Levels::kI4 ? level_steps::Multiplier(t, 7.0f, amax)
                                          : level_steps::Divider(t, amax, 127.0f);
      break;
    case ScaleRule::kQuanto:
      made = rule.levels == Levels::kI8 ? level_steps::Divider(t, amax, 127.0f)
                                        : level_steps::QuantoFewBits(rule, group);
      break;
    case ScaleRule::kTinygemm:
      made = level_steps::TinygemmScale(rule, group);
      break;
    case ScaleRule::kBitsandbytes:
      if (is_table) {
        made = level_steps::BitsandbytesScale(group, amax);
      } else {
        made.factor = level_steps::NumberOver(StepFormat::kF32, 127.0f, amax);
        made.scale_inv = amax * 0.007874015718698502f;  // f32(1 / 127), as it dequantizes.
      }
      break;
    case ScaleRule::kBitnet:
      made = level_steps::Multiplier(t, 127.0f,
                                     level_steps::Larger(amax, library_steps::RoundTo(t, 1e-5f)));
      break;
    case ScaleRule::kGguf:
      made = level_steps::GgufLevelScale(rule, group, amax);
      break;
    case ScaleRule::kQwix:
      made = level_steps::QwixLevelScale(rule, group, amax);
      break;
    default:
      made = is_table ? level_steps::Divider(t, amax, 1.0f) : level_steps::AffineScale(rule, group);
      break;
  }
  // Which NaN an operation gives depends on the processor.
  made.scale_inv = CanonicalFloat(made.scale_inv);
  made.zero = CanonicalFloat(made.zero);
  return made;
}

/// An element as a code, and whether it lies beyond the integers that there are.
struct LevelCode {
  uint8_t code = 0;
  bool is_beyond = false;
};

/// The code of an element that is a number; of one that is NaN the code that stands for zero: the
/// integer zero point, or 0 (docs/quantizers.md section 11.1).
QG_HOST_DEVICE inline LevelCode LevelCodeOf(const LevelRule& rule, const LevelScale& scale,
                                            float value) {
  using level_steps::RoundTo;
  const StepFormat t = rule.source;
  const int low = LowOf(rule.levels), high = HighOf(rule.levels);
  const auto place = [&](int number) {
    return LevelCode{CodeOfNumber(rule.levels, number), false};
  };
  if (value != value) {
    if (IsTable(rule.levels)) return place(rule.levels == Levels::kNf4 ? 7 : 0);
    const float zero = rule.zero_point == ZeroPoint::kInteger ? scale.zero : 0.0f;
    return place(static_cast<int>(zero));
  }
  float number = 0.0f;
  switch (rule.rule) {
    case ScaleRule::kCompressedTensors: {
      const float quotient = RoundTo(t, RoundTo(t, value / scale.factor) + scale.shift);
      number = level_steps::Nearest(quotient);
      break;
    }
    case ScaleRule::kModelopt:
    case ScaleRule::kBitnet: {
      const float scaled = RoundTo(t, scale.divides ? value / scale.factor : value * scale.factor);
      if (IsTable(rule.levels)) return place(level_steps::NearestNf4(rule, scaled));
      number = level_steps::Nearest(scaled);
      break;
    }
    case ScaleRule::kQuanto: {
      const float from_start =
          rule.zero_point == ZeroPoint::kFloat ? RoundTo(t, value - scale.start) : value;
      number = level_steps::Nearest(RoundTo(t, from_start / scale.factor)) + scale.shift;
      break;
    }
    case ScaleRule::kTinygemm: {
      const float from_start = RoundTo(t, value - scale.start);
      number = level_steps::Nearest(RoundTo(t, from_start / scale.factor)) - 8.0f;
      break;
    }
    case ScaleRule::kBitsandbytes: {
      const float scaled = scale.divides ? value / scale.factor : value * scale.factor;
      if (IsTable(rule.levels)) return place(level_steps::RankedPlace(rule.levels, scaled));
      number = level_steps::Nearest(scaled);
      break;
    }
    case ScaleRule::kGguf: {
      const float scaled = (value - scale.start) * scale.factor;
      if (rule.levels == Levels::kI8) {  // Half away from zero.
        const double size = std::floor(static_cast<double>(std::fabs(scaled)) + 0.5);
        number = static_cast<float>(scaled < 0.0f ? -size : size);
      } else {
        const bool is_signed = rule.levels == Levels::kI4;
        number = std::trunc(scaled + (is_signed ? 8.5f : 0.5f)) - (is_signed ? 8.0f : 0.0f);
      }
      break;
    }
    case ScaleRule::kQwix: {
      const float scaled =
          level_steps::Flushed(RoundTo(t, level_steps::Flushed(value) * scale.factor));
      if (IsTable(rule.levels)) return place(level_steps::NearestNf4(rule, scaled));
      number = level_steps::Nearest(
          rule.zero_point == ZeroPoint::kInteger ? RoundTo(t, scaled + scale.shift) : scaled);
      break;
    }
    default: {
      const StepFormat width = level_steps::WidthOf(rule);
      if (IsTable(rule.levels)) {
        return place(level_steps::NearestNf4(rule, RoundTo(t, value / scale.factor)));
      }
      const float steps = level_steps::Nearest(RoundTo(width, value * scale.factor));
      number = RoundTo(width, steps + scale.shift);
      break;
    }
  }
  // These libraries cast NaN to 0 in a numbering that begins at their lowest level.
  const bool begins_at_low = rule.rule == ScaleRule::kTinygemm ||
                             (rule.levels == Levels::kI4 &&
                              (rule.rule == ScaleRule::kGguf || rule.rule == ScaleRule::kModelopt));
  if (number != number && begins_at_low) return place(low);
  const float least = static_cast<float>(low), most = static_cast<float>(high);
  const float within = level_steps::Clamped(number, least, most);
  return {CodeOfNumber(rule.levels, static_cast<int>(within)), number < least || number > most};
}

/// The value of a code, rounded to fp32 after each operation.
QG_HOST_DEVICE inline float LevelValue(Levels levels, ZeroPoint zero_point, uint8_t code,
                                       float scale_inv, float zero) {
  const float level = LevelOf(levels, code);
  if (zero_point == ZeroPoint::kInteger) return (level - zero) * scale_inv;
  const float product = level * scale_inv;
  return zero_point == ZeroPoint::kFloat ? product + zero : product;
}

}  // namespace quantgate
