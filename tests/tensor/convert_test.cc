// Casts between element types against the boundaries found with ml_dtypes and the compiler's own
// conversions; transpositions and column sums against their definitions, on every path.
#include "kernels/tensor/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/pairwise.h"
#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/tensor/transpose.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

struct Path {
  Isa isa;
  int threads;
};

std::vector<ExecutionContext> EveryPath() {
  std::vector<ExecutionContext> contexts;
  for (const Isa isa : RunnableIsas()) {
    for (const int threads : {1, 2}) {
      ExecutionContext context;
      context.isa = isa;
      context.threads = threads;
      contexts.push_back(context);
    }
  }
  return contexts;
}

/// Floats that sit on, just below and just above every bf16 and f16 boundary of a stretch of
/// exponents, and specials.
std::vector<float> AwkwardFloats() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               std::bit_cast<float>(0xFFFFFFFFu),
                               std::bit_cast<float>(0x7F800001u),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min()};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0x17FFFu, 0x18000u, 0x18001u,
                                    0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFFFu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) {
        values.push_back(std::bit_cast<float>(sign | exponent << 23 | mantissa));
      }
    }
  }
  return values;
}

Tensor FloatTensor(const std::vector<float>& values) {
  return *Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(values.size())},
                            std::as_bytes(std::span(values)));
}

TEST(CastTensor, F32ToSixteenBits) {
  const std::vector<float> values = AwkwardFloats();
  const Tensor bf16 = *CastTensor(FloatTensor(values), DType::kBF16, {});
  const Tensor f16 = *CastTensor(FloatTensor(values), DType::kF16, {});
  for (size_t i = 0; i < values.size(); ++i) {
    // EncodeFloat is exhaustively tested; the branch-free rounding must equal it.
    EXPECT_EQ(bf16.as<uint16_t>()[i], EncodeFloat<BFloat16>(values[i])) << values[i];
    const auto half = static_cast<_Float16>(values[i]);
    const uint16_t expected = std::isnan(values[i]) ? 0x7FFF : std::bit_cast<uint16_t>(half);
    EXPECT_EQ(f16.as<uint16_t>()[i], expected) << values[i];
  }
}

TEST(CastTensor, WideningIsExactAndCanonical) {
  std::vector<uint16_t> codes(1 << 16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  const auto bytes = std::as_bytes(std::span(codes));
  const Tensor from_f16 =
      *CastTensor(*Tensor::FromBytes(DType::kF16, {1 << 16}, bytes), DType::kF32, {});
  const Tensor from_bf16 =
      *CastTensor(*Tensor::FromBytes(DType::kBF16, {1 << 16}, bytes), DType::kF32, {});
  for (size_t i = 0; i < codes.size(); ++i) {
    const float half = static_cast<float>(std::bit_cast<_Float16>(codes[i]));
    const float brain = std::bit_cast<float>(uint32_t{codes[i]} << 16);
    const auto bits = [](float value) {
      return std::isnan(value) ? 0x7FFFFFFFu : std::bit_cast<uint32_t>(value);
    };
    ASSERT_EQ(from_f16.as<uint32_t>()[i], bits(half)) << i;
    ASSERT_EQ(from_bf16.as<uint32_t>()[i], bits(brain)) << i;
  }
}

TEST(CastTensor, F64RoundsOnce) {
  const double values[] = {1.0 + 0x1p-8 + 0x1p-40, 1e300, -1e-300, 448.0 + 16.0 + 0x1p-40};
  const Tensor x = *Tensor::FromBytes(DType::kF64, {4}, std::as_bytes(std::span(values)));
  EXPECT_EQ(CastTensor(x, DType::kBF16, {})->as<uint16_t>()[0], 0x3F81);
  EXPECT_EQ(CastTensor(x, DType::kF32, {})->as<float>()[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(CastTensor(x, DType::kF32, {})->as<uint32_t>()[2], 0x80000000u);
  EXPECT_EQ(CastTensor(x, DType::kF8E4M3, {})->as<uint8_t>()[3], 0x7E);
}

TEST(CastTensor, SameTypeSharesAndOthersAreRefused) {
  const Tensor x = *Tensor::Allocate(DType::kF32, {3});
  EXPECT_EQ(CastTensor(x, DType::kF32, {})->data(), x.data());
  EXPECT_THAT(std::string(CastTensor(x, DType::kI64, {}).status().message()),
              HasSubstr("out_dtype is i64: f32 cannot be cast to it"));
  EXPECT_FALSE(CastTensor(*Tensor::Allocate(DType::kF8E8M0, {3}), DType::kF32, {}).ok());
}

TEST(Transpose2d, EverySizeOnEveryPath) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32}) {
    const int64_t bytes = DTypeBytes(dtype);
    for (const ExecutionContext& context : EveryPath()) {
      for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{0, 5},
                                                                                  {1, 1},
                                                                                  {3, 2},
                                                                                  {16, 16},
                                                                                  {15, 17},
                                                                                  {64, 64},
                                                                                  {63, 65},
                                                                                  {130, 70},
                                                                                  {1, 200},
                                                                                  {200, 1},
                                                                                  {5, 0}}) {
        Tensor x = *Tensor::Allocate(dtype, {rows, columns});
        for (size_t i = 0; i < x.byte_size(); ++i)
          x.as<uint8_t>()[i] = static_cast<uint8_t>(i * 37 + i / 251);
        const Tensor t = *Transpose2d(x, context);
        ASSERT_EQ(t.shape(), (Shape{columns, rows}));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            ASSERT_EQ(std::memcmp(t.data() + (c * rows + r) * bytes,
                                  x.data() + (r * columns + c) * bytes, bytes),
                      0)
                << rows << "x" << columns << " at " << r << "," << c << " " << IsaName(context.isa);
          }
        }
      }
    }
  }
  EXPECT_FALSE(Transpose2d(*Tensor::Allocate(DType::kF64, {2, 2}), {}).ok());
}

