// The verdict on comparisons of tensors: those of diff and verify, and those of a trace's steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/non_finite.h"
#include "server/report/report_document.h"

namespace quantgate {

/// Judges comparisons one by one. Keeps what a verdict says of all of them, and none of themselves.
class ComparisonJudge {
 public:
  /// Passes where all bits are equal.
  static ComparisonJudge Bitwise() { return ComparisonJudge(Criterion::kBitwise, std::nullopt); }
  /// Passes where every element lies within `ulp_max` units in the last place: zeros of both signs
  /// are 0 apart, an infinity or a NaN is within none of anything else.
  static ComparisonJudge WithinUlp(int64_t ulp_max) {
    return ComparisonJudge(Criterion::kUlp, ulp_max);
  }
  /// Passes where a tensor that has a bound lies within it, and any other has equal bits.
  static ComparisonJudge ByBounds() { return ComparisonJudge(Criterion::kBound, std::nullopt); }

  /// Sets in the comparison whether it passes, and the finding if it does not.
  void Add(SubjectComparison& comparison);
  /// Adds a difference that is none of a comparison, such as that of two ranks. Nothing passes with
  /// one; of several the first is told.
  void AddDifference(const std::string& text);
  /// Of all that was added.
  v1::Verdict Verdict() const;

 private:
  enum class Criterion { kBitwise, kUlp, kBound };
  /// The first few of many texts, and their number.
  struct Listed {
    std::vector<std::string> first;
    size_t count = 0;
    void Add(std::string text);
    std::string Text(const char* separator) const;
  };
  ComparisonJudge(Criterion criterion, std::optional<int64_t> ulp_max)
      : criterion_(criterion), ulp_max_(ulp_max) {}
  bool Passes(const SubjectComparison& comparison) const;

  Criterion criterion_;
  std::optional<int64_t> ulp_max_;
  size_t checked_ = 0, bounded_ = 0;  ///< Tensors, and those of them that have a bound.
  Listed found_, non_finite_texts_;
  std::string finding_;     ///< Of the first that fails.
  std::string source_;      ///< The derivation of the first bound.
  std::string farthest_;    ///< Of the largest distance in ulp, for kUlp.
  std::string difference_;  ///< The first of AddDifference.
  int64_t farthest_ulp_ = 0;
  NonFiniteSides non_finite_;
};

/// The verdict of ComparisonJudge::ByBounds.
v1::Verdict JudgeBounds(std::vector<SubjectComparison>& comparisons);
/// The verdict of ComparisonJudge::WithinUlp, or without `ulp_max` of Bitwise.
v1::Verdict JudgeComparisons(std::vector<SubjectComparison>& comparisons,
                             std::optional<int64_t> ulp_max);

}  // namespace quantgate
