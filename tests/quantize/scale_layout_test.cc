// Layouts of block scales: shapes of docs/quantizers.md sections 4, 5 and 6.3, places by their
// formulas written out, round trips, zero padding.
#include "kernels/quantize/scale_layout.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
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

/// The powers of two from 2^-127 on, again and again; zero bytes, which padding has, are left out.
Tensor Powers(const ScaleArrayType& type) {
  Tensor tensor = Numbered(type);
  if (type.dtype != DType::kF32) return tensor;
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    tensor.as<float>()[i] = std::ldexp(1.0f, static_cast<int>(i % 251) - 126);
  }
  return tensor;
}

TEST(ScaleLayout, ShapesOfOtherLibraries) {
  struct Row {
    ScaleArray array;
    ScaleLayout layout;
    DType dtype;
    Shape shape;
  };
  const Row rows[] = {
      {{kBlock, 1, kRow, 6, 300}, ScaleLayout::kKMajor, DType::kF32, {6, 3}},
      {{kBlock, 1, kRow, 6, 300}, ScaleLayout::kMnMajor, DType::kF32, {3, 6}},
      {{kBlock, 1, kRow, 6, 300}, ScaleLayout::kTmaAligned, DType::kF32, {3, 8}},
      {{kBlock, 1, kRow, 6, 300}, ScaleLayout::kUe8m0, DType::kF8E8M0, {6, 3}},
      {{kBlock, 1, kRow, 6, 1300}, ScaleLayout::kPackedUe8m0, DType::kI32, {3, 8}},
      {{kBlock, 1, kColumn, 1300, 6}, ScaleLayout::kPackedUe8m0, DType::kI32, {3, 8}},
      {{kBlock, 2, kRow, 300, 700}, ScaleLayout::kTmaAligned, DType::kF32, {6, 4}},
      {{kBlock, 2, kRow, 301, 700}, ScaleLayout::kPackedUe8m0, DType::kI32, {2, 304}},
      {{kBlock, 2, kColumn, 700, 301}, ScaleLayout::kPackedUe8m0, DType::kI32, {2, 304}},
      {{kMx, 1, kRow, 160, 96}, ScaleLayout::kKMajor, DType::kF8E8M0, {160, 3}},
      {{kMx, 1, kColumn, 96, 160}, ScaleLayout::kKMajor, DType::kF8E8M0, {160, 3}},
      {{kMx, 1, kColumn, 96, 160}, ScaleLayout::kMnMajor, DType::kF8E8M0, {3, 160}},
      {{kMx, 1, kRow, 32, 160}, ScaleLayout::kTmaAligned, DType::kF8E8M0, {5, 32}},
      {{kMx, 1, kRow, 32, 160}, ScaleLayout::kPackedUe8m0, DType::kI32, {2, 32}},
      {{kNv, 1, kRow, 48, 80}, ScaleLayout::kTmaAligned, DType::kF8E4M3, {5, 48}},
      {{kBlock, 1, kRow, 0, 300}, ScaleLayout::kPackedUe8m0, DType::kI32, {1, 0}},
  };
  for (const Row& row : rows) {
    const auto type = ScaleArrayTypeOf(row.array, row.layout);
    ASSERT_TRUE(type.ok()) << type.status();
    EXPECT_EQ(type->shape, row.shape) << ScaleLayoutName(row.layout);
    EXPECT_EQ(type->dtype, row.dtype) << ScaleLayoutName(row.layout);
  }
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

TEST(ScaleLayout, LayoutsOfOtherLibrariesRoundTripAndPadWithZeros) {
  int checked = 0;
  for (const ScaleArray& array : Arrays()) {
    const Tensor logical = Powers(*ScaleArrayTypeOf(array, ScaleLayout::kLogical));
    for (const ScaleLayout layout : kScaleLayouts) {
      const auto type = ScaleArrayTypeOf(array, layout);
      if (!type.ok()) continue;
      const auto there = ConvertScales(logical, array, ScaleLayout::kLogical, layout);
      ASSERT_TRUE(there.ok()) << there.status();
      const auto back = ConvertScales(*there, array, layout, ScaleLayout::kLogical);
      ASSERT_TRUE(back.ok()) << back.status();
      ASSERT_EQ(back->shape(), logical.shape());
      EXPECT_EQ(std::memcmp(back->data(), logical.data(), logical.byte_size()), 0);
      const bool is_packed = layout == ScaleLayout::kPackedUe8m0;
      int64_t used = 0;
      for (size_t i = 0; i < there->byte_size(); i += is_packed ? 1 : DTypeBytes(type->dtype)) {
        used += is_packed ? there->as<uint8_t>()[i] != 0
                          : At(*there, static_cast<int64_t>(i) / DTypeBytes(type->dtype)) != 0;
      }
      const bool is_row = array.usage == kRow;
      const bool repeats = is_packed && array.format == kBlock && array.block_dim == 2;
      EXPECT_EQ(used, repeats ? logical.columns() * (is_row ? array.rows : array.columns)
                              : logical.element_count())
          << ScaleLayoutName(layout);
      ++checked;
    }
  }
  EXPECT_GT(checked, 150);
}

// The index that DeepGEMM's kernels write (deep_gemm/include/deep_gemm/impls/smxx_layout.cuh), and
// the codes that they take of fp32: the exponent bits.
TEST(ScaleLayout, PackedScalesAreDeepGemms) {
  for (const ScaleArray& array :
       {ScaleArray{kBlock, 1, kRow, 130, 700}, ScaleArray{kBlock, 2, kRow, 130, 700},
        ScaleArray{kBlock, 1, kColumn, 700, 130}}) {
    const Tensor logical = Powers(*ScaleArrayTypeOf(array, ScaleLayout::kLogical));
    const Tensor packed =
        *ConvertScales(logical, array, ScaleLayout::kLogical, ScaleLayout::kPackedUe8m0);
    const int64_t aligned_mn = 132, sf_k = 6;
    ASSERT_EQ(packed.shape(), (Shape{2, aligned_mn}));
    const auto* words = packed.as<uint32_t>();
    for (int64_t mn = 0; mn < 130; ++mn) {
      for (int64_t pack = 0; pack < 2; ++pack) {
        uint32_t expected = 0;
        for (int64_t j = 0; j < 4; ++j) {
          const int64_t k = pack * 4 + j;
          const int64_t row = array.block_dim == 2 ? mn / 128 : mn;
          const uint32_t bits = k < sf_k ? logical.as<uint32_t>()[row * sf_k + k] : 0;
          expected |= bits >> 23 << (8 * j);
        }
        ASSERT_EQ(words[pack * aligned_mn + mn], expected) << mn << " " << pack;
      }
    }
  }
}

TEST(ScaleLayout, E8m0CodesOfFp32) {
  const ScaleArray array = {kBlock, 1, kRow, 1, 128};
  const auto code = [&](uint32_t bits) -> int {
    const Tensor scale = *Tensor::FromScalar(std::bit_cast<float>(bits));
    const Tensor shaped = *scale.Reinterpret(DType::kF32, {1, 1});
    const auto made = ConvertScales(shaped, array, ScaleLayout::kLogical, ScaleLayout::kUe8m0);
    return made.ok() ? made->as<uint8_t>()[0] : -1;
  };
  EXPECT_EQ(code(0x00400000), 0);  // 2^-127
  EXPECT_EQ(code(0x00800000), 1);
  EXPECT_EQ(code(0x3F800000), 127);
  EXPECT_EQ(code(0x7F000000), 254);
  EXPECT_EQ(code(0x7FC00000), 255);
  EXPECT_EQ(code(0xFFC00000), 255);
  for (const uint32_t bits : {0x00000000u, 0x00200000u, 0x00600000u, 0x3F800001u, 0x7F800000u,
                              0xBF800000u, 0x80400000u, 0x3FC00000u}) {
    EXPECT_EQ(code(bits), -1) << bits;
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
  expect({kMx, 1, kColumn, 96, 160}, ScaleLayout::kKMajor, 160, 3, turned(160), plain(3));
  expect({kBlock, 1, kRow, 6, 300}, ScaleLayout::kMnMajor, 6, 3, plain(3), turned(6));
  expect({kBlock, 1, kRow, 6, 300}, ScaleLayout::kTmaAligned, 6, 3, plain(3), turned(8));
  expect({kBlock, 2, kRow, 300, 700}, ScaleLayout::kTmaAligned, 3, 6, plain(6), turned(4));
  expect({kMx, 1, kRow, 160, 96}, ScaleLayout::kTmaAligned, 160, 3, plain(3), turned(160));
  expect({kNv, 1, kRow, 48, 80}, ScaleLayout::kMnMajor, 48, 5, plain(5), turned(48));
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
            "scales is of fp8_tensor: it has no block scales; fp8_block, mxfp8, nvfp4, "
            "fp8_block32, fp8_block64, fp8_block256 have");
  EXPECT_EQ(
      type({kBlock, 1, kRow, 4, 4}, ScaleLayout::kSwizzled),
      "scale_layout is swizzled: fp8_block has no such layout; its GEMM reads the padded one");
  EXPECT_EQ(type({kMx, 1, kRow, 32, 48}, ScaleLayout::kPadded),
            "scales is of 32x48: the last dim must be a multiple of 32 under mxfp8");
  EXPECT_EQ(type({kMx, 1, kColumn, 48, 32}, ScaleLayout::kPadded),
            "scales is of 48x32: both dims must be multiples of 32 under mxfp8");
  EXPECT_EQ(ScaleArrayTypeOf({kMx, 1, kRow, 33, 64}, ScaleLayout::kLogical)->shape, (Shape{33, 2}));
  EXPECT_EQ(
      message(ConvertScales(*Tensor::Allocate(DType::kF8E8M0, {32, 2}), {kMx, 1, kRow, 32, 32},
                            ScaleLayout::kLogical, ScaleLayout::kPadded)
                  .status()),
      "scales is f8_e8m0[32x2]: the logical rowwise scales of mxfp8 32x32 are f8_e8m0[32x1]");
  EXPECT_EQ(message(ParseScaleLayout("cyclic").status()),
            "scale_layout is \"cyclic\": unknown name; known: logical, padded, swizzled, k_major, "
            "mn_major, tma_aligned, ue8m0, packed_ue8m0");
  EXPECT_EQ(type({kMx, 1, kRow, 32, 32}, ScaleLayout::kUe8m0),
            "scale_layout is ue8m0: mxfp8 has E8M0 scales in every layout");
  EXPECT_EQ(type({kNv, 1, kRow, 32, 32}, ScaleLayout::kPackedUe8m0),
            "scale_layout is packed_ue8m0: nvfp4 has scales that are no powers of two");
  Tensor scales = Powers({DType::kF32, {3, 2}});
  scales.as<float>()[3] = 0.75f;
  EXPECT_EQ(message(ConvertScales(scales, {kBlock, 1, kRow, 3, 200}, ScaleLayout::kLogical,
                                  ScaleLayout::kPackedUe8m0)
                        .status()),
            "scale_layout is packed_ue8m0: the scale of line 1, block 1 is 0.75, which is no power "
            "of two from 2^-127 to 2^127");
  const ScaleArray tiles = {kBlock, 2, kRow, 200, 200};
  Tensor packed = *ConvertScales(Powers({DType::kF32, {2, 2}}), tiles, ScaleLayout::kLogical,
                                 ScaleLayout::kPackedUe8m0);
  packed.as<uint32_t>()[199] ^= 0x100;
  EXPECT_EQ(
      message(
          ConvertScales(packed, tiles, ScaleLayout::kPackedUe8m0, ScaleLayout::kLogical).status()),
      "scales is packed_ue8m0: the lines of tile 1 have different scales at block 1; a tile "
      "has one");
  for (const char* name : {"logical", "padded", "swizzled", "packed_ue8m0"}) {
    EXPECT_EQ(ScaleLayoutName(*ParseScaleLayout(name)), name);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
