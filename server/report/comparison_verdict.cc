#include "server/report/comparison_verdict.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

constexpr size_t kListedMax = 8;

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
/// NaN against a number INT64_MAX, and an infinity is within no distance of anything else. Nor is a
/// number whose distance is beyond what is counted (UlpText).
bool IsWithin(const v1::ParityReport& parity, std::optional<int64_t> ulp_max) {
  if (!ulp_max.has_value() || parity.equal()) return parity.equal();
  return parity.worst_ulp() <= *ulp_max && parity.worst_ulp() < INT64_MAX - 1 &&
         LoneInfinities(parity) == 0;
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
  return absl::StrCat(comparison.tensor, " up to ", UlpText(parity.worst_ulp()), " ulp");
}

}  // namespace

void ComparisonJudge::Listed::Add(std::string text) {
  if (count++ < kListedMax) first.push_back(std::move(text));
}

std::string ComparisonJudge::Listed::Text(const char* separator) const {
  const std::string listed = absl::StrJoin(first, separator);
  if (count <= first.size()) return listed;
  return absl::StrCat(listed, separator, "and ", count - first.size(), " more");
}

bool ComparisonJudge::Passes(const SubjectComparison& comparison) const {
  if (criterion_ == Criterion::kBound && comparison.bound) return comparison.bound->pass();
  return comparison.difference.empty() && comparison.result.has_parity() &&
         IsWithin(comparison.result.parity(), ulp_max_);
}

void ComparisonJudge::Add(SubjectComparison& comparison) {
  ++checked_;
  comparison.passes = Passes(comparison);
  if (comparison.bound) ++bounded_;
  if (comparison.bound && source_.empty()) source_ = comparison.bound->derivation();
  const v1::ParityReport& parity = comparison.result.parity();
  const NonFiniteSides sides = SidesOf(parity);
  non_finite_.Add(sides);
  if (sides.any()) {
    non_finite_texts_.Add(absl::StrCat(comparison.tensor, ": ", NonFiniteText(sides, kReference)));
  }
  if (parity.worst_ulp() > farthest_ulp_) {
    farthest_ulp_ = parity.worst_ulp();
    if (ulp_max_.has_value()) farthest_ = FoundOf(comparison, ulp_max_);
  }
  if (comparison.passes) return;
  found_.Add(FoundOf(comparison, ulp_max_));
  comparison.finding = ParityFinding(comparison);
  if (finding_.empty()) finding_ = comparison.finding;
}

void ComparisonJudge::AddDifference(const std::string& text) {
  if (difference_.empty()) difference_ = text;
}

v1::Verdict ComparisonJudge::Verdict() const {
  v1::Verdict verdict;
  verdict.set_criterion(criterion_ == Criterion::kBound ? v1::REQUIREMENT_BOUND
                                                        : v1::REQUIREMENT_BITWISE);
  switch (criterion_) {
    case Criterion::kBitwise:
      verdict.set_threshold("0 differing elements");
      verdict.set_source("bitwise");
      break;
    case Criterion::kUlp:
      verdict.set_threshold(absl::StrCat("every element within ", *ulp_max_, " ulp"));
      verdict.set_source("given on the command line");
      break;
    case Criterion::kBound:
      verdict.set_threshold(
          "|error against exact| <= the bound derived for the arithmetic; without one, 0 differing "
          "elements");
      verdict.set_source(source_);
      break;
  }
  const size_t failed = found_.count;
  const std::string farthest = farthest_.empty() ? "0" : farthest_;
  std::string found = failed == 0 ? farthest : found_.Text(", ");
  if (non_finite_.any()) absl::StrAppend(&found, ", ", NonFiniteLine(non_finite_, kReference));
  if (!difference_.empty())
    found = found == "0" ? difference_ : absl::StrCat(found, ", ", difference_);
  verdict.set_pass(failed == 0 && difference_.empty());
  verdict.set_found(found);
  verdict.set_non_finite(non_finite_texts_.Text("; "));
  if (!difference_.empty()) {
    verdict.set_finding(difference_);
  } else if (failed == 0) {
    const auto tensors = [](size_t count) {
      return absl::StrCat(count, count == 1 ? " tensor " : " tensors ");
    };
    const size_t by_bits = criterion_ == Criterion::kBound ? checked_ - bounded_ : 0;
    if (criterion_ == Criterion::kBitwise) {
      verdict.set_finding(tensors(checked_) + "equal bit for bit");
    } else if (criterion_ == Criterion::kUlp) {
      verdict.set_finding(tensors(checked_) + "within it");
    } else if (by_bits == 0) {
      verdict.set_finding(tensors(checked_) + "within their bounds");
    } else {
      verdict.set_finding(
          absl::StrCat(bounded_ == 0 ? "" : tensors(bounded_) + "within their bounds, ",
                       tensors(by_bits), "without a bound equal bit for bit"));
    }
  } else if (failed > 1) {
    verdict.set_finding(
        absl::StrCat(finding_, "; and ", failed - 1, " more of ", checked_, " tensors"));
  } else {
    verdict.set_finding(finding_);
  }
  return verdict;
}

namespace {

v1::Verdict JudgeAll(ComparisonJudge judge, std::vector<SubjectComparison>& comparisons) {
  for (SubjectComparison& comparison : comparisons) judge.Add(comparison);
  return judge.Verdict();
}

}  // namespace

v1::Verdict JudgeBounds(std::vector<SubjectComparison>& comparisons) {
  return JudgeAll(ComparisonJudge::ByBounds(), comparisons);
}

v1::Verdict JudgeComparisons(std::vector<SubjectComparison>& comparisons,
                             std::optional<int64_t> ulp_max) {
  return JudgeAll(
      ulp_max.has_value() ? ComparisonJudge::WithinUlp(*ulp_max) : ComparisonJudge::Bitwise(),
      comparisons);
}

}  // namespace quantgate
