#include "kernels/compare/error_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/tensor/tensor_of.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ErrorReport Measure(const std::vector<float>& subject, const std::vector<float>& reference) {
  const Shape shape = {1, static_cast<int64_t>(subject.size())};
  return MeasureError(TensorOfFloats(shape, subject), TensorOfFloats(shape, reference),
                      ExecutionContext())
      .value();
}

// Errors +1, 0, -2, 1 on references 3, 5, 4, 0: worked out by hand.
TEST(MeasureErrorTest, StatisticsOfAFewNumbers) {
  const ErrorReport report = Measure({4, 5, 2, 1}, {3, 5, 4, 0});
  EXPECT_EQ(report.element_count, 4);
  EXPECT_EQ(report.non_finite_count, 0);
  EXPECT_EQ(report.max_abs, 2);
  EXPECT_THAT(report.max_abs_at.coordinate, ElementsAre(0, 2));
  EXPECT_EQ(report.mean_abs, 1);
  EXPECT_EQ(report.rms, std::sqrt(6.0 / 4));
  EXPECT_EQ(report.bias, 0);
  EXPECT_EQ(report.max_rel, 0.5);
  EXPECT_THAT(report.max_rel_at.coordinate, ElementsAre(0, 2));
  EXPECT_EQ(report.mean_rel, (1.0 / 3 + 0.5) / 3);
  EXPECT_EQ(report.sum_error_squared, 6);
  EXPECT_EQ(report.sum_reference_squared, 50);
  EXPECT_EQ(report.cosine, 45 / (std::sqrt(46.0) * std::sqrt(50.0)));
  EXPECT_EQ(report.relative_frobenius, std::sqrt(6.0) / std::sqrt(50.0));
  EXPECT_EQ(report.heat_map.rows, 1);
  EXPECT_EQ(report.heat_map.columns, 4);
  ASSERT_EQ(report.worst_blocks.size(), 3u);
  EXPECT_EQ(report.worst_blocks[0].column_begin, 2);
  EXPECT_EQ(report.worst_blocks[0].rms_error, 2);
  EXPECT_EQ(report.worst_blocks[1].column_begin, 0);  // Equal to the last: the lower index first.
  EXPECT_EQ(report.worst_blocks[2].column_begin, 3);
}

TEST(MeasureErrorTest, NonFinitePairsAreCountedAndLeftOut) {
  const ErrorReport report = Measure({kNan, 1, kInf, -kInf, 2}, {1, kNan, kInf, 5, 3});
  EXPECT_EQ(report.non_finite_count, 4);
  EXPECT_EQ(report.max_abs, 1);
  EXPECT_EQ(report.mean_abs, 1);
  EXPECT_EQ(report.bias, -1);
  EXPECT_EQ(report.sum_reference_squared, 9);
}

TEST(MeasureErrorTest, AllNonFiniteLeavesZeros) {
  const ErrorReport report = Measure({kNan, kInf}, {kNan, kInf});
  EXPECT_EQ(report.non_finite_count, 2);
  EXPECT_EQ(report.max_abs, 0);
  EXPECT_EQ(report.rms, 0);
  EXPECT_FALSE(std::signbit(report.sum_error_squared));
  EXPECT_EQ(report.relative_frobenius, 0);
}

// An error of finite numbers can be infinite; an infinite element before it is no error.
TEST(MeasureErrorTest, InfiniteErrorsOfFiniteNumbersAreFound) {
  constexpr uint64_t kInfinity = 0x7FF0000000000000, kLargest = 0x7FEFFFFFFFFFFFFF;
  std::vector<uint64_t> subject(64), reference(64);  // Blocks of two elements.
  subject[2] = kInfinity;
  subject[3] = kLargest;
  reference[3] = kLargest | uint64_t{1} << 63;
  const ErrorReport report =
      MeasureError(TensorOfCodes(DType::kF64, {1, 64}, subject),
                   TensorOfCodes(DType::kF64, {1, 64}, reference), ExecutionContext())
          .value();
  EXPECT_EQ(report.non_finite_count, 1);
  EXPECT_EQ(report.max_abs, std::numeric_limits<double>::infinity());
  EXPECT_THAT(report.max_abs_at.coordinate, ElementsAre(0, 3));
}

TEST(MeasureErrorTest, ZeroSidesHaveDefinedRatios) {
  EXPECT_EQ(Measure({0, 0}, {0, -0.0f}).cosine, 1);
  EXPECT_EQ(Measure({0, 0}, {0, 0}).relative_frobenius, 0);
  EXPECT_EQ(Measure({1, 0}, {0, 0}).relative_frobenius, std::numeric_limits<double>::infinity());
  EXPECT_EQ(Measure({1, 0}, {0, 0}).cosine, 0);
  EXPECT_EQ(Measure({1, 0}, {0, 0}).max_rel, 0);  // No reference to be relative to.
}

