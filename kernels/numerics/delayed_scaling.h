// The two rules by which per-tensor FP8 delayed scaling updates history and scale:
// docs/quantizers.md section 2.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// Which amax of the history a scale is made from.
enum class AmaxAlgorithm { kMax, kMostRecent };

/// Transformer Engine has two implementations of the update, which differ when the amax of a step
/// is 0 or NaN.
enum class ScaleUpdate {
  kFused,    ///< One kernel: an amax of 0 leaves history and scale unchanged; NaN is ignored.
  kUnfused,  ///< torch operations: the history always rolls; a NaN in it leaves the scale
             ///< unchanged.
};

namespace delayed_scaling_steps {

QG_HOST_DEVICE constexpr bool IsNan(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7FFFFFFF) > 0x7F800000;
}
QG_HOST_DEVICE constexpr bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7FFFFFFF) < 0x7F800000;
}
/// IEEE maxNum: NaN only if both are NaN.
QG_HOST_DEVICE constexpr float MaxNumber(float a, float b) {
  if (IsNan(a)) return b;
  if (IsNan(b)) return a;
  return a < b ? b : a;
}
/// torch.max: NaN if either is NaN.
QG_HOST_DEVICE constexpr float MaxOrNan(float a, float b) {
  if (IsNan(a)) return a;
  return IsNan(b) || a < b ? b : a;
}
/// 2^exponent for a normal result.
QG_HOST_DEVICE constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(uint32_t(exponent + 127) << 23);
}
/// Moves the rows one down, which drops the oldest, and puts `last` behind them as the newest; row
/// 0 becomes 0 for the next step.
QG_HOST_DEVICE constexpr void Roll(float* history, int64_t length, float last) {
  for (int64_t i = 1; i + 1 < length; ++i) history[i] = history[i + 1];
  if (length > 1) history[length - 1] = last;
  history[0] = 0.0f;
}
/// The guards that both rules share: keeps the old scale unless amax is finite and positive, and
/// turns an infinite scale into FLT_MAX.
QG_HOST_DEVICE constexpr float GuardedScale(float candidate, float amax, float old_scale) {
  float scale = IsFinite(amax) && amax > 0 ? candidate : old_scale;
  if (std::bit_cast<uint32_t>(scale) == 0x7F800000) scale = std::bit_cast<float>(0x7F7FFFFFu);
  return scale;
}

}  // namespace delayed_scaling_steps

/// The largest margin: 2^margin and an FP8 maximum over it are normal fp32 numbers up to here.
inline constexpr int kDelayedMarginMax = 100;

/// Updates the history and the scale of one tensor at the end of a step. `history` has `length` >=
/// 1 rows; row 0 holds the maximum since the last update. `reduced_amax` is row 0 after the
/// reduction over ranks, or row 0 itself without a reduction.
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
