// Layouts of block scales: shapes of docs/quantizers.md sections 4, 5 and 6.3, places by their
// formulas written out, round trips, zero padding.
#include "kernels/quantize/scale_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr auto kBlock = QuantizerFormat::kFp8Block;
constexpr auto kMx = QuantizerFormat::kMxfp8;
constexpr auto kNv = QuantizerFormat::kNvfp4;
constexpr auto kRow = Usage::kRowwise;
constexpr auto kColumn = Usage::kColumnwise;

/// Scales that all differ from zero and, within 251 in a row, from each other.
Tensor Numbered(const ScaleArrayType& type) {
  Tensor tensor = *Tensor::Allocate(type.dtype, type.shape);
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    if (type.dtype == DType::kF32) {
      tensor.as<float>()[i] = static_cast<float>(i + 1);
    } else {
      tensor.as<uint8_t>()[i] = static_cast<uint8_t>(1 + i % 251);
    }
  }
  return tensor;
}

uint32_t At(const Tensor& tensor, int64_t index) {
  return tensor.dtype() == DType::kF32 ? tensor.as<uint32_t>()[index] : tensor.as<uint8_t>()[index];
}

struct ShapeRow {
  ScaleArray array;
  Shape logical;
  Shape padded;
};

TEST(ScaleLayout, ShapesAreTransformerEngines) {
  const ShapeRow rows[] = {
      {{kBlock, 1, kRow, 6, 300}, {6, 3}, {3, 8}},
      {{kBlock, 1, kColumn, 130, 5}, {5, 2}, {2, 8}},
      {{kBlock, 2, kRow, 130, 700}, {2, 6}, {2, 8}},
      {{kBlock, 2, kColumn, 130, 700}, {6, 2}, {6, 4}},
      {{kMx, 1, kRow, 160, 96}, {160, 3}, {256, 4}},
      {{kMx, 1, kColumn, 160, 96}, {5, 96}, {8, 128}},
      {{kMx, 2, kRow, 128, 128}, {128, 4}, {128, 4}},
      {{kNv, 1, kRow, 16, 80}, {16, 5}, {128, 8}},
      {{kNv, 1, kColumn, 16, 144}, {144, 1}, {256, 4}},
      {{kNv, 2, kColumn, 0, 16}, {16, 0}, {128, 0}},
  };
  for (const ShapeRow& row : rows) {
    EXPECT_EQ(ScaleArrayTypeOf(row.array, ScaleLayout::kLogical)->shape, row.logical);
    EXPECT_EQ(ScaleArrayTypeOf(row.array, ScaleLayout::kPadded)->shape, row.padded);
    if (row.array.format == kBlock) continue;
    EXPECT_EQ(ScaleArrayTypeOf(row.array, ScaleLayout::kSwizzled)->shape, row.padded);
  }
  EXPECT_EQ(ScaleArrayTypeOf({kBlock}, ScaleLayout::kPadded)->dtype, DType::kF32);
  EXPECT_EQ(ScaleArrayTypeOf({kMx}, ScaleLayout::kPadded)->dtype, DType::kF8E8M0);
  EXPECT_EQ(ScaleArrayTypeOf({kNv}, ScaleLayout::kPadded)->dtype, DType::kF8E4M3);
}

std::vector<ScaleArray> Arrays() {
  std::vector<ScaleArray> arrays;
  for (const Usage usage : {kRow, kColumn}) {
    for (const int block_dim : {1, 2}) {
      for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1, 1}, {3, 130}, {257, 600}}) {
        arrays.push_back({kBlock, block_dim, usage, m, k});
      }
      for (const auto& [m, k] : {std::pair<int64_t, int64_t>{32, 32}, {160, 288}, {256, 544}}) {
        arrays.push_back({kMx, block_dim, usage, m, k});
        arrays.push_back({kNv, block_dim, usage, m, k});
      }
      arrays.push_back({kNv, block_dim, usage, 16, 208});
    }
  }
  return arrays;
}

TEST(ScaleLayout, EveryLayoutRoundTripsAndPadsWithZeros) {
  for (const ScaleArray& array : Arrays()) {
    const Tensor logical = Numbered(*ScaleArrayTypeOf(array, ScaleLayout::kLogical));
    std::vector<ScaleLayout> layouts = {ScaleLayout::kPadded};
    if (array.format != kBlock) layouts.push_back(ScaleLayout::kSwizzled);
    for (const ScaleLayout layout : layouts) {
      const Tensor there = *ConvertScales(logical, array, ScaleLayout::kLogical, layout);
      const Tensor back = *ConvertScales(there, array, layout, ScaleLayout::kLogical);
      ASSERT_EQ(back.shape(), logical.shape());
      EXPECT_EQ(std::memcmp(back.data(), logical.data(), logical.byte_size()), 0);
      int64_t used = 0;
      for (int64_t i = 0; i < there.element_count(); ++i) used += At(there, i) != 0;
      EXPECT_EQ(used, logical.element_count());
    }
    if (array.format == kBlock) continue;
    const Tensor padded =
        *ConvertScales(logical, array, ScaleLayout::kLogical, ScaleLayout::kPadded);
    const Tensor swizzled =
        *ConvertScales(padded, array, ScaleLayout::kPadded, ScaleLayout::kSwizzled);
    const Tensor direct =
        *ConvertScales(logical, array, ScaleLayout::kLogical, ScaleLayout::kSwizzled);
    EXPECT_EQ(std::memcmp(swizzled.data(), direct.data(), direct.byte_size()), 0);
  }
}