TEST(MeasureErrorTest, CountsSaturatedFlushedAndSubnormal) {
  // E4M3: 448, -448, 0, 2^-9 (subnormal), 7 * 2^-9 (subnormal), 2^-6 (normal), NaN.
  const Tensor subject =
      TensorOfCodes(DType::kF8E4M3, {7}, {0x7E, 0xFE, 0x80, 0x01, 0x87, 0x08, 0x7F});
  const Tensor reference = TensorOfFloats({7}, {500, -kInf, 1e-6f, 0, 0, 0, 1e9f});
  const ErrorReport report = MeasureError(subject, reference, ExecutionContext()).value();
  EXPECT_EQ(report.saturated_count, 2);
  EXPECT_EQ(report.flushed_to_zero_count, 1);
  EXPECT_EQ(report.subnormal_count, 2);
  EXPECT_EQ(report.non_finite_count, 2);
  EXPECT_EQ(report.max_abs, 52);
  EXPECT_EQ(report.max_abs_at.subject_bits, 0x7Eu);
}

TEST(MeasureErrorTest, BlocksTileTheTensor) {
  const Tensor tensor = TensorOfFloats({70, 5}, std::vector<float>(350, 1.0f));
  const ErrorReport report = MeasureError(tensor, tensor, ExecutionContext()).value();
  EXPECT_EQ(report.heat_map.rows, 32);
  EXPECT_EQ(report.heat_map.columns, 5);
  ASSERT_EQ(report.heat_map.cells.size(), 160u);
  int64_t covered = 0;
  for (const HeatMapCell& cell : report.heat_map.cells) {
    EXPECT_LT(cell.row_begin, cell.row_end);
    covered += (cell.row_end - cell.row_begin) * (cell.column_end - cell.column_begin);
  }
  EXPECT_EQ(covered, 350);
  EXPECT_EQ(report.heat_map.cells.back().row_end, 70);
  EXPECT_TRUE(report.worst_blocks.empty());
}

// A block of several stretches: what lies in a later one is found where it is, an equal maximum
// later does not move it, and the maximum of one kind does not stand for the other.
TEST(MeasureErrorTest, MaximaOfALongBlockAreAtTheirLowestIndices) {
  constexpr int64_t kBlock = 1000;  // Columns of each of the 32 cells.
  constexpr int64_t kColumns = 32 * kBlock;
  std::vector<float> subject(kColumns, 1), reference(kColumns, 1);
  const auto set = [&](int64_t at, float s, float r) { subject[at] = s, reference[at] = r; };
  set(255, 12, 8);   // Absolute 4, relative 0.5.
  set(300, 2, 1);    // Absolute 1, relative 1.
  set(511, 12, 8);   // The same as at 255.
  set(600, 2, 1);    // The same as at 300.
  set(700, 11, 8);   // Absolute 3, relative 0.375.
  set(701, 66, 64);  // Absolute 2, relative 1/32.
  const ErrorReport report = Measure(subject, reference);
  EXPECT_EQ(report.max_abs, 4);
  EXPECT_THAT(report.max_abs_at.coordinate, ElementsAre(0, 255));
  EXPECT_EQ(report.max_rel, 1);
  EXPECT_THAT(report.max_rel_at.coordinate, ElementsAre(0, 300));
  ASSERT_EQ(report.heat_map.cells.size(), 32u);
  EXPECT_EQ(report.heat_map.cells[0].column_end, kBlock);
  EXPECT_EQ(report.heat_map.cells[0].max_abs_error, 4);
  EXPECT_EQ(report.heat_map.cells[1].max_abs_error, 0);
}

TEST(MeasureErrorTest, MaximaAtTheFirstElementAreFound) {
  const ErrorReport report = Measure({3, 1, 5}, {1, 1, 4});
  EXPECT_EQ(report.max_abs, 2);
  EXPECT_THAT(report.max_abs_at.coordinate, ElementsAre(0, 0));
  EXPECT_EQ(report.max_rel, 2);
  EXPECT_THAT(report.max_rel_at.coordinate, ElementsAre(0, 0));
}

TEST(MeasureErrorTest, WorstBlocksAreTheFiveLargest) {
  const ErrorReport report = Measure({1, 7, 3, 0, 5, 2, 6, 4}, std::vector<float>(8));
  std::vector<double> errors;
  for (const HeatMapCell& block : report.worst_blocks) errors.push_back(block.rms_error);
  EXPECT_THAT(errors, ElementsAre(7, 6, 5, 4, 3));
}

