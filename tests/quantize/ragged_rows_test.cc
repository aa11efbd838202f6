// mxfp8 and nvfp4 of rows off the multiples of 32 and 16, rowwise: the codes and scales that the
// rows have in a source which zeros fill up to whole blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kRows = 37, kWhole = 64, kColumns = 96;

Tensor Whole(DType dtype) {
  GeneratorSpec spec;
  spec.distribution = Distribution::kNormal;
  spec.seed = 21;
  spec.dtype = DType::kF32;
  spec.shape = {kWhole, kColumns};
  Tensor values = *Generate(spec, {});
  float* x = values.as<float>();
  for (int64_t i = 0; i < kWhole * kColumns; ++i) {
    if (i / 32 % 7 == 2) x[i] *= 0x1p-120f;
    if (i / 16 % 11 == 5) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (i % 301 == 100) x[i] = std::numeric_limits<float>::quiet_NaN();
    if (i >= kRows * kColumns) x[i] = 0.0f;
  }
  return *CastTensor(values, dtype, {});
}

void ExpectFirstRows(const QuantizerSpec& spec, DType dtype) {
  const Tensor whole = Whole(dtype);
  const Tensor rows = *whole.RowRange(0, kRows);
  const auto expected = QuantizeCpu(whole, spec, {true, false}, {}, {});
  const auto found = QuantizeCpu(rows, spec, {true, false}, {}, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(found.ok()) << found.status();
  const QuantizedCopy& all = *expected->rowwise;
  const QuantizedCopy& some = *found->rowwise;
  ASSERT_EQ(some.scale_inv.shape(), (Shape{kRows, all.scale_inv.columns()}));
  EXPECT_EQ(std::memcmp(some.data.data(), all.data.data(), some.data.byte_size()), 0);
  EXPECT_EQ(std::memcmp(some.scale_inv.data(), all.scale_inv.data(), some.scale_inv.byte_size()),
            0);
  const int64_t filled = (kWhole - kRows) * kColumns;
  EXPECT_EQ(found->counts.zero + filled, expected->counts.zero);
  EXPECT_EQ(found->counts.nan, expected->counts.nan);
  EXPECT_EQ(found->counts.subnormal, expected->counts.subnormal);
  EXPECT_EQ(found->counts.flushed_to_zero, expected->counts.flushed_to_zero);
  const Tensor all_values = *DequantizeCpu(*expected, Usage::kRowwise, DType::kF32, {});
  const Tensor values = *DequantizeCpu(*found, Usage::kRowwise, DType::kF32, {});
  ASSERT_EQ(values.shape(), (Shape{kRows, kColumns}));
  EXPECT_EQ(std::memcmp(values.data(), all_values.data(), values.byte_size()), 0);
}

TEST(RaggedRows, HaveTheCodesOfWholeBlocks) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const QuantizerFormat format : {QuantizerFormat::kMxfp8, QuantizerFormat::kNvfp4}) {
      for (const DType element : TraitsOf(format).elements) {
        for (const ScaleRule rule : TraitsOf(format).rules) {
          QuantizerSpec spec = {.format = format, .element = element, .scale_rule = rule};
          if (!CheckQuantizer(spec).ok()) continue;  // Not of this element.
          SCOPED_TRACE(QuantizerText(spec));
          ExpectFirstRows(spec, dtype);
          spec.element_rounding = ElementRounding::kNearestAway;
          ExpectFirstRows(spec, dtype);
        }
      }
    }
    QuantizerSpec flushed = {.format = QuantizerFormat::kMxfp8};
    flushed.flush_subnormals = FlushSubnormals::kAlways;
    ExpectFirstRows(flushed, dtype);
  }
}

TEST(RaggedRows, WhatNeedsWholeBlocksIsRefused) {
  const auto refusal = [](const QuantizerSpec& spec, Shape shape, Usages usages) {
    return std::string(CheckQuantization(DType::kBF16, shape, spec, usages).message());
  };
  const QuantizerSpec mx = {.format = QuantizerFormat::kMxfp8};
  EXPECT_EQ(refusal(mx, {37, 96}, {true, false}), "");
  EXPECT_THAT(refusal(mx, {37, 96}, {true, true}),
              ::testing::HasSubstr("source is 37x96: mxfp8 needs both dims in multiples of 32"));
  EXPECT_THAT(refusal(mx, {37, 96}, {false, true}),
              ::testing::HasSubstr("mxfp8 needs both dims in multiples of 32"));
  EXPECT_THAT(
      refusal(mx, {37, 100}, {true, false}),
      ::testing::HasSubstr("source is 37x100: mxfp8 needs the last dim in multiples of 32"));
  EXPECT_THAT(refusal({.format = QuantizerFormat::kMxfp8, .block_dim = 2}, {37, 96}, {true, false}),
              ::testing::HasSubstr("mxfp8 needs both dims in multiples of 32"));
  QuantizerSpec stochastic = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  EXPECT_EQ(refusal(stochastic, {37, 96}, {true, false}), "");
  stochastic.element_rounding = ElementRounding::kStochastic;
  EXPECT_THAT(refusal(stochastic, {37, 96}, {true, false}),
              ::testing::HasSubstr("nvfp4 needs both dims in multiples of 16"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
