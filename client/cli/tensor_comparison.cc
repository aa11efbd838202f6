#include "client/cli/tensor_comparison.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
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

std::string ParityFinding(const SubjectComparison& comparison) {
  if (!comparison.difference.empty()) {
    return absl::StrCat(comparison.tensor, ": ", comparison.difference);
  }
  const v1::ParityReport& parity = comparison.result.parity();
  if (comparison.bound && !comparison.bound->pass()) {
    return absl::StrCat(comparison.tensor, " exceeds its bound in ",
                        Count(comparison.bound->violation_count()), " of ",
                        Count(parity.element_count()), " elements, by a factor of up to ",
                        BoundShare(comparison.bound->worst_ratio()));
  }
  return absl::StrCat(comparison.tensor, " differs in ", Count(parity.mismatch_count()), " of ",
                      Count(parity.element_count()), " elements, first at ",
                      ElementText(parity.first(), comparison.dtype, comparison.reference_dtype));
}

/// Sets pass and finding of each and of all: the first that fails, and how many more do.
void Judge(std::vector<SubjectComparison>& comparisons, const std::string& when_none,
           absl::FunctionRef<bool(const SubjectComparison&)> passes, v1::Verdict& verdict) {
  int failed = 0;
  for (SubjectComparison& comparison : comparisons) {
    comparison.passes = passes(comparison);
    if (comparison.passes) continue;
    comparison.finding = ParityFinding(comparison);
    if (failed++ == 0) verdict.set_finding(comparison.finding);
  }
  verdict.set_pass(failed == 0);
  if (failed == 0) {
    verdict.set_finding(absl::StrCat(
        comparisons.size(), comparisons.size() == 1 ? " tensor " : " tensors ", when_none));
  } else if (failed > 1) {
    verdict.set_finding(absl::StrCat(verdict.finding(), "; and ", failed - 1, " more of ",
                                     comparisons.size(), " tensors"));
  }
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

v1::Verdict JudgeComparisons(std::vector<SubjectComparison>& comparisons, int64_t ulp_max) {
  v1::Verdict verdict;
  verdict.set_criterion(v1::REQUIREMENT_BITWISE);
  if (ulp_max > 0) {
    verdict.set_threshold(absl::StrCat("every element within ", ulp_max, " ulp"));
    verdict.set_source("given on the command line");
  } else {
    verdict.set_threshold("0 differing bits");
    verdict.set_source("bitwise");
  }
  Judge(
      comparisons, ulp_max > 0 ? "within it" : "equal bit for bit",
      [&](const SubjectComparison& comparison) {
        return comparison.difference.empty() && comparison.result.has_parity() &&
               IsWithin(comparison.result.parity(), ulp_max);
      },
      verdict);
  return verdict;
}

v1::Verdict JudgeBounds(std::vector<SubjectComparison>& comparisons) {
  v1::Verdict verdict;
  verdict.set_criterion(v1::REQUIREMENT_BOUND);
  verdict.set_threshold(
      "|error against exact| <= the bound derived for the arithmetic; without one, 0 differing "
      "bits");
  for (const SubjectComparison& comparison : comparisons) {
    if (comparison.bound && verdict.source().empty()) {
      verdict.set_source(comparison.bound->derivation());
    }
  }
  Judge(
      comparisons, "within their bounds",
      [](const SubjectComparison& comparison) {
        return comparison.bound
                   ? comparison.bound->pass()
                   : comparison.difference.empty() && comparison.result.parity().equal();
      },
      verdict);
  return verdict;
}

}  // namespace quantgate
