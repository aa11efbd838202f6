#include "kernels/layer/delayed_states.h"

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

float MaxFiniteOf(DType element) {
  return element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
}

}  // namespace

absl::Status PrepareDelayedState(StepRecorder& recorder, const std::string& name,
                                 const DelayedScalingOptions& options, DelayedStates& states) {
  const int length = options.amax_history_len;
  DelayedScalingState& state = states[name];
  if (!state.has_value()) {
    QG_ASSIGN_OR_RETURN(state, FreshDelayedScaling(length));
    return absl::OkStatus();
  }
  const int64_t given = state.amax_history.element_count();
  if (given == length) return absl::OkStatus();
  recorder.AddNote(absl::StrCat(name, ".amax_history of ", given, " rows ",
                                given > length ? "cut" : "filled with zeros", " to ", length));
  for (Tensor* tensor : {&state.scale, &state.amax_history}) {
    QG_ASSIGN_OR_RETURN(*tensor, recorder.engine().ToHost(*tensor, recorder.cancellation()));
  }
  QG_ASSIGN_OR_RETURN(state, WithHistoryLength(state, length));
  return absl::OkStatus();
}

absl::Status NoteCast(StepRecorder& recorder, const QuantizedCopy& copy,
                      DelayedScalingState& state) {
  QG_ASSIGN_OR_RETURN(state, recorder.engine().NoteCast(state, copy.amax));
  return absl::OkStatus();
}

absl::Status Calibrate(StepRecorder& recorder, const std::string& stage, const Tensor& source,
                       QuantizerSpec rule, DelayedScalingState& state) {
  // Only the amax of this quantization is read.
  rule.scaling = Scaling::kCurrent;
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor quantized, recorder.Timed({StageKind::kQuantize, stage}, [&] {
        return recorder.engine().Quantize(source, rule, {true, false}, {}, recorder.cancellation());
      }));
  QG_ASSIGN_OR_RETURN(state, recorder.engine().NoteCalibration(state, quantized.rowwise->amax));
  return absl::OkStatus();
}

absl::Status UpdateDelayedState(StepRecorder& recorder, const DelayedScalingOptions& options,
                                DType element, DelayedScalingState& state) {
  QG_ASSIGN_OR_RETURN(state, recorder.engine().UpdateScale(state, options, MaxFiniteOf(element)));
  return absl::OkStatus();
}

}  // namespace quantgate