TEST(ScaleLayout, PlacesAreThoseOfTheFormulas) {
  const auto expect = [](const ScaleArray& array, ScaleLayout layout, int64_t outer, int64_t blocks,
                         const std::function<int64_t(int64_t, int64_t)>& logical_place,
                         const std::function<int64_t(int64_t, int64_t)>& place) {
    const Tensor logical = Numbered(*ScaleArrayTypeOf(array, ScaleLayout::kLogical));
    const Tensor there = *ConvertScales(logical, array, ScaleLayout::kLogical, layout);
    for (int64_t i = 0; i < outer; ++i) {
      for (int64_t j = 0; j < blocks; ++j) {
        ASSERT_EQ(At(there, place(i, j)), At(logical, logical_place(i, j))) << i << " " << j;
      }
    }
  };
  const auto plain = [](int64_t width) {
    return [width](int64_t i, int64_t j) { return i * width + j; };
  };
  const auto turned = [](int64_t width) {
    return [width](int64_t i, int64_t j) { return j * width + i; };
  };
  // fp8_block 1-D: scale[kb][m], rows padded to 4; 2-D: scale[mb][kb].
  expect({kBlock, 1, kRow, 6, 300}, ScaleLayout::kPadded, 6, 3, plain(3), turned(8));
  expect({kBlock, 1, kColumn, 300, 6}, ScaleLayout::kPadded, 6, 3, plain(3), turned(8));
  expect({kBlock, 2, kRow, 300, 700}, ScaleLayout::kPadded, 3, 6, plain(6), plain(8));
  // mxfp8: s[m][kb]; columnwise s[mb][k], not transposed.
  expect({kMx, 1, kRow, 160, 96}, ScaleLayout::kPadded, 160, 3, plain(3), plain(4));
  expect({kMx, 1, kColumn, 96, 160}, ScaleLayout::kPadded, 160, 3, turned(160), turned(256));
  expect({kNv, 1, kColumn, 80, 48}, ScaleLayout::kPadded, 48, 5, plain(5), plain(8));
  // Tiles of 128 x 4: byte 0 is (0, 0), byte 1 (0, 1), byte 4 (32, 0), byte 16 (1, 0).
  const auto swizzled = [](int64_t tiles) {
    return [tiles](int64_t i, int64_t j) {
      return ((i / 128) * tiles + j / 4) * 512 + (i % 32) * 16 + ((i % 128) / 32) * 4 + (j % 4);
    };
  };
  EXPECT_EQ(swizzled(1)(32, 0), 4);
  EXPECT_EQ(swizzled(1)(1, 0), 16);
  expect({kMx, 1, kRow, 160, 288}, ScaleLayout::kSwizzled, 160, 9, plain(9), swizzled(3));
  expect({kMx, 1, kColumn, 288, 160}, ScaleLayout::kSwizzled, 160, 9, turned(160), swizzled(3));
  expect({kNv, 1, kRow, 144, 144}, ScaleLayout::kSwizzled, 144, 9, plain(9), swizzled(3));
  expect({kNv, 1, kColumn, 144, 272}, ScaleLayout::kSwizzled, 272, 9, plain(9), swizzled(3));
}

TEST(ScaleLayout, RefusalsNameWhatIsWrong) {
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto type = [&](const ScaleArray& array, ScaleLayout layout) {
    return message(ScaleArrayTypeOf(array, layout).status());
  };
  EXPECT_EQ(type({QuantizerFormat::kFp8Tensor}, ScaleLayout::kLogical),
            "scales is of fp8_tensor: it has no block scales; fp8_block, mxfp8, nvfp4 have");
  EXPECT_EQ(
      type({kBlock, 1, kRow, 4, 4}, ScaleLayout::kSwizzled),
      "scale_layout is swizzled: fp8_block has no such layout; its GEMM reads the padded one");
  EXPECT_EQ(type({kMx, 1, kRow, 32, 48}, ScaleLayout::kPadded),
            "scales is of 32x48: both dims must be multiples of 32 under mxfp8");
  EXPECT_EQ(
      message(ConvertScales(*Tensor::Allocate(DType::kF8E8M0, {32, 2}), {kMx, 1, kRow, 32, 32},
                            ScaleLayout::kLogical, ScaleLayout::kPadded)
                  .status()),
      "scales is f8_e8m0[32x2]: the logical rowwise scales of mxfp8 32x32 are f8_e8m0[32x1]");
  EXPECT_EQ(message(ParseScaleLayout("cyclic").status()),
            "scale_layout is \"cyclic\": unknown name; known: logical, padded, swizzled");
  for (const char* name : {"logical", "padded", "swizzled"}) {
    EXPECT_EQ(ScaleLayoutName(*ParseScaleLayout(name)), name);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
