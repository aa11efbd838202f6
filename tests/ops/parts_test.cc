// Columns put side by side, and slices: byte for byte, by an index of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/elementwise/elementwise.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Elements that count up from `first`.
template <class T>
Tensor Counting(DType dtype, Shape shape, int first) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    tensor.as<T>()[i] = static_cast<T>(first + i);
  }
  return tensor;
}

TEST(ConcatenateColumns, PutsPartsSideBySide) {
  // [2][2][w] for each part; the value of element (i, w) of part p is 1000 p + i * width + w.
  const int widths[] = {3, 0, 1, 5};
  std::vector<Tensor> parts;
  for (int p = 0; p < 4; ++p) {
    parts.push_back(Counting<int16_t>(DType::kI16, {2, 2, widths[p]}, 1000 * p));
  }
  const Tensor whole = *ConcatenateColumnsCpu(parts, {});
  ASSERT_EQ(TensorText(whole), "i16[2x2x9]");
  const auto* at = whole.as<int16_t>();
  for (int row = 0; row < 4; ++row) {
    for (int p = 0; p < 4; ++p) {
      for (int w = 0; w < widths[p]; ++w) {
        ASSERT_EQ(*at++, 1000 * p + row * widths[p] + w) << row << " " << p << " " << w;
      }
    }
  }
}

TEST(ConcatenateColumns, OfVectorsAndOfNoRows) {
  const Tensor joined = *ConcatenateColumnsCpu(
      {{Counting<uint8_t>(DType::kF8E4M3, {2}, 0), Counting<uint8_t>(DType::kF8E4M3, {3}, 2)}}, {});
  ASSERT_EQ(TensorText(joined), "f8_e4m3[5]");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(joined.as<uint8_t>()[i], i);
  const Tensor none = Counting<float>(DType::kF32, {0, 4}, 0);
  EXPECT_EQ(TensorText(*ConcatenateColumnsCpu({{none, none}}, {})), "f32[0x8]");
}

TEST(ConcatenateColumns, Refuses) {
  const auto message = [](const std::vector<Tensor>& parts) {
    return std::string(ConcatenateColumnsCpu(parts, {}).status().message());
  };
  const Tensor part = Counting<float>(DType::kF32, {2, 4}, 0);
  EXPECT_THAT(message({}), HasSubstr("at least one"));
  EXPECT_THAT(message({part, Counting<float>(DType::kF32, {3, 4}, 0)}),
              AllOf(HasSubstr("parts[1] is f32[3x4]"), HasSubstr("f32[2x4]")));
  EXPECT_THAT(message({part, Counting<uint16_t>(DType::kBF16, {2, 4}, 0)}),
              HasSubstr("parts[1] is bf16"));
  EXPECT_THAT(message({part, Tensor()}), HasSubstr("parts[1] is absent"));
  EXPECT_THAT(message({Counting<float>(DType::kF32, {}, 0)}), HasSubstr("parts[0] is a scalar"));
}

TEST(Slice, TakesIndicesOfAnyDim) {
  const Tensor source = Counting<int32_t>(DType::kI32, {3, 4, 5}, 0);
  for (int dim = 0; dim < 3; ++dim) {
    const int64_t size = source.shape()[dim];
    for (int64_t begin = 0; begin <= size; ++begin) {
      for (int64_t count = 0; begin + count <= size; ++count) {
        const Tensor slice = *SliceCpu(source, dim, begin, count, {});
        Shape shape = {3, 4, 5};
        shape[dim] = count;
        ASSERT_EQ(slice.shape(), shape);
        const auto* at = slice.as<int32_t>();
        for (int64_t i = 0; i < shape[0]; ++i) {
          for (int64_t j = 0; j < shape[1]; ++j) {
            for (int64_t k = 0; k < shape[2]; ++k) {
              const int64_t from[3] = {i + (dim == 0) * begin, j + (dim == 1) * begin,
                                       k + (dim == 2) * begin};
              ASSERT_EQ(*at++, (from[0] * 4 + from[1]) * 5 + from[2]);
            }
          }
        }
      }
    }
  }
}

TEST(Slice, OfManyRows) {
  const Tensor source = Counting<uint16_t>(DType::kBF16, {3000, 700}, 0);
  const Tensor slice = *SliceCpu(source, 1, 13, 687, {BestIsa(), 4});
  for (int64_t row = 0; row < 3000; ++row) {
    ASSERT_EQ(std::memcmp(slice.as<uint16_t>() + row * 687, source.as<uint16_t>() + row * 700 + 13,
                          687 * 2),
              0)
        << row;
  }
}

TEST(Slice, Refuses) {
  const Tensor source = Counting<float>(DType::kF32, {2, 4}, 0);
  const auto message = [&](int dim, int64_t begin, int64_t count) {
    return std::string(SliceCpu(source, dim, begin, count, {}).status().message());
  };
  EXPECT_THAT(message(2, 0, 1), AllOf(HasSubstr("dim is 2"), HasSubstr("f32[2x4]")));
  EXPECT_THAT(message(-1, 0, 1), HasSubstr("dim is -1"));
  EXPECT_THAT(message(1, 3, 2), AllOf(HasSubstr("2 from 3"), HasSubstr("the 4 of dim 1")));
  EXPECT_THAT(message(0, -1, 1), HasSubstr("1 from -1"));
  EXPECT_THAT(message(0, 1, -1), HasSubstr("-1 from 1"));
  EXPECT_THAT(message(0, 1, INT64_MAX), HasSubstr("must lie within"));
  EXPECT_THAT(std::string(SliceCpu(Tensor(), 0, 0, 0, {}).status().message()),
              HasSubstr("source is absent"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
