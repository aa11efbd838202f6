#include "kernels/compare/parity_report.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/compare/element_codes.h"
#include "kernels/compare/element_values.h"
#include "kernels/compare/parity_findings.h"

namespace quantgate {
namespace {

/// The elements that one memcmp compares; only where it finds a difference are they taken one by
/// one.
constexpr int64_t kStretch = 8192;

/// Adds the findings of a piece to those of the pieces before it.
void Merge(const ParityFindings& later, ParityFindings& findings) {
  findings.mismatch_count += later.mismatch_count;
  if (findings.first < 0) findings.first = later.first;
  if (later.worst >= 0 && (findings.worst < 0 || later.worst_distance > findings.worst_distance)) {
    findings.worst = later.worst;
    findings.worst_distance = later.worst_distance;
  }
  for (int i = 0; i < kAllBuckets; ++i) findings.buckets[i] += later.buckets[i];
  for (int i = 0; i < kValueClassCount; ++i) {
    for (int j = 0; j < kValueClassCount; ++j) findings.confusion[i][j] += later.confusion[i][j];
  }
}

/// Counts of one block of codes; the sign counts leave out NaN.
struct ClassCounts {
  int64_t nan = 0, negative = 0, infinite = 0, negative_infinite = 0, zero = 0, negative_zero = 0;
};

/// Counts without a branch, in counters as wide as the codes so that compilers vectorise the loop.
template <class Codes>
void CountBlock(const typename Codes::Storage* codes, int count, ClassCounts& counts) {
  using Counter = typename Codes::Storage;
  constexpr bool kHasZero = !std::is_same_v<Codes, E8M0Codes>;
  Counter nan = 0, negative = 0, infinite = 0, negative_infinite = 0, zero = 0, negative_zero = 0;
  for (int i = 0; i < count; ++i) {
    const Counter code = codes[i];
    const bool is_nan = Codes::IsNan(code);
    const bool is_negative = Codes::IsNegative(code) & !is_nan;
    const bool is_infinite = Codes::IsInfinite(code);
    const bool is_zero = kHasZero & (Codes::Magnitude(code) == 0);
    nan += is_nan ? 1 : 0;
    negative += is_negative ? 1 : 0;
    infinite += is_infinite ? 1 : 0;
    negative_infinite += (is_infinite & is_negative) ? 1 : 0;
    zero += is_zero ? 1 : 0;
    negative_zero += (is_zero & is_negative) ? 1 : 0;
  }
  counts.nan += static_cast<int64_t>(nan);
  counts.negative += static_cast<int64_t>(negative);
  counts.infinite += static_cast<int64_t>(infinite);
  counts.negative_infinite += static_cast<int64_t>(negative_infinite);
  counts.zero += static_cast<int64_t>(zero);
  counts.negative_zero += static_cast<int64_t>(negative_zero);
}

/// 8-bit codes are counted one by one instead, and each code classified once.
template <class Codes>
void CountBytes(const uint8_t* codes, int64_t count, ParityFindings& findings) {
  uint32_t tallies[4][256] = {};  // Four, so that equal codes in a row do not wait for each other.
  for (int64_t i = 0; i < count; ++i) ++tallies[i & 3][codes[i]];
  for (int code = 0; code < 256; ++code) {
    const int64_t n =
        int64_t(tallies[0][code]) + tallies[1][code] + tallies[2][code] + tallies[3][code];
    const auto value_class = ClassOfCode<Codes>(static_cast<uint8_t>(code));
    findings.confusion[static_cast<int>(value_class)][static_cast<int>(value_class)] += n;
    if (value_class != ValueClass::kNan) findings.buckets[kEqualBucket] += n;
  }
}

/// Counts a stretch in which both sides are equal.
template <class Codes>
void CountEqual(const typename Codes::Storage* codes, int64_t count, ParityFindings& findings) {
  if constexpr (sizeof(typename Codes::Storage) == 1)
    return CountBytes<Codes>(codes, count, findings);
  ClassCounts counts;
  CountBlock<Codes>(codes, static_cast<int>(count), counts);
  const auto add = [&](ValueClass value_class, int64_t n) {
    findings.confusion[static_cast<int>(value_class)][static_cast<int>(value_class)] += n;
  };
  const int64_t positive = count - counts.nan - counts.negative;
  const int64_t positive_infinite = counts.infinite - counts.negative_infinite;
  const int64_t positive_zero = counts.zero - counts.negative_zero;
  add(ValueClass::kNan, counts.nan);
  add(ValueClass::kNegativeInfinity, counts.negative_infinite);
  add(ValueClass::kNegativeZero, counts.negative_zero);
  add(ValueClass::kNegative, counts.negative - counts.negative_infinite - counts.negative_zero);
  add(ValueClass::kPositiveInfinity, positive_infinite);
  add(ValueClass::kPositiveZero, positive_zero);
  add(ValueClass::kPositive, positive - positive_infinite - positive_zero);
  findings.buckets[kEqualBucket] += count - counts.nan;
}

template <class Codes>
void CountPair(typename Codes::Storage subject, typename Codes::Storage reference, int64_t index,
               ParityFindings& findings) {
  const ValueClass subject_class = ClassOfCode<Codes>(subject);
  const ValueClass reference_class = ClassOfCode<Codes>(reference);
  ++findings.confusion[static_cast<int>(subject_class)][static_cast<int>(reference_class)];
  const bool subject_nan = subject_class == ValueClass::kNan;
  const bool reference_nan = reference_class == ValueClass::kNan;
  uint64_t distance = 0;
  if (!subject_nan && !reference_nan) {
    const uint64_t s = Codes::Magnitude(subject);
    const uint64_t r = Codes::Magnitude(reference);
    const bool s_negative = Codes::IsNegative(subject);
    const bool same_sign = s_negative == Codes::IsNegative(reference);
    distance = !same_sign ? s + r : s > r ? s - r : r - s;
    distance = std::min(distance, kNanDistance - 1);
    const bool is_above = same_sign ? (s > r) != s_negative : !s_negative;
    const int bucket = BucketOf(distance);
    ++findings.buckets[kEqualBucket + (is_above ? bucket : -bucket)];
  } else if (subject_nan != reference_nan) {
    distance = kNanDistance;
  }
  if (subject == reference) return;
  ++findings.mismatch_count;
  if (findings.first < 0) findings.first = index;
  if (findings.worst < 0 || distance > findings.worst_distance) {
    findings.worst = index;
    findings.worst_distance = distance;
  }
}

template <class Codes>
void CountRange(const Tensor& subject, const Tensor& reference, int64_t begin, int64_t end,
                ParityFindings& findings) {
  using Storage = typename Codes::Storage;
  const Storage* s = subject.as<Storage>();
  const Storage* r = reference.as<Storage>();
  for (int64_t at = begin; at < end; at += kStretch) {
    const int64_t count = std::min(kStretch, end - at);
    if (std::memcmp(s + at, r + at, count * sizeof(Storage)) == 0) {
      CountEqual<Codes>(s + at, count, findings);
      continue;
    }
    for (int64_t i = at; i < at + count; ++i) CountPair<Codes>(s[i], r[i], i, findings);
  }
}

int64_t BucketUpper(int bucket) {
  return bucket == 0    ? 0
         : bucket >= 64 ? std::numeric_limits<int64_t>::max()
                        : int64_t(1) << (bucket - 1);
}
int64_t BucketLower(int bucket) { return bucket <= 1 ? bucket : BucketUpper(bucket - 1) + 1; }

std::vector<UlpBucket> HistogramOf(const ParityFindings& findings) {
  std::vector<UlpBucket> histogram;
  for (int i = -kEqualBucket; i <= kEqualBucket; ++i) {
    const int64_t count = findings.buckets[kEqualBucket + i];
    if (count == 0) continue;
    if (i < 0) {
      histogram.push_back({-BucketUpper(-i), -BucketLower(-i), count});
    } else {
      histogram.push_back({BucketLower(i), BucketUpper(i), count});
    }
  }
  return histogram;
}

}  // namespace

std::string_view ValueClassName(ValueClass value_class) {
  switch (value_class) {
    case ValueClass::kNegativeInfinity:
      return "-inf";
    case ValueClass::kNegative:
      return "negative";
    case ValueClass::kNegativeZero:
      return "-0";
    case ValueClass::kPositiveZero:
      return "+0";
    case ValueClass::kPositive:
      return "positive";
    case ValueClass::kPositiveInfinity:
      return "+inf";
    case ValueClass::kNan:
      return "nan";
  }
  return "unknown";
}

static_assert(kClassCount == kValueClassCount);

ParityReport ParityReportOf(const ParityFindings& findings, int64_t element_count,
                            ElementPair first, ElementPair worst) {
  ParityReport report;
  report.element_count = element_count;
  report.mismatch_count = findings.mismatch_count;
  report.equal = findings.mismatch_count == 0;
  report.class_confusion = findings.confusion;
  report.ulp_histogram = HistogramOf(findings);
  report.first = std::move(first);
  report.worst = std::move(worst);
  report.worst_ulp = static_cast<int64_t>(findings.worst_distance);
  return report;
}

absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSameShapeAndType(subject, reference));
  const int64_t count = subject.element_count();
  const int64_t grain = std::max<int64_t>(int64_t(1) << 16, count / 256 + 1);
  std::vector<ParityFindings> pieces((count + grain - 1) / grain);
  ParallelFor(context, count, grain, [&](int64_t begin, int64_t end) {
    WithCodes(subject.dtype(), [&]<class Codes>(Codes) {
      CountRange<Codes>(subject, reference, begin, end, pieces[begin / grain]);
    });
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  ParityFindings total;
  for (const ParityFindings& piece : pieces) Merge(piece, total);

  if (total.mismatch_count == 0) return ParityReportOf(total, count, {}, {});
  return ParityReportOf(total, count, PairAt(subject, reference, total.first),
                        PairAt(subject, reference, total.worst));
}

}  // namespace quantgate
