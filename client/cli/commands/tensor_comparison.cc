#include "client/cli/commands/tensor_comparison.h"

#include <algorithm>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/non_finite.h"
#include "kernels/base/status_macros.h"
#include "server/report/element_types.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

constexpr size_t kListedMax = 8;

/// "63,363 in y, 31,623 in dx".
std::string FoundText(const std::vector<std::string>& parts) {
  if (parts.size() <= kListedMax) return absl::StrJoin(parts, ", ");
  return absl::StrCat(absl::StrJoin(parts.begin(), parts.begin() + kListedMax, ", "), ", and ",
                      parts.size() - kListedMax, " more");
}

int64_t CountOf(const v1::ParityReport& parity,
                absl::FunctionRef<bool(const v1::ClassConfusion&)> counts) {
  int64_t count = 0;
  for (const v1::ClassConfusion& cell : parity.class_confusion()) {
    if (counts(cell)) count += cell.count();
  }
  return count;
}

bool IsInfinite(const std::string& value_class) {
  return value_class == "-inf" || value_class == "+inf";
}

/// Elements that are an infinity on one side, and not the same one on the other. Codes of infinity
/// are next to those of the largest number, so that a distance in ulp does not show them.
int64_t LoneInfinities(const v1::ParityReport& parity) {
  return CountOf(parity, [](const v1::ClassConfusion& cell) {
    return cell.subject_class() != cell.reference_class() &&
           (IsInfinite(cell.subject_class()) || IsInfinite(cell.reference_class()));
  });
}

/// Bitwise, or every element within `ulp_max`: NaN payloads and the sign of zero are 0 ulp apart, a
/// NaN against a number INT64_MAX, and an infinity is within no distance of anything else.
bool IsWithin(const v1::ParityReport& parity, std::optional<int64_t> ulp_max) {
  if (!ulp_max.has_value() || parity.equal()) return parity.equal();
  return parity.worst_ulp() <= *ulp_max && LoneInfinities(parity) == 0;
}

constexpr char kReference[] = "the reference";

NonFiniteSides SidesOf(const v1::ParityReport& parity) {
  NonFiniteSides sides;
  sides.element_count = parity.element_count();
  for (const v1::ClassConfusion& cell : parity.class_confusion()) {
    const auto add = [&](const std::string& value_class, NonFiniteCounts& counts) {
      if (value_class == "nan") counts.nan += cell.count();
      if (IsInfinite(value_class)) counts.infinite += cell.count();
    };
    add(cell.subject_class(), sides.subject);
    add(cell.reference_class(), sides.reference);
    if (cell.subject_class() == cell.reference_class()) add(cell.subject_class(), sides.shared);
  }
  return sides;
}

/// "by a factor of up to 1.5".
std::string ExcessText(const SubjectComparison& comparison) {
  const double ratio = comparison.bound->worst_ratio();
  const std::string text = absl::StrCat("by a factor of up to ", BoundShare(ratio));
  if (ratio <= 0x1p64) return text;
  if (const NonFiniteSides sides = SidesOf(comparison.result.parity());
      std::isinf(ratio) && sides.any()) {
    return absl::StrCat(NonFiniteLine(sides, kReference), ", where both must have the same");
  }
  const auto is_zero = [](const std::string& name) { return name == "-0" || name == "+0"; };
  const int64_t count = CountOf(comparison.result.parity(), [&](const v1::ClassConfusion& cell) {
    return is_zero(cell.reference_class()) && !is_zero(cell.subject_class());
  });
  if (count == 0) return text;
  return absl::StrCat(
      "by a factor of more than 2^64: the bound is next to 0 where all that is "
      "added up is 0, and ",
      Count(count), " are not 0 where the reference is");
}

std::string ParityFinding(const SubjectComparison& comparison) {
  if (!comparison.difference.empty()) {
    return absl::StrCat(comparison.tensor, ": ", comparison.difference);
  }
  const v1::ParityReport& parity = comparison.result.parity();
  if (comparison.bound && !comparison.bound->pass()) {
    return absl::StrCat(comparison.tensor, " exceeds its bound in ",
                        Count(comparison.bound->violation_count()), " of ",
                        Count(parity.element_count()), " elements, ", ExcessText(comparison));
  }
  return absl::StrCat(comparison.tensor, " differs in ", Count(parity.mismatch_count()), " of ",
                      Count(parity.element_count()), " elements, first at ",
                      ElementText(parity.first()));
}

