// The end of a step: what its report says of work that was still under way.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_step.h"

namespace quantgate {

absl::Status LinearStep::ReadFingerprints() {
  std::vector<Tensor> parts;
  for (const RunningFingerprint& running : fingerprints_) {
    parts.insert(parts.end(), running.parts.begin(), running.parts.end());
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> read, engine_.ReadFingerprints(parts));
  size_t next = 0;
  for (const RunningFingerprint& running : fingerprints_) {
    Fingerprint sum;
    for (size_t part = 0; part < running.parts.size(); ++part, ++next) {
      sum.low += read[next].low;
      sum.high += read[next].high + (sum.low < read[next].low ? 1 : 0);
    }
    result_.saved[running.record].*running.moment = sum;
  }
  return absl::OkStatus();
}

void LinearStep::AddState() {
  for (const auto& [role, state] : scales_) {
    const std::string name(TensorRoleName(role));
    result_.state.push_back({absl::StrCat(name, ".scale"), state.scale});
    result_.state.push_back({absl::StrCat(name, ".amax_history"), state.amax_history});
  }
}

absl::StatusOr<LinearResult> LinearStep::Finish() {
  if (!fingerprints_.empty()) QG_RETURN_IF_ERROR(ReadFingerprints());
  if (!quantized_.empty()) {
    QG_ASSIGN_OR_RETURN(std::vector<QuantizationSummary> summaries, engine_.Summarize(quantized_));
    for (size_t i = 0; i < quantized_.size(); ++i) {
      static_cast<QuantizationSummary&>(result_.quantizations[i]) = std::move(summaries[i]);
    }
  }
  for (const RunningStage& stage : stages_) {
    QG_ASSIGN_OR_RETURN(const double seconds, stage.stopwatch->Seconds());
    result_.stages.push_back({stage.name, seconds});
  }
  AddState();
  return std::move(result_);
}

}  // namespace quantgate