TEST(TransposeMatrix, MovesAMatrixWithinLargerOnesAndNothingBeside) {
  constexpr int64_t kIn = 150, kOut = 140;
  std::vector<uint16_t> in(130 * kIn);
  std::iota(in.begin(), in.end(), uint16_t{1});
  for (const int64_t rows : {1, 16, 32, 70, 130}) {
    for (const int64_t columns : {1, 8, 64, 129}) {
      std::vector<uint16_t> out(130 * kOut, 0);
      TransposeMatrix(in.data(), kIn, rows, columns, out.data(), kOut);
      for (int64_t c = 0; c < 130; ++c) {
        for (int64_t r = 0; r < kOut; ++r) {
          const bool is_inside = r < rows && c < columns;
          ASSERT_EQ(out[c * kOut + r], is_inside ? in[r * kIn + c] : 0) << rows << "x" << columns;
        }
      }
    }
  }
}

TEST(ColumnSums, IsThePairwiseSumOfEachColumn) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 3}, {2, 300}, {7, 5}, {8, 9}, {9, 257}, {255, 3}, {256, 1}, {1000, 17}}) {
      const Tensor x = *Generate({.seed = 8, .dtype = dtype, .shape = {rows, columns}}, {});
      const Tensor wide = *CastTensor(x, DType::kF32, {});
      for (const ExecutionContext& context : EveryPath()) {
        const Tensor sums = *ColumnSums(x, DType::kF32, context);
        const Tensor rounded = *ColumnSums(x, DType::kBF16, context);
        ASSERT_EQ(sums.shape(), (Shape{columns}));
        for (int64_t c = 0; c < columns; ++c) {
          PairwiseAccumulator<float> accumulator;
          for (int64_t r = 0; r < rows; ++r) accumulator.Add(wide.as<float>()[r * columns + c]);
          ASSERT_EQ(sums.as<float>()[c], accumulator.Sum()) << rows << "x" << columns;
          ASSERT_EQ(rounded.as<uint16_t>()[c], EncodeFloat<BFloat16>(accumulator.Sum()));
        }
      }
    }
  }
}

TEST(ColumnSums, Corners) {
  const Tensor empty = *Tensor::Allocate(DType::kBF16, {0, 3});
  const Tensor none = *ColumnSums(empty, DType::kF32, {});
  for (int c = 0; c < 3; ++c) EXPECT_EQ(none.as<uint32_t>()[c], 0u);
  // Three rows: -0 stays -0, x - x is +0, Inf - Inf and NaN are the canonical NaN.
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {-0.0f, 1,     inf,  -std::numeric_limits<float>::quiet_NaN(),
                          -0.0f, -1,    -inf, 0,
                          -0.0f, -0.0f, 0,    0};
  const Tensor x = *Tensor::FromBytes(DType::kF32, {3, 4}, std::as_bytes(std::span(values)));
  const Tensor sums = *ColumnSums(x, DType::kF32, {});
  EXPECT_EQ(sums.as<uint32_t>()[0], 0x80000000u);
  EXPECT_EQ(sums.as<uint32_t>()[1], 0u);
  EXPECT_EQ(sums.as<uint32_t>()[2], 0x7FFFFFFFu);
  EXPECT_EQ(sums.as<uint32_t>()[3], 0x7FFFFFFFu);
  EXPECT_FALSE(ColumnSums(x, DType::kF8E4M3, {}).ok());
  EXPECT_FALSE(ColumnSums(*Tensor::Allocate(DType::kU8, {1, 1}), DType::kF32, {}).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
