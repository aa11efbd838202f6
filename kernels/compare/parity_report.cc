#include "kernels/compare/parity_report.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/element_codes.h"
#include "kernels/compare/element_values.h"

namespace quantgate {
namespace {

/// Elements that memcmp looks at before anyone looks closer.
constexpr int64_t kStretch = 2048;
/// Bucket 0 for distance 0; i >= 1 for [2^(i-2) + 1, 2^(i-1)], one set above and one below.
constexpr int kBucketCount = 65;
/// Larger than every distance between numbers, which is clamped below it.
constexpr uint64_t kNanDistance = std::numeric_limits<int64_t>::max();

using Confusion = std::array<std::array<int64_t, kValueClassCount>, kValueClassCount>;

/// What one thread found in its piece; pieces are merged in index order.
struct Findings {
  int64_t mismatch_count = 0;
  int64_t first = -1;
  int64_t worst = -1;
  uint64_t worst_distance = 0;
  int64_t above[kBucketCount] = {};
  int64_t below[kBucketCount] = {};
  Confusion confusion{};

  void Merge(const Findings& later) {
    mismatch_count += later.mismatch_count;
    if (first < 0) first = later.first;
    if (later.worst >= 0 && (worst < 0 || later.worst_distance > worst_distance)) {
      worst = later.worst;
      worst_distance = later.worst_distance;
    }
    for (int i = 0; i < kBucketCount; ++i) above[i] += later.above[i];
    for (int i = 0; i < kBucketCount; ++i) below[i] += later.below[i];
    for (int i = 0; i < kValueClassCount; ++i) {
      for (int j = 0; j < kValueClassCount; ++j) confusion[i][j] += later.confusion[i][j];
    }
  }
};

int BucketOf(uint64_t distance) { return distance == 0 ? 0 : std::bit_width(distance - 1) + 1; }

/// Counts classes without a branch, for stretches where both sides are the same.
template <class Codes>
void CountEqual(const typename Codes::Storage* codes, int64_t count, Findings& findings) {
  constexpr bool kHasZero = !std::is_same_v<Codes, E8M0Codes>;
  uint32_t nan = 0, negative = 0, infinite = 0, negative_infinite = 0, zero = 0, negative_zero = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto code = codes[i];
    const uint32_t sign = Codes::IsNegative(code) && !Codes::IsNan(code) ? 1 : 0;
    const uint32_t is_infinite = Codes::IsInfinite(code) ? 1 : 0;
    const uint32_t is_zero = kHasZero && Codes::Magnitude(code) == 0 ? 1 : 0;
    nan += Codes::IsNan(code) ? 1 : 0;
    negative += sign;
    infinite += is_infinite;
    negative_infinite += is_infinite & sign;
    zero += is_zero;
    negative_zero += is_zero & sign;
  }
  const auto add = [&](ValueClass value_class, int64_t n) {
    findings.confusion[static_cast<int>(value_class)][static_cast<int>(value_class)] += n;
  };
  const int64_t positive = count - nan - negative;
  add(ValueClass::kNan, nan);
  add(ValueClass::kNegativeInfinity, negative_infinite);
  add(ValueClass::kNegativeZero, negative_zero);
  add(ValueClass::kNegative, int64_t(negative) - negative_infinite - negative_zero);
  add(ValueClass::kPositiveInfinity, infinite - negative_infinite);
  add(ValueClass::kPositiveZero, zero - negative_zero);
  add(ValueClass::kPositive, positive - (infinite - negative_infinite) - (zero - negative_zero));
  findings.above[0] += count - nan;
}

template <class Codes>
void CountPair(typename Codes::Storage subject, typename Codes::Storage reference, int64_t index,
               Findings& findings) {
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
    ++(is_above ? findings.above : findings.below)[BucketOf(distance)];
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
                Findings& findings) {
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

std::vector<UlpBucket> HistogramOf(const Findings& findings) {
  std::vector<UlpBucket> histogram;
  for (int i = kBucketCount - 1; i >= 1; --i) {
    if (findings.below[i] > 0)
      histogram.push_back({-BucketUpper(i), -BucketLower(i), findings.below[i]});
  }
  const int64_t equal = findings.above[0] + findings.below[0];
  if (equal > 0) histogram.push_back({0, 0, equal});
  for (int i = 1; i < kBucketCount; ++i) {
    if (findings.above[i] > 0)
      histogram.push_back({BucketLower(i), BucketUpper(i), findings.above[i]});
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

absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSameShape(subject, reference));
  if (subject.dtype() != reference.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat("subject is ", TensorText(subject),
                                                   " and reference ", TensorText(reference),
                                                   ": dtypes must be equal"));
  }
  const int64_t count = subject.element_count();
  const int64_t grain = std::max<int64_t>(int64_t(1) << 16, count / 256 + 1);
  std::vector<Findings> pieces((count + grain - 1) / grain);
  ParallelFor(context, count, grain, [&](int64_t begin, int64_t end) {
    WithCodes(subject.dtype(), [&]<class Codes>(Codes) {
      CountRange<Codes>(subject, reference, begin, end, pieces[begin / grain]);
    });
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  Findings total;
  for (const Findings& piece : pieces) total.Merge(piece);

  ParityReport report;
  report.element_count = count;
  report.mismatch_count = total.mismatch_count;
  report.equal = total.mismatch_count == 0;
  report.class_confusion = total.confusion;
  report.ulp_histogram = HistogramOf(total);
  if (!report.equal) {
    report.first = PairAt(subject, reference, total.first);
    report.worst = PairAt(subject, reference, total.worst);
    report.worst_ulp = static_cast<int64_t>(total.worst_distance);
  }
  return report;
}

}  // namespace quantgate
