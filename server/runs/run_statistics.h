// RunStatistics: what calls, runs and sessions tell of their work to whoever counts it: a server's
// metrics, or nobody.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/validate/run/run.h"

namespace quantgate {

enum class Stage { kQueue, kFetch, kQuantize, kGemm, kOperation, kCommunicate, kCompare, kStore };

/// Counts nothing. Implementations are thread-safe.
class RunStatistics {
 public:
  virtual ~RunStatistics() = default;
  virtual void StageTook(Stage, absl::Duration) {}
  /// Parity, errors and quantizer classes of one variant, and those and the stages of its ranks.
  /// `reference_recipe` is the base name of the recipe that it was compared with; empty without
  /// one.
  virtual void VariantMeasured(const VariantReport& /*report*/,
                               std::string_view /*reference_recipe*/) {}
  virtual void StagesTook(std::span<const StageTime>) {}
  /// `recipe`: its base name.
  virtual void Quantized(std::string_view /*recipe*/, const QuantizationCounts&) {}
  /// One stage of one rank that communicated beside its GEMMs.
  virtual void Overlapped(const OverlapTimeline&) {}
  /// `step` as sessions call it: "train", "backward", ...
  virtual void SessionStepped(std::string_view /*step*/, const absl::Status&) {}
  /// Of the last self-check: algorithms whose bits differed from their model, and those compared.
  virtual void HardwareChecked(std::string_view /*device*/, int64_t /*compared*/,
                               int64_t /*drifted*/) {}
  /// Names of ScenarioOutcome and FaultOutcome.
  virtual void ScenarioRan(std::string_view /*outcome*/) {}
  virtual void FaultRan(std::string_view /*outcome*/) {}
};

}  // namespace quantgate
