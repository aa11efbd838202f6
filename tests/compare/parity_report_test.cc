#include "kernels/compare/parity_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "tests/tensor/tensor_of.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kNan = std::numeric_limits<int64_t>::max();

ParityReport Compare(DType dtype, const std::vector<uint64_t>& subject,
                     const std::vector<uint64_t>& reference) {
  const Shape shape = {static_cast<int64_t>(subject.size())};
  return CompareBits(TensorOfCodes(dtype, shape, subject), TensorOfCodes(dtype, shape, reference),
                     ExecutionContext())
      .value();
}

int64_t Confusion(const ParityReport& report, ValueClass subject, ValueClass reference) {
  return report.class_confusion[static_cast<int>(subject)][static_cast<int>(reference)];
}

TEST(CompareBitsTest, EqualTensorsCountEveryClassOnTheDiagonal) {
  // -Inf, -1, -0, +0, smallest subnormal, +Inf, NaN, NaN with sign and payload.
  const std::vector<uint64_t> codes = {0xFF80, 0xBF80, 0x8000, 0x0000,
                                       0x0001, 0x7F80, 0x7FC0, 0xFFC1};
  const ParityReport report = Compare(DType::kBF16, codes, codes);
  EXPECT_TRUE(report.equal);
  EXPECT_EQ(report.element_count, 8);
  EXPECT_EQ(report.mismatch_count, 0);
  for (ValueClass value_class :
       {ValueClass::kNegativeInfinity, ValueClass::kNegative, ValueClass::kNegativeZero,
        ValueClass::kPositiveZero, ValueClass::kPositive, ValueClass::kPositiveInfinity}) {
    EXPECT_EQ(Confusion(report, value_class, value_class), 1) << ValueClassName(value_class);
  }
  EXPECT_EQ(Confusion(report, ValueClass::kNan, ValueClass::kNan), 2);
  ASSERT_EQ(report.ulp_histogram.size(), 1u);
  EXPECT_EQ(report.ulp_histogram[0].count, 6);
}

TEST(CompareBitsTest, SignOfZeroDiffersAtDistanceZero) {
  const ParityReport report = Compare(DType::kF32, {0x80000000}, {0x00000000});
  EXPECT_FALSE(report.equal);
  EXPECT_EQ(report.mismatch_count, 1);
  EXPECT_EQ(report.worst_ulp, 0);
  EXPECT_EQ(Confusion(report, ValueClass::kNegativeZero, ValueClass::kPositiveZero), 1);
  ASSERT_EQ(report.ulp_histogram.size(), 1u);
  EXPECT_EQ(report.ulp_histogram[0].upper, 0);
}

TEST(CompareBitsTest, NanPayloadDiffersWithoutADistance) {
  const ParityReport report = Compare(DType::kF16, {0x7E00, 0x3C00}, {0x7FFF, 0x3C00});
  EXPECT_FALSE(report.equal);
  EXPECT_EQ(report.mismatch_count, 1);
  EXPECT_EQ(report.worst_ulp, 0);
  EXPECT_EQ(Confusion(report, ValueClass::kNan, ValueClass::kNan), 1);
  ASSERT_EQ(report.ulp_histogram.size(), 1u);
  EXPECT_EQ(report.ulp_histogram[0].count, 1);  // The equal pair alone.
}

TEST(CompareBitsTest, NanAgainstANumberIsWorst) {
  const ParityReport report =
      Compare(DType::kF8E4M3, {0x00, 0x7E, 0x7F, 0x7F}, {0x00, 0xFE, 0x7E, 0x01});
  EXPECT_EQ(report.mismatch_count, 3);
  EXPECT_EQ(report.worst_ulp, kNan);
  EXPECT_THAT(report.first.coordinate, ElementsAre(1));
  EXPECT_EQ(report.first.subject, 448);
  EXPECT_EQ(report.first.reference, -448);
  EXPECT_THAT(report.worst.coordinate, ElementsAre(2));
  EXPECT_EQ(report.worst.subject_bits, 0x7Fu);
}

