// Delayed scaling: what a tensor's per-tensor FP8 scale keeps between steps, and how a step changes
// it (docs/quantizers.md section 2). The arithmetic is kernels/numerics/delayed_scaling.h.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/numerics/delayed_scaling.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct DelayedScalingOptions {
  int margin = 0;  ///< Scales stay this many powers of two below the maximum.
  int amax_history_len = 1024;
  AmaxAlgorithm algorithm = AmaxAlgorithm::kMax;
  ScaleUpdate update = ScaleUpdate::kFused;
  bool reduce_amax = true;  ///< Maximum over the ranks before the update; one rank has its own.
  friend bool operator==(const DelayedScalingOptions&, const DelayedScalingOptions&) = default;
};

/// Longest history that is taken, a bound on untrusted input.
inline constexpr int kAmaxHistoryLengthMax = 1 << 20;

/// State of one tensor of a module. Values: the functions below give new states and leave the
/// tensors of the old one as they are.
struct DelayedScalingState {
  Tensor scale;         ///< f32 [1]: what the next cast multiplies by.
  Tensor amax_history;  ///< f32 [L]: row 0 the maximum since the last update, row L-1 the newest of
                        ///< the past, row 1 the oldest.
  bool has_value() const { return scale.has_value(); }
};
inline std::vector<Tensor*> TensorsOf(DelayedScalingState& state) {
  return {&state.scale, &state.amax_history};
}

/// Scale 1, a history of zeros.
absl::StatusOr<DelayedScalingState> FreshDelayedScaling(int amax_history_len);

/// INVALID_ARGUMENT naming `field` below which the tensors stand, unless scale is f32 [1], positive
/// and finite, and the history f32 [L] without negative numbers. Of outlines (tensors without
/// memory) and of tensors in device memory, which an engine made, only the types are checked.
absl::Status CheckDelayedScaling(const DelayedScalingState& state, std::string_view field);

/// The state under another history length: the first rows are kept, missing ones are zeros, the
/// scale stays.
absl::StatusOr<DelayedScalingState> WithHistoryLength(const DelayedScalingState& state,
                                                      int amax_history_len);

/// After a cast of a tensor whose amax was `amax`: row 0 = max(row 0, amax).
absl::StatusOr<DelayedScalingState> WithCast(const DelayedScalingState& state, float amax);

/// After a calibration, which casts nothing: row 0 = amax.
absl::StatusOr<DelayedScalingState> WithCalibration(const DelayedScalingState& state, float amax);

/// After the step. `max_finite` is that of the element format; `reduced_amax` is row 0 after a
/// reduction over ranks, absent: row 0 itself.
absl::StatusOr<DelayedScalingState> WithUpdate(const DelayedScalingState& state,
                                               const DelayedScalingOptions& options,
                                               float max_finite,
                                               std::optional<float> reduced_amax = std::nullopt);

}  // namespace quantgate
