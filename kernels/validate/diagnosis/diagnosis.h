// A diagnosis: the likely cause of a difference, in one sentence, and what was tried to find it
// (docs/reports.md section 10). "unknown" is an answer: a sentence names a cause only where the
// cause gives the very numbers that were found.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

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

/// How long a diagnosis may go on looking. Checked between hypotheses, so that one that has begun
/// is finished.
class DiagnosisBudget {
 public:
  /// As much time from now on as the comparison took.
  static DiagnosisBudget Of(absl::Duration comparison);
  static DiagnosisBudget Unlimited() { return DiagnosisBudget(absl::InfiniteFuture()); }
  bool IsSpent() const;
  absl::Time end() const { return end_; }

 private:
  explicit DiagnosisBudget(absl::Time end) : end_(end) {}
  absl::Time end_;
};

}  // namespace quantgate
