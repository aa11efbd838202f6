// One pair of tensors through Engine.Compare, for diff and verify.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "server/report/report_document.h"

namespace quantgate {

/// A tensor where the server can read it, with its name and type.
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

/// Passes where every tensor that has a bound lies within it and all others have equal bits. Sets
/// in each comparison whether it passes.
v1::Verdict JudgeBounds(std::vector<SubjectComparison>& comparisons);

/// Passes where every element lies within `ulp_max` units in the last place (zeros of both signs
/// are 0 apart, an infinity or a NaN is within none of anything else); without `ulp_max`, where all
/// bits are equal. Sets in each comparison whether it passes.
v1::Verdict JudgeComparisons(std::vector<SubjectComparison>& comparisons,
                             std::optional<int64_t> ulp_max);

}  // namespace quantgate
