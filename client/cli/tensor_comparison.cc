#include "client/cli/tensor_comparison.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/number_text.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// Bitwise, or every element within `ulp_max`: NaN payloads and the sign of zero are 0 ulp apart, a
/// NaN against a number INT64_MAX.
bool IsWithin(const v1::ParityReport& parity, int64_t ulp_max) {
  if (ulp_max == 0 || parity.equal()) return parity.equal();
  return parity.worst_ulp() <= ulp_max;
}

std::string Finding(const SubjectComparison& comparison) {
  if (!comparison.difference.empty()) {
    return absl::StrCat(comparison.tensor, ": ", comparison.difference);
  }
  const v1::ParityReport& parity = comparison.result.parity();
  const v1::ElementPair& first = parity.first();
  return absl::StrCat(comparison.tensor, " differs in ", Count(parity.mismatch_count()), " of ",
                      Count(parity.element_count()), " elements, first at ",
                      CoordinateText(first.coordinate()), ": ", ExactReal(first.subject()), " [",
                      HexBits(first.subject_bits(), comparison.dtype), "] against ",
                      ExactReal(first.reference()), " [",
                      HexBits(first.reference_bits(), comparison.reference_dtype), "]");
}

}  // namespace

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
  return comparison;
}

v1::Verdict JudgeComparisons(const std::vector<SubjectComparison>& comparisons, int64_t ulp_max) {
  v1::Verdict verdict;
  verdict.set_criterion(v1::REQUIREMENT_BITWISE);
  verdict.set_pass(true);
  if (ulp_max > 0) {
    verdict.set_threshold(absl::StrCat("every element within ", ulp_max, " ulp"));
    verdict.set_source("given on the command line");
  } else {
    verdict.set_threshold("0 differing bits");
    verdict.set_source("bitwise");
  }
  int failed = 0;
  for (const SubjectComparison& comparison : comparisons) {
    const bool passes = comparison.difference.empty() && comparison.result.has_parity() &&
                        IsWithin(comparison.result.parity(), ulp_max);
    if (passes) continue;
    if (failed++ == 0) verdict.set_finding(Finding(comparison));
    verdict.set_pass(false);
  }
  if (failed == 0) {
    verdict.set_finding(absl::StrCat(comparisons.size(),
                                     comparisons.size() == 1 ? " tensor" : " tensors",
                                     ulp_max > 0 ? " within it" : " equal bit for bit"));
  } else if (failed > 1) {
    verdict.set_finding(absl::StrCat(verdict.finding(), "; ", failed - 1, " more tensors differ"));
  }
  return verdict;
}

}  // namespace quantgate
