// RunStatistics: the interface through which calls, runs and sessions report their work. A server
// counts it in its metrics, a command ignores it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/validate/run/run.h"

namespace quantgate {

enum class Stage { kQueue, kFetch, kQuantize, kGemm, kOperation, kCommunicate, kCompare, kStore };

/// Counts nothing itself. Implementations are thread-safe.
class RunStatistics {
 public:
  virtual ~RunStatistics() = default;
  virtual void StageTook(Stage, absl::Duration) {}
  /// Parity, errors and quantizer classes of one variant; of its ranks quantizer classes, stages
  /// and overlap. `reference_recipe` is the base name of the recipe that the variant was compared
  /// with; empty without one.
  virtual void VariantMeasured(const VariantReport& /*report*/,
                               std::string_view /*reference_recipe*/) {}
  virtual void StagesTook(std::span<const StageTime>) {}
  /// `recipe`: its base name.
  virtual void Quantized(std::string_view /*recipe*/, const QuantizationCounts&) {}
  /// One stage of one rank that communicated beside its GEMMs.
  virtual void Overlapped(const OverlapTimeline&) {}
  /// `step` as sessions call it: "train", "backward", ...
  virtual void SessionStepped(std::string_view /*step*/, const absl::Status&) {}
  /// Algorithms that a self-check compared with their models, and those whose bits differed.
  virtual void HardwareChecked(std::string_view /*device*/, int64_t /*compared*/,
                               int64_t /*drifted*/) {}
  /// `outcome`: the name of a ScenarioOutcome or of a FaultOutcome.
  virtual void ScenarioRan(std::string_view /*outcome*/) {}
  virtual void FaultRan(std::string_view /*outcome*/) {}
};

}  // namespace quantgate