TEST(CompareBitsTest, IntegersHaveASign) {
  for (const auto& [dtype, minus_one] :
       std::vector<std::pair<DType, uint64_t>>{{DType::kI8, 0xFF},
                                               {DType::kI16, 0xFFFF},
                                               {DType::kI32, 0xFFFFFFFF},
                                               {DType::kI64, 0xFFFFFFFFFFFFFFFF}}) {
    const ParityReport report = Compare(dtype, {minus_one, 0}, {2, 0});
    EXPECT_EQ(report.worst_ulp, 3) << DTypeName(dtype);
    EXPECT_EQ(report.first.subject, -1);
    EXPECT_EQ(Confusion(report, ValueClass::kNegative, ValueClass::kPositive), 1);
    EXPECT_EQ(Confusion(report, ValueClass::kPositiveZero, ValueClass::kPositiveZero), 1);
  }
  EXPECT_EQ(Compare(DType::kU8, {0xFF}, {2}).worst_ulp, 253);
  EXPECT_EQ(Compare(DType::kI8, {0x80}, {0x7F}).worst_ulp, 255);
}

TEST(CompareBitsTest, TheNanOfFnuzFormatsIsNoZero) {
  const ParityReport report = Compare(DType::kF8E4M3Fnuz, {0x80, 0x80}, {0x80, 0x00});
  EXPECT_EQ(report.worst_ulp, kNan);
  EXPECT_EQ(Confusion(report, ValueClass::kNan, ValueClass::kNan), 1);
  EXPECT_EQ(Confusion(report, ValueClass::kNan, ValueClass::kPositiveZero), 1);
  EXPECT_EQ(Compare(DType::kF8E5M2Fnuz, {0x7F}, {0x7E}).worst_ulp, 1);
}

TEST(CompareBitsTest, DistancesFallInDoublingSignedBuckets) {
  // Around 1.0 in f32: +1, +2, +3, +4, +5, +8, +9, -1, -4.
  const uint64_t one = 0x3F800000;
  std::vector<uint64_t> subject;
  for (int64_t step : {1, 2, 3, 4, 5, 8, 9, -1, -4}) subject.push_back(one + step);
  const ParityReport report =
      Compare(DType::kF32, subject, std::vector<uint64_t>(subject.size(), one));
  std::map<std::pair<int64_t, int64_t>, int64_t> histogram;
  std::vector<int64_t> lowers;
  for (const UlpBucket& bucket : report.ulp_histogram) {
    histogram[{bucket.lower, bucket.upper}] = bucket.count;
    lowers.push_back(bucket.lower);
  }
  const std::map<std::pair<int64_t, int64_t>, int64_t> expected = {
      {{-4, -3}, 1}, {{-1, -1}, 1}, {{1, 1}, 1}, {{2, 2}, 1},
      {{3, 4}, 2},   {{5, 8}, 2},   {{9, 16}, 1}};
  EXPECT_EQ(histogram, expected);
  EXPECT_TRUE(std::is_sorted(lowers.begin(), lowers.end()));
  EXPECT_EQ(report.worst_ulp, 9);
  EXPECT_THAT(report.worst.coordinate, ElementsAre(6));
}

TEST(CompareBitsTest, DistanceCrossesZeroAndCountsInfinityAsTheNextCode) {
  // Smallest subnormals on both sides: 2 apart. Largest finite E5M2 to infinity: 1.
  EXPECT_EQ(Compare(DType::kF8E5M2, {0x01}, {0x81}).worst_ulp, 2);
  EXPECT_EQ(Compare(DType::kF8E5M2, {0x7C}, {0x7B}).worst_ulp, 1);
  EXPECT_EQ(Compare(DType::kF8E4M3, {0xFE}, {0x7E}).worst_ulp, 2 * 126);
  // Below: negative numbers order the other way round.
  const ParityReport below = Compare(DType::kF16, {0xBC01}, {0xBC00});
  ASSERT_EQ(below.ulp_histogram.size(), 1u);
  EXPECT_EQ(below.ulp_histogram[0].lower, -1);
}

