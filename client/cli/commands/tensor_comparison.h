// One pair of tensors through Engine.Compare, for diff and verify.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "server/report/report_document.h"

namespace quantgate {

/// A tensor as the server can get at it, and what it is.
struct ComparisonSide {
  std::string name;  ///< As people call it: "mine.safetensors:y".
  v1::TensorDescriptor type;
  v1::TensorSource source;
};

/// Bits and error of `subject` against `reference`. Different shapes or dtypes are a result, not an
/// error.
absl::StatusOr<SubjectComparison> CompareSides(Connection& connection, const std::string& tensor,
                                               const ComparisonSide& subject,
                                               const ComparisonSide& reference);

/// Every tensor that has a bound within it, and the bits of all others equal. Says of each too
/// whether it passes.
v1::Verdict JudgeBounds(std::vector<SubjectComparison>& comparisons);

/// Every finite element within `ulp_max` units in the last place, of which the zeros of both signs
/// are 0 apart; without it bitwise equality of all. Says of each too whether it passes.
v1::Verdict JudgeComparisons(std::vector<SubjectComparison>& comparisons,
                             std::optional<int64_t> ulp_max);

}  // namespace quantgate
