#include "kernels/quantize/recipe/delayed_scaling.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

absl::StatusOr<DelayedScalingState> CopyOf(const DelayedScalingState& state) {
  DelayedScalingState copy;
  QG_ASSIGN_OR_RETURN(copy.scale,
                      Tensor::FromBytes(DType::kF32, state.scale.shape(), state.scale.bytes()));
  QG_ASSIGN_OR_RETURN(copy.amax_history, Tensor::FromBytes(DType::kF32, state.amax_history.shape(),
                                                           state.amax_history.bytes()));
  return copy;
}

absl::Status CheckState(const DelayedScalingState& state) {
  const Tensor& scale = state.scale;
  const Tensor& history = state.amax_history;
  if (!scale.has_value() || scale.dtype() != DType::kF32 || scale.shape() != Shape{1}) {
    return Refuse("scale", TensorText(scale), "must be f32[1]");
  }
  if (!history.has_value() || history.dtype() != DType::kF32 || history.rank() != 1 ||
      history.shape()[0] < 1 || history.shape()[0] > kAmaxHistoryLengthMax) {
    return Refuse("amax_history", TensorText(history), "must be f32[L], L from 1 to 1048576");
  }
  // Outlines of tensors have no values to check, and those of an engine's device are not ours to
  // read.
  for (const Tensor* tensor : {&scale, &history}) {
    if (tensor->data() == nullptr || tensor->space() != MemorySpace::kHost) return absl::OkStatus();
  }
  const float value = *scale.as<float>();
  if (!(value > 0) || !std::isfinite(value)) {
    return Refuse("scale", absl::StrCat(value), "must be positive and finite");
  }
  for (int64_t i = 0; i < history.shape()[0]; ++i) {
    const float amax = history.as<float>()[i];
    if (amax < 0) {
      return Refuse(absl::StrCat("amax_history[", i, "]"), absl::StrCat(amax),
                    "an amax is not negative");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DelayedScalingState> FreshDelayedScaling(int amax_history_len) {
  DelayedScalingState state;
  QG_ASSIGN_OR_RETURN(state.scale, Tensor::FromScalar(1.0f));
  QG_ASSIGN_OR_RETURN(state.amax_history, Tensor::Allocate(DType::kF32, {amax_history_len}));
  std::fill_n(state.amax_history.as<float>(), amax_history_len, 0.0f);
  return state;
}

absl::Status CheckDelayedScaling(const DelayedScalingState& state, std::string_view field) {
  return WithinField(field, CheckState(state));
}

absl::StatusOr<DelayedScalingState> WithHistoryLength(const DelayedScalingState& state,
                                                      int amax_history_len) {
  QG_ASSIGN_OR_RETURN(DelayedScalingState resized, FreshDelayedScaling(amax_history_len));
  const int64_t kept = std::min<int64_t>(amax_history_len, state.amax_history.element_count());
  std::copy_n(state.amax_history.as<float>(), kept, resized.amax_history.as<float>());
  *resized.scale.as<float>() = *state.scale.as<float>();
  return resized;
}

absl::StatusOr<DelayedScalingState> WithCast(const DelayedScalingState& state, float amax) {
  QG_ASSIGN_OR_RETURN(DelayedScalingState next, CopyOf(state));
  float& row = next.amax_history.as<float>()[0];
  row = delayed_scaling_steps::MaxNumber(row, amax);
  return next;
}

absl::StatusOr<DelayedScalingState> WithCalibration(const DelayedScalingState& state, float amax) {
  QG_ASSIGN_OR_RETURN(DelayedScalingState next, CopyOf(state));
  next.amax_history.as<float>()[0] = amax;
  return next;
}

absl::StatusOr<DelayedScalingState> WithUpdate(const DelayedScalingState& state,
                                               const DelayedScalingOptions& options,
                                               float max_finite,
                                               std::optional<float> reduced_amax) {
  QG_ASSIGN_OR_RETURN(DelayedScalingState next, CopyOf(state));
  float* history = next.amax_history.as<float>();
  UpdateDelayedScale(options.update, options.algorithm, max_finite, options.margin,
                     reduced_amax.value_or(history[0]), history, next.amax_history.element_count(),
                     next.scale.as<float>());
  return next;
}

}  // namespace quantgate
