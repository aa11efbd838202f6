// A diagnosis: the likely cause of a difference, in one sentence, and what was tried to find it
// (docs/reports.md section 10). "unknown" is an answer: a sentence names a cause only where the
// cause gives the very numbers that were found.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/steady_time.h"

namespace quantgate {

struct Diagnosis {
  /// "dw is twice the expected"; "unknown: ...", where nothing that was tried fits. Never empty in
  /// a diagnosis that was made.
  std::string sentence;
  bool is_unknown = true;
  /// Numbers behind the sentence, one line each.
  std::vector<std::string> figures;
  /// Hypotheses that were tried and do not fit, and those for which there was no time or whose
  /// operands are not given.
  std::vector<std::string> tried, not_tried;
  double seconds = 0;
};

/// How long a diagnosis may go on looking. Checked before each hypothesis that is held against all
/// elements; a layer that is computed under a hypothesis is also stopped at the end
/// (engine_model.h).
class DiagnosisBudget {
 public:
  using Clock = std::function<absl::Time()>;
  /// As much time from now on as the comparison took. `clock`: SteadyNow, or another that a test
  /// winds.
  static DiagnosisBudget Of(absl::Duration comparison, Clock clock = SteadyNow);
  static DiagnosisBudget Unlimited() { return DiagnosisBudget(absl::InfiniteFuture(), SteadyNow); }
  bool IsSpent() const { return end_ != absl::InfiniteFuture() && clock_() > end_; }
  absl::Time end() const { return end_; }

 private:
  DiagnosisBudget(absl::Time end, Clock clock) : end_(end), clock_(std::move(clock)) {}
  absl::Time end_;
  Clock clock_;
};

}  // namespace quantgate