TEST(MeasureErrorTest, APairHasTheValuesAndBitsOfBothTypes) {
  const ErrorReport report = MeasureError(TensorOfCodes(DType::kBF16, {1}, {0xC040}),
                                          TensorOfFloats({1}, {-2}), ExecutionContext())
                                 .value();
  EXPECT_EQ(report.max_abs_at.subject, -3);
  EXPECT_EQ(report.max_abs_at.reference, -2);
  EXPECT_EQ(report.max_abs_at.subject_bits, 0xC040u);
  EXPECT_EQ(report.max_abs_at.reference_bits, 0xC0000000u);
}

TEST(MeasureErrorTest, ScalesHaveALargestValueAndNoSubnormals) {
  // 2^-127, 2^127; the reference of the second is 2^128.
  const ErrorReport report =
      MeasureError(TensorOfCodes(DType::kF8E8M0, {2}, {0x00, 0xFE}),
                   TensorOfCodes(DType::kF64, {2}, {0x3800000000000000, 0x47F0000000000000}),
                   ExecutionContext())
          .value();
  EXPECT_EQ(report.subnormal_count, 0);
  EXPECT_EQ(report.saturated_count, 1);
}

TEST(MeasureErrorTest, StopsWhenCancelled) {
  Cancellation cancellation;
  cancellation.Cancel();
  ExecutionContext context;
  context.cancellation = &cancellation;
  const Tensor tensor = TensorOfFloats({2}, {1, 2});
  EXPECT_EQ(MeasureError(tensor, tensor, context).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(MeasureNearer(tensor, tensor, tensor, context).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(MeasureErrorTest, EmptyTensor) {
  const ErrorReport report =
      MeasureError(TensorOfFloats({0, 4}, {}), TensorOfFloats({0, 4}, {}), ExecutionContext())
          .value();
  EXPECT_EQ(report.element_count, 0);
  EXPECT_EQ(report.heat_map.rows, 0);
  EXPECT_EQ(report.cosine, 1);
}

// The sum that docs/reports.md section 2 prescribes, written level by level, for a tensor of
// one block row and column each.
double SumByLevels(std::vector<double> values) {
  size_t size = 1;
  while (size < values.size()) size *= 2;
  values.resize(size, -0.0);
  for (; size > 1; size /= 2) {
    for (size_t i = 0; i < size / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
  }
  return values[0];
}

TEST(MeasureErrorTest, SumsArePairwiseWithinBlocksForEveryThreadCount) {
  constexpr int64_t kRows = 45, kColumns = 4100;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> subject(kRows * kColumns), reference(kRows * kColumns);
  for (float& x : reference) x = normal(random);
  for (size_t i = 0; i < subject.size(); ++i) {
    subject[i] = random() % 50 == 0 ? kNan : reference[i] * (1 + 0.01f * normal(random));
  }
  const Tensor s = TensorOfFloats({kRows, kColumns}, subject);
  const Tensor r = TensorOfFloats({kRows, kColumns}, reference);
  const ErrorReport report = MeasureError(s, r, ExecutionContext()).value();
  double squared = 0, absolute = 0;
  for (const HeatMapCell& cell : report.heat_map.cells) {
    std::vector<double> squares, magnitudes;
    for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
      for (int64_t column = cell.column_begin; column < cell.column_end; ++column) {
        const double x = subject[row * kColumns + column];
        const double error = x - reference[row * kColumns + column];
        squares.push_back(std::isnan(x) ? -0.0 : error * error);
        magnitudes.push_back(std::isnan(x) ? -0.0 : std::fabs(error));
      }
    }
    squared += SumByLevels(squares);
    absolute += SumByLevels(magnitudes);
  }
  EXPECT_EQ(report.sum_error_squared, squared);
  EXPECT_EQ(report.mean_abs,
            absolute / static_cast<double>(report.element_count - report.non_finite_count));
  for (const Isa isa : RunnableIsas()) {
    ExecutionContext context;
    context.threads = isa == Isa::kAvx2 ? 3 : 1;
    context.isa = isa;
    const ErrorReport again = MeasureError(s, r, context).value();
    EXPECT_EQ(again.sum_error_squared, report.sum_error_squared);
    EXPECT_EQ(again.cosine, report.cosine);
    EXPECT_EQ(again.bias, report.bias);
    EXPECT_EQ(again.mean_rel, report.mean_rel);
    EXPECT_EQ(again.max_abs_at.coordinate, report.max_abs_at.coordinate);
    EXPECT_EQ(again.max_rel_at.coordinate, report.max_rel_at.coordinate);
  }
}

TEST(MeasureErrorTest, DecodesEveryFloatingType) {
  const std::vector<std::pair<DType, uint64_t>> minus_three = {{DType::kF64, 0xC008000000000000},
                                                               {DType::kF32, 0xC0400000},
                                                               {DType::kBF16, 0xC040},
                                                               {DType::kF16, 0xC200},
                                                               {DType::kF8E4M3, 0xC4},
                                                               {DType::kF8E5M2, 0xC2},
                                                               {DType::kF8E4M3Fnuz, 0xCC},
                                                               {DType::kF8E5M2Fnuz, 0xC6}};
  for (const auto& [dtype, code] : minus_three) {
    const ErrorReport report = MeasureError(TensorOfCodes(dtype, {1}, {code}),
                                            TensorOfFloats({1}, {-2}), ExecutionContext())
                                   .value();
    EXPECT_EQ(report.bias, -1) << DTypeName(dtype);
  }
}

TEST(MeasureErrorTest, TheNanOfFnuzFormatsIsNotFinite) {
  const Tensor subject = TensorOfCodes(DType::kF8E4M3Fnuz, {3}, {0x40, 0x48, 0x80});
  const ErrorReport report =
      MeasureError(subject, TensorOfFloats({3}, {1, 1, 1}), ExecutionContext()).value();
  EXPECT_EQ(report.non_finite_count, 1);
  EXPECT_EQ(report.max_abs, 1);
}

TEST(MeasureErrorTest, RefusesIntegersAndDifferentShapes) {
  const Tensor floats = TensorOfFloats({2}, {1, 2});
  EXPECT_FALSE(
      MeasureError(TensorOfCodes(DType::kU8, {2}, {1, 2}), floats, ExecutionContext()).ok());
  EXPECT_FALSE(MeasureError(floats, TensorOfFloats({1}, {1}), ExecutionContext()).ok());
}

TEST(MeasureNearerTest, CountsWhoIsNearer) {
  // Nearer: subject, reference, tie at equal distance, tie with equal bits.
  const Tensor subject = TensorOfFloats({2, 2}, {1, 3, 2, 7});
  const Tensor reference = TensorOfFloats({2, 2}, {3, 1, 4, 7});
  const Tensor truth = TensorOfFloats({2, 2}, {1.5, 1.5, 3, 6});
  const NearerReport report = MeasureNearer(subject, reference, truth, ExecutionContext()).value();
  EXPECT_EQ(report.subject_nearer, 1);
  EXPECT_EQ(report.reference_nearer, 1);
  EXPECT_EQ(report.tied, 2);
  EXPECT_EQ(report.subject_rms, std::sqrt((0.25 + 2.25 + 1 + 1) / 4));
  EXPECT_EQ(report.reference_rms, std::sqrt((2.25 + 0.25 + 1 + 1) / 4));
}

TEST(MeasureNearerTest, ClassDecidesWhereNotFinite) {
  const std::vector<float> subject = {kNan, kInf, 1, kNan, kInf, 5};
  const std::vector<float> reference = {1, 1, kNan, kNan, -kInf, kInf};
  const std::vector<float> truth = {kNan, 2, 2, 1, -kInf, 6};
  // Nearer: subject (NaN is right), reference, subject, neither, reference, subject.
  const NearerReport report =
      MeasureNearer(TensorOfFloats({6}, subject), TensorOfFloats({6}, reference),
                    TensorOfFloats({6}, truth), ExecutionContext())
          .value();
  EXPECT_EQ(report.subject_nearer, 3);
  EXPECT_EQ(report.reference_nearer, 2);
  EXPECT_EQ(report.tied, 1);
  EXPECT_EQ(report.subject_rms, 0);
}

TEST(MeasureNearerTest, OneFiniteElementHasAnRms) {
  const NearerReport report = MeasureNearer(TensorOfFloats({1}, {3}), TensorOfFloats({1}, {5}),
                                            TensorOfFloats({1}, {1}), ExecutionContext())
                                  .value();
  EXPECT_EQ(report.subject_rms, 2);
  EXPECT_EQ(report.reference_rms, 4);
}

TEST(MeasureNearerTest, RefusesIntegersShapesAndATruthOfAnotherType) {
  const ExecutionContext context;
  const Tensor floats = TensorOfFloats({2}, {1, 2}), longer = TensorOfFloats({3}, {1, 2, 3});
  const Tensor integers = TensorOfCodes(DType::kU8, {2}, {1, 2});
  const Tensor wide = TensorOfCodes(DType::kF64, {2}, {1, 2});
  const auto code = [&](const Tensor& subject, const Tensor& reference, const Tensor& truth) {
    return MeasureNearer(subject, reference, truth, context).status().code();
  };
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(integers, floats, floats), kRefused);
  EXPECT_EQ(code(floats, integers, floats), kRefused);
  EXPECT_EQ(code(floats, floats, integers), kRefused);
  EXPECT_EQ(code(floats, longer, floats), kRefused);
  EXPECT_EQ(code(floats, floats, longer), kRefused);
  EXPECT_EQ(code(floats, floats, wide), kRefused);
  EXPECT_EQ(code(floats, floats, Tensor()), kRefused);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
