#include "client/cli/commands/tensor_comparison.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/report/element_types.h"
#include "server/report/number_text.h"

namespace quantgate {

absl::StatusOr<SubjectComparison> CompareSides(Connection& connection, const std::string& tensor,
                                               const ComparisonSide& subject,
                                               const ComparisonSide& reference) {
  SubjectComparison comparison;
  comparison.tensor = tensor;
  comparison.dtype = subject.type.dtype();
  comparison.reference_dtype = reference.type.dtype();
  comparison.subject_name = subject.name;
  comparison.reference_name = reference.name;
  const bool same_shape = std::equal(subject.type.shape().begin(), subject.type.shape().end(),
                                     reference.type.shape().begin(), reference.type.shape().end());
  if (!same_shape || subject.type.dtype() != reference.type.dtype()) {
    comparison.difference =
        absl::StrCat(TypeText(subject.type), " against ", TypeText(reference.type));
  }
  if (!same_shape) return comparison;
  v1::CompareRequest request;
  *request.mutable_subject() = subject.source;
  *request.mutable_reference() = reference.source;
  QG_ASSIGN_OR_RETURN(comparison.result, connection.Compare(request));
  SetElementTypes(comparison.result, comparison.dtype, comparison.reference_dtype);
  return comparison;
}

}  // namespace quantgate
