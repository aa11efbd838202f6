// One pair of tensors through Engine.Compare, for diff and verify.
#pragma once

#include <string>

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

}  // namespace quantgate
