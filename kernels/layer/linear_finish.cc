// The end of a step: what its report says of work that was still under way.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_step.h"

namespace quantgate {

absl::StatusOr<Fingerprint> LinearStep::ReadFingerprint(const std::vector<Tensor>& parts) {
  Fingerprint sum;
  for (const Tensor& part : parts) {
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint, engine_.ReadFingerprint(part));
    sum.low += fingerprint.low;
    sum.high += fingerprint.high + (sum.low < fingerprint.low ? 1 : 0);
  }
  return sum;
}

void LinearStep::AddState() {
  for (const auto& [role, state] : scales_) {
    const std::string name(TensorRoleName(role));
    result_.state.push_back({absl::StrCat(name, ".scale"), state.scale});
    result_.state.push_back({absl::StrCat(name, ".amax_history"), state.amax_history});
  }
}

absl::StatusOr<LinearResult> LinearStep::Finish() {
  for (const RunningFingerprint& running : fingerprints_) {
    QG_ASSIGN_OR_RETURN(result_.saved[running.record].*running.moment,
                        ReadFingerprint(running.parts));
  }
  for (size_t i = 0; i < quantized_.size(); ++i) {
    QG_ASSIGN_OR_RETURN(static_cast<QuantizationSummary&>(result_.quantizations[i]),
                        engine_.Summarize(quantized_[i]));
  }
  for (const RunningStage& stage : stages_) {
    QG_ASSIGN_OR_RETURN(const double seconds, stage.stopwatch->Seconds());
    result_.stages.push_back({stage.name, seconds});
  }
  AddState();
  return std::move(result_);
}

}  // namespace quantgate
