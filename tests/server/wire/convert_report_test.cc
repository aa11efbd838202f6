// What a report on the wire says of an error report's blocks.
#include "server/wire/convert_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/compare/error_report.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;

TEST(ConvertReportTest, BlocksBecomeEdgesAndOneNumberEach) {
  // 33 rows in 32 blocks: all of one row but the last; columns in blocks of one.
  Tensor subject = *Tensor::Allocate(DType::kF32, {33, 2});
  Tensor reference = *Tensor::Allocate(DType::kF32, {33, 2});
  for (int i = 0; i < 66; ++i) {
    reference.as<float>()[i] = 1.0f;
    subject.as<float>()[i] = 1.0f + static_cast<float>(i);
  }
  const ErrorReport report = *MeasureError(subject, reference, ExecutionContext());
  const v1::HeatMap map = ErrorReportToProto(report).heat_map();
  ASSERT_EQ(map.rows(), 32);
  ASSERT_EQ(map.columns(), 2);
  ASSERT_EQ(map.row_edges_size(), 33);
  EXPECT_EQ(map.row_edges(0), 0);
  EXPECT_EQ(map.row_edges(31), 31);
  EXPECT_EQ(map.row_edges(32), 33);
  EXPECT_THAT(map.column_edges(), ElementsAre(0, 1, 2));
  ASSERT_EQ(map.rms_error_size(), 64);
  ASSERT_EQ(map.max_abs_error_size(), 64);
  // Element i is off by i.
  EXPECT_EQ(map.rms_error(3), 3.0);
  EXPECT_EQ(map.max_abs_error(3), 3.0);
  EXPECT_EQ(map.max_abs_error(63), 65.0);
}

TEST(ConvertReportTest, AnEmptyTensorHasNoEdges) {
  const Tensor empty = *Tensor::Allocate(DType::kF32, {0, 4});
  const v1::HeatMap map =
      ErrorReportToProto(*MeasureError(empty, empty, ExecutionContext())).heat_map();
  EXPECT_EQ(map.row_edges_size() + map.column_edges_size() + map.rms_error_size(), 0);
}

/// An infinite SQNR says that nothing errs.
TEST(ConvertReportTest, SqnrIsOfWhatWasMeasured) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, {2});
  const auto sqnr = [&](float first, float second) {
    tensor.as<float>()[0] = first;
    tensor.as<float>()[1] = second;
    return ErrorReportToProto(*MeasureError(tensor, tensor, ExecutionContext())).sqnr_db();
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sqnr(1, infinity), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(sqnr(infinity, -infinity)));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