TEST(CompareBitsTest, DistancesOfWideTypesStayBelowTheNanMark) {
  EXPECT_EQ(Compare(DType::kF64, {0x7FEFFFFFFFFFFFFF}, {0xFFEFFFFFFFFFFFFF}).worst_ulp, kNan - 1);
  EXPECT_EQ(Compare(DType::kI64, {0x7FFFFFFFFFFFFFFF}, {0x8000000000000000}).worst_ulp, kNan - 1);
  EXPECT_EQ(Compare(DType::kF64, {0x3FF0000000000000}, {0x3FF0000000000003}).worst_ulp, 3);
}

TEST(CompareBitsTest, TheWidestDistancesHaveTheOutermostBuckets) {
  const uint64_t largest = 0x7FEFFFFFFFFFFFFF, lowest = 0xFFEFFFFFFFFFFFFF;
  // In two pieces of 2^16 elements, so that their buckets are added too.
  constexpr int64_t kCount = (int64_t{1} << 16) + 1;
  std::vector<uint64_t> subject(kCount), reference(kCount);
  subject.front() = reference.back() = lowest;
  subject.back() = reference.front() = largest;
  const ParityReport report = Compare(DType::kF64, subject, reference);
  ASSERT_EQ(report.ulp_histogram.size(), 3u);
  constexpr int64_t kFrom = (int64_t{1} << 62) + 1;
  EXPECT_EQ(report.ulp_histogram.front().lower, -kNan);
  EXPECT_EQ(report.ulp_histogram.front().upper, -kFrom);
  EXPECT_EQ(report.ulp_histogram.front().count, 1);
  EXPECT_EQ(report.ulp_histogram[1].count, kCount - 2);
  EXPECT_EQ(report.ulp_histogram.back().lower, kFrom);
  EXPECT_EQ(report.ulp_histogram.back().upper, kNan);
  EXPECT_EQ(report.ulp_histogram.back().count, 1);
}

// Element 0 differs, and elements of its piece and of the next one do so more and less.
TEST(CompareBitsTest, FirstAndWorstOfSeveralPieces) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  const std::vector<uint64_t> zeros(2 * kPiece);
  std::vector<uint64_t> codes = zeros;
  codes[0] = 5;
  codes[1] = 3;
  codes[kPiece] = 4;
  ParityReport report = Compare(DType::kU8, codes, zeros);
  EXPECT_THAT(report.first.coordinate, ElementsAre(0));
  EXPECT_THAT(report.worst.coordinate, ElementsAre(0));
  codes[kPiece + 1] = 6;
  report = Compare(DType::kU8, codes, zeros);
  EXPECT_THAT(report.first.coordinate, ElementsAre(0));
  EXPECT_THAT(report.worst.coordinate, ElementsAre(kPiece + 1));
  EXPECT_EQ(report.worst_ulp, 6);
  EXPECT_EQ(report.worst.reference_bits, 0u);
  report = Compare(DType::kU8, zeros, codes);
  EXPECT_EQ(report.worst.subject_bits, 0u);
  EXPECT_EQ(report.worst.reference_bits, 6u);
}

TEST(CompareBitsTest, StopsWhenCancelled) {
  Cancellation cancellation;
  cancellation.Cancel();
  ExecutionContext context;
  context.cancellation = &cancellation;
  const Tensor tensor = TensorOfCodes(DType::kU8, {2}, {1, 2});
  EXPECT_EQ(CompareBits(tensor, tensor, context).status().code(), absl::StatusCode::kCancelled);
}

TEST(CompareBitsTest, CodesWithoutASignCompareAsUnsigned) {
  const ParityReport packed = Compare(DType::kF4E2M1x2, {0x80, 0x10}, {0x00, 0x10});
  EXPECT_EQ(packed.mismatch_count, 1);
  EXPECT_EQ(packed.worst_ulp, 128);
  EXPECT_EQ(Confusion(packed, ValueClass::kPositive, ValueClass::kPositiveZero), 1);
  const ParityReport scales = Compare(DType::kF8E8M0, {0x00, 0xFF}, {0x01, 0x7F});
  EXPECT_EQ(scales.worst_ulp, kNan);
  EXPECT_EQ(Confusion(scales, ValueClass::kPositive, ValueClass::kPositive), 1);
  EXPECT_EQ(Confusion(scales, ValueClass::kNan, ValueClass::kPositive), 1);
  EXPECT_EQ(scales.first.reference, 0x1p-126);
}

