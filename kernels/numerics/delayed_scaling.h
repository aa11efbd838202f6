// The state of per-tensor FP8 delayed scaling and its two update rules: docs/quantizers.md
// section 2.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// What of the history a scale is made from.
enum class AmaxAlgorithm { kMax, kMostRecent };

/// Transformer Engine has two implementations of the update, and they differ where a step saw
/// nothing (amax 0) and where a NaN came in.
enum class ScaleUpdate {
  kFused,    ///< The kernel: an amax of 0 leaves history and scale alone; NaN is ignored.
  kUnfused,  ///< torch operations: always rolls; a NaN in the history keeps the scale.
};

namespace delayed_scaling_steps {

QG_HOST_DEVICE constexpr bool IsNan(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7FFFFFFF) > 0x7F800000;
}
QG_HOST_DEVICE constexpr bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7FFFFFFF) < 0x7F800000;
}
/// IEEE maxNum.
QG_HOST_DEVICE constexpr float MaxNumber(float a, float b) {
  if (IsNan(a)) return b;
  if (IsNan(b)) return a;
  return a < b ? b : a;
}
/// torch.max: a NaN wins.
QG_HOST_DEVICE constexpr float MaxOrNan(float a, float b) {
  if (IsNan(a)) return a;
  return IsNan(b) || a < b ? b : a;
}
/// 2^exponent for a normal result.
QG_HOST_DEVICE constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(uint32_t(exponent + 127) << 23);
}
/// Rows move one down, row 0 becomes free for the next step, `last` the newest of the past.
QG_HOST_DEVICE constexpr void Roll(float* history, int64_t length, float last) {
  for (int64_t i = 1; i + 1 < length; ++i) history[i] = history[i + 1];
  if (length > 1) history[length - 1] = last;
  history[0] = 0.0f;
}
/// The guards that both rules share: a scale that cannot be used leaves the old one.
QG_HOST_DEVICE constexpr float GuardedScale(float candidate, float amax, float old_scale) {
  float scale = IsFinite(amax) && amax > 0 ? candidate : old_scale;
  if (std::bit_cast<uint32_t>(scale) == 0x7F800000) scale = std::bit_cast<float>(0x7F7FFFFFu);
  return scale;
}

}  // namespace delayed_scaling_steps

/// Margins whose power of two is a normal fp32 number beside every FP8 maximum.
inline constexpr int kDelayedMarginMax = 100;

/// One end-of-step update of one tensor. `history` has `length` >= 1 rows, row 0 holds the maximum
/// since the last update. `reduced_amax` is row 0 after the reduction over the ranks, row 0 itself
/// without one.
QG_HOST_DEVICE constexpr void UpdateDelayedScale(ScaleUpdate update, AmaxAlgorithm algorithm,
                                                 float max_finite, int margin, float reduced_amax,
                                                 float* history, int64_t length, float* scale) {
  namespace steps = delayed_scaling_steps;
  if (update == ScaleUpdate::kFused) {
    const float last = reduced_amax != 0 ? reduced_amax : history[0];
    float maximum = 0.0f;
    if (last != 0) {
      // The oldest row, history[1], still counts: it is dropped by this roll.
      for (int64_t i = 1; i < length; ++i) maximum = steps::MaxNumber(maximum, history[i]);
      maximum = steps::MaxNumber(maximum, last);
      steps::Roll(history, length, last);
    }
    const float amax = algorithm == AmaxAlgorithm::kMostRecent ? last : maximum;
    const float scaled_max = max_finite * steps::PowerOfTwo(-margin);
    *scale = steps::GuardedScale(amax > 0 ? scaled_max / amax : 0.0f, amax, *scale);
    return;
  }
  history[0] = reduced_amax;
  float maximum = history[0];
  for (int64_t i = 1; i < length; ++i) maximum = steps::MaxOrNan(maximum, history[i]);
  const float amax = algorithm == AmaxAlgorithm::kMostRecent ? history[0] : maximum;
  steps::Roll(history, length, history[0]);
  const float candidate = amax > 0 ? (max_finite / amax) / steps::PowerOfTwo(margin) : 0.0f;
  *scale = steps::GuardedScale(candidate, amax, *scale);
}

}  // namespace quantgate