/// Why a tensor does not pass: "63,363 in y", "y up to 17 ulp", "dw not in mine".
std::string FoundOf(const SubjectComparison& comparison, std::optional<int64_t> ulp_max) {
  if (!comparison.difference.empty()) {
    return absl::StrCat(comparison.tensor, " ", comparison.difference);
  }
  const v1::ParityReport& parity = comparison.result.parity();
  if (comparison.bound) {
    return absl::StrCat(Count(comparison.bound->violation_count()), " beyond it in ",
                        comparison.tensor);
  }
  if (!ulp_max.has_value()) {
    return absl::StrCat(Count(parity.mismatch_count()), " in ", comparison.tensor);
  }
  if (parity.worst_ulp() == INT64_MAX) {
    return absl::StrCat(comparison.tensor, " a NaN against a number");
  }
  if (LoneInfinities(parity) > 0) {
    return absl::StrCat(comparison.tensor, " an infinity against another value");
  }
  return absl::StrCat(comparison.tensor, " up to ", Count(parity.worst_ulp()), " ulp");
}

/// What is found where all pass: nothing that differs or, within some ulp, the largest distance.
std::string FoundOfPasses(const std::vector<SubjectComparison>& comparisons,
                          std::optional<int64_t> ulp_max) {
  const SubjectComparison* farthest = nullptr;
  int64_t ulp = 0;
  for (const SubjectComparison& comparison : comparisons) {
    if (comparison.result.parity().worst_ulp() <= ulp) continue;
    farthest = &comparison;
    ulp = comparison.result.parity().worst_ulp();
  }
  return ulp_max.has_value() && farthest != nullptr ? FoundOf(*farthest, ulp_max) : "0";
}

/// Sets pass and finding of each and of all: the first that fails, and how many more do.
void Judge(std::vector<SubjectComparison>& comparisons, const std::string& when_none,
           std::optional<int64_t> ulp_max, absl::FunctionRef<bool(const SubjectComparison&)> passes,
           v1::Verdict& verdict) {
  int failed = 0;
  NonFiniteSides all;
  std::vector<std::string> found, non_finite;
  for (SubjectComparison& comparison : comparisons) {
    comparison.passes = passes(comparison);
    const NonFiniteSides sides = SidesOf(comparison.result.parity());
    all.Add(sides);
    if (sides.any()) {
      non_finite.push_back(absl::StrCat(comparison.tensor, ": ", NonFiniteText(sides, kReference)));
    }
    if (comparison.passes) continue;
    found.push_back(FoundOf(comparison, ulp_max));
    comparison.finding = ParityFinding(comparison);
    if (failed++ == 0) verdict.set_finding(comparison.finding);
  }
  verdict.set_pass(failed == 0);
  verdict.set_found(
      absl::StrCat(failed == 0 ? FoundOfPasses(comparisons, ulp_max) : FoundText(found),
                   all.any() ? ", " : "", all.any() ? NonFiniteLine(all, kReference) : ""));
  verdict.set_non_finite(absl::StrJoin(non_finite, "; "));
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
  SetElementTypes(comparison.result, comparison.dtype, comparison.reference_dtype);
  return comparison;
}

v1::Verdict JudgeComparisons(std::vector<SubjectComparison>& comparisons,
                             std::optional<int64_t> ulp_max) {
  v1::Verdict verdict;
  verdict.set_criterion(v1::REQUIREMENT_BITWISE);
  if (ulp_max.has_value()) {
    verdict.set_threshold(absl::StrCat("every element within ", *ulp_max, " ulp"));
    verdict.set_source("given on the command line");
  } else {
    verdict.set_threshold("0 differing elements");
    verdict.set_source("bitwise");
  }
  Judge(
      comparisons, ulp_max.has_value() ? "within it" : "equal bit for bit", ulp_max,
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
      "elements");
  for (const SubjectComparison& comparison : comparisons) {
    if (comparison.bound && verdict.source().empty()) {
      verdict.set_source(comparison.bound->derivation());
    }
  }
  Judge(
      comparisons, "within their bounds", /*ulp_max=*/std::nullopt,
      [](const SubjectComparison& comparison) {
        return comparison.bound
                   ? comparison.bound->pass()
                   : comparison.difference.empty() && comparison.result.parity().equal();
      },
      verdict);
  return verdict;
}

}  // namespace quantgate