TEST(CompareBitsTest, CoordinatesFollowTheShape) {
  const Tensor subject = TensorOfCodes(DType::kU8, {2, 3, 2}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 9});
  const Tensor reference = TensorOfCodes(DType::kU8, {2, 3, 2}, std::vector<uint64_t>(12));
  const ParityReport report = CompareBits(subject, reference, ExecutionContext()).value();
  EXPECT_THAT(report.first.coordinate, ElementsAre(1, 1, 1));
  EXPECT_THAT(report.worst.coordinate, ElementsAre(1, 2, 1));
}

TEST(CompareBitsTest, EmptyTensorsAreEqual) {
  const ParityReport report = Compare(DType::kF32, {}, {});
  EXPECT_TRUE(report.equal);
  EXPECT_TRUE(report.ulp_histogram.empty());
}

TEST(CompareBitsTest, RefusesDifferentShapesAndTypes) {
  const Tensor a = TensorOfCodes(DType::kU8, {2, 2}, {1, 2, 3, 4});
  const Tensor b = TensorOfCodes(DType::kU8, {4}, {1, 2, 3, 4});
  const Tensor c = TensorOfCodes(DType::kF8E4M3, {2, 2}, {1, 2, 3, 4});
  const absl::Status shapes = CompareBits(a, b, ExecutionContext()).status();
  EXPECT_EQ(shapes.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shapes.message()), HasSubstr("2x2"));
  EXPECT_EQ(CompareBits(a, c, ExecutionContext()).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto message = [](const Tensor& subject, const Tensor& reference) {
    return std::string(CompareBits(subject, reference, ExecutionContext()).status().message());
  };
  EXPECT_THAT(message(a, Tensor()), HasSubstr("reference is absent"));
  EXPECT_THAT(message(Tensor(), a), HasSubstr("subject is absent"));
}

// Over many threads, with stretches that are equal and stretches that are not, against a plain
// count of E5M2 pairs.
TEST(CompareBitsTest, LargeTensorsMatchAPlainCountForEveryThreadCount) {
  constexpr int64_t kCount = 300'001;
  std::mt19937 random(7);
  std::vector<uint64_t> subject(kCount), reference(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    reference[i] = random() & 0xFF;
    const bool noisy = (i / 5000) % 3 == 0 && random() % 4 == 0;
    subject[i] = noisy ? random() & 0xFF : reference[i];
  }
  const auto is_nan = [](uint64_t code) { return (code & 0x7F) > 0x7C; };
  const auto order = [](uint64_t code) {
    const int64_t magnitude = code & 0x7F;
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  };
  int64_t mismatches = 0, worst = -1, worst_at = -1, counted = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const bool s_nan = is_nan(subject[i]), r_nan = is_nan(reference[i]);
    counted += !s_nan && !r_nan;
    if (subject[i] == reference[i]) continue;
    ++mismatches;
    const int64_t distance = s_nan != r_nan   ? kNan
                             : s_nan && r_nan ? 0
                                              : std::abs(order(subject[i]) - order(reference[i]));
    if (distance > worst) {
      worst = distance;
      worst_at = i;
    }
  }
  const Tensor s = TensorOfCodes(DType::kF8E5M2, {kCount}, subject);
  const Tensor r = TensorOfCodes(DType::kF8E5M2, {kCount}, reference);
  for (int threads : {1, 2, 7}) {
    ExecutionContext context;
    context.threads = threads;
    const ParityReport report = CompareBits(s, r, context).value();
    EXPECT_EQ(report.mismatch_count, mismatches);
    EXPECT_EQ(report.worst_ulp, worst);
    EXPECT_THAT(report.worst.coordinate, ElementsAre(worst_at));
    int64_t in_histogram = 0, in_confusion = 0;
    for (const UlpBucket& bucket : report.ulp_histogram) in_histogram += bucket.count;
    for (const auto& row : report.class_confusion) {
      for (int64_t count : row) in_confusion += count;
    }
    EXPECT_EQ(in_histogram, counted);
    EXPECT_EQ(in_confusion, kCount);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
