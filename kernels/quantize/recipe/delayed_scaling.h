// Delayed scaling: the state of a tensor's per-tensor FP8 scale between steps, and how a step
// changes it (docs/quantizers.md section 2). The arithmetic is in
// kernels/numerics/delayed_scaling.h.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/numerics/delayed_scaling.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The options of a recipe with delayed scaling.
struct DelayedScalingOptions {
  int margin = 0;  ///< Scales are lowered by this many powers of two.
  int amax_history_len = 1024;
  AmaxAlgorithm algorithm = AmaxAlgorithm::kMax;
  ScaleUpdate update = ScaleUpdate::kFused;
  bool reduce_amax = true;  ///< Takes the maximum over the ranks before the update.
  friend bool operator==(const DelayedScalingOptions&, const DelayedScalingOptions&) = default;
};

/// The longest history that is accepted, a bound on untrusted input.
inline constexpr int kAmaxHistoryLengthMax = 1 << 20;

/// The state of one tensor of a module. It is a value: the functions below return new states and do
/// not change the tensors of the old one.
struct DelayedScalingState {
  Tensor scale;         ///< f32 [1]: the factor of the next cast.
  Tensor amax_history;  ///< f32 [L]: row 0 is the maximum since the last update; of the past ones,
                        ///< row L-1 is the newest and row 1 the oldest.
  bool has_value() const { return scale.has_value(); }
};
inline std::vector<Tensor*> TensorsOf(DelayedScalingState& state) {
  return {&state.scale, &state.amax_history};
}

/// Scale 1, a history of zeros.
absl::StatusOr<DelayedScalingState> FreshDelayedScaling(int amax_history_len);

/// INVALID_ARGUMENT naming the tensor under `field` unless scale is f32 [1], positive and finite,
/// and the history f32 [L] without negative numbers. Only the types are checked of outlines
/// (tensors without memory) and of tensors in device memory, which an engine made.
absl::Status CheckDelayedScaling(const DelayedScalingState& state, std::string_view field);

/// The state with another history length: keeps the scale and the first rows; missing rows are
/// zeros.
absl::StatusOr<DelayedScalingState> WithHistoryLength(const DelayedScalingState& state,
                                                      int amax_history_len);

/// The state after a cast of a tensor whose amax was `amax`: row 0 = max(row 0, amax).
absl::StatusOr<DelayedScalingState> WithCast(const DelayedScalingState& state, float amax);

/// The state after a calibration, which casts nothing: row 0 = amax.
absl::StatusOr<DelayedScalingState> WithCalibration(const DelayedScalingState& state, float amax);

/// The state after a step. `max_finite` is that of the element format; `reduced_amax` is row 0
/// after a reduction over ranks, or absent for row 0 itself.
absl::StatusOr<DelayedScalingState> WithUpdate(const DelayedScalingState& state,
                                               const DelayedScalingOptions& options,
                                               float max_finite,
                                               std::optional<float> reduced_amax = std::nullopt);

}  // namespace quantgate
