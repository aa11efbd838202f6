// Delayed scaling within one step: where scales come from, what casts leave in the histories, and
// the updates (docs/quantizers.md section 2).
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_step.h"

namespace quantgate {
namespace {

constexpr TensorRole kRoles[] = {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput};

const Tensor& AmaxOf(const QuantizedTensor& quantized) {
  return (quantized.rowwise.has_value() ? quantized.rowwise : quantized.columnwise)->amax;
}

float MaxFiniteOf(DType element) {
  return element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
}

}  // namespace

absl::Status LinearStep::PrepareScales() {
  if (!flow_.is_delayed && !flow_.is_calibration) return absl::OkStatus();
  const int length = recipe_.delayed_scaling().amax_history_len;
  for (const TensorRole role : kRoles) {
    const auto given = request_.delayed.find(role);
    if (given == request_.delayed.end()) {
      QG_ASSIGN_OR_RETURN(scales_[role], FreshDelayedScaling(length));
    } else {
      DelayedScalingState state = given->second;
      QG_ASSIGN_OR_RETURN(state.amax_history, engine_.ToHost(state.amax_history, cancellation_));
      QG_ASSIGN_OR_RETURN(scales_[role], WithHistoryLength(state, length));
    }
  }
  return absl::OkStatus();
}

absl::Status LinearStep::Calibrate(const char* stage, TensorRole role, const Tensor& source) {
  // A quantization of which only the amax is read.
  QuantizerSpec spec = recipe_.QuantizerFor(role).rowwise;
  spec.scaling = Scaling::kCurrent;
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized, Timed(stage, [&] {
                        return engine_.Quantize(source, spec, {true, false}, {}, cancellation_);
                      }));
  QG_ASSIGN_OR_RETURN(scales_[role], engine_.NoteCalibration(scales_[role], AmaxOf(quantized)));
  return absl::OkStatus();
}

absl::Status LinearStep::NoteCast(TensorRole role, const QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(scales_[role], engine_.NoteCast(scales_[role], AmaxOf(quantized)));
  return absl::OkStatus();
}

absl::Status LinearStep::UpdateScales(const char* stage, const std::vector<TensorRole>& roles) {
  return Timed(stage, [&]() -> absl::Status {
    for (const TensorRole role : roles) {
      const float max_finite = MaxFiniteOf(recipe_.QuantizerFor(role).rowwise.element);
      QG_ASSIGN_OR_RETURN(
          scales_[role], engine_.UpdateScale(scales_[role], recipe_.delayed_scaling(), max_finite));
    }
    return absl::OkStatus();
  });
}

}  // namespace quantgate
