// The quantizer that keeps its source, or casts it: buffers, casts, counts and directions.
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/convert.h"
#include "tests/engine/tensor_values.h"
#include "tests/quantize/identity_casts.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// A row of 16-bit codes.
Tensor FromBits(DType dtype, const std::vector<uint16_t>& codes) {
  return *Tensor::FromBytes(dtype, {1, static_cast<int64_t>(codes.size())},
                            std::as_bytes(std::span(codes)));
}

TEST(Identity, KeepsTheSourcesBuffer) {
  const Tensor x = Generated(Distribution::kNormal, 4, DType::kF16, {8, 8});
  const QuantizedTensor q = *QuantizeCpu(x, Quantizer(), {true, true}, {}, {});
  EXPECT_EQ(q.rowwise->data.data(), x.data());
  EXPECT_EQ(q.columnwise->data.data(), x.data());
  EXPECT_EQ(q.rowwise->element, DType::kF16);
  EXPECT_EQ(q.counts.normal, 64);
  EXPECT_TRUE(SameBits(*DequantizeCpu(q, Usage::kColumnwise, DType::kF32, {}),
                       *CastTensor(x, DType::kF32, {})));
}

// By hand: bf16 and f16 round to nearest even and overflow to infinity (docs/quantizers.md section
// 7).
TEST(Identity, CastsToItsElement) {
  const std::pair<float, uint16_t> cases[] = {
      {1.0f, 0x3C00},
      {1.00048828125f, 0x3C00},    // 1 + 2^-11: a tie, to even.
      {65504.0f, 0x7BFF},          // The largest.
      {65519.996f, 0x7BFF},        // The last below the midpoint to 2^16.
      {65520.0f, 0x7C00},          // The midpoint: infinity.
      {6.103515625e-05f, 0x0400},  // 2^-14, the smallest normal.
      {3.0517578125e-05f, 0x0200},
      {4.470348358154297e-08f, 0x0001},   // 1.5 2^-25.
      {2.9802322387695312e-08f, 0x0000},  // 2^-25: a tie, to zero.
      {-1e-9f, 0x8000},
      {-0.0f, 0x8000},
      {std::numeric_limits<float>::infinity(), 0x7C00},
      {std::numeric_limits<float>::quiet_NaN(), 0x7FFF},
  };
  std::vector<float> values;
  for (const auto& [value, code] : cases) values.push_back(value);
  const Tensor x = FromValues(DType::kF32, {1, std::size(cases)}, values);
  const QuantizerSpec spec = {.format = QuantizerFormat::kIdentity, .element = DType::kF16};
  EXPECT_EQ(QuantizerText(spec), "identity cast to f16");
  const QuantizedTensor q = *QuantizeCpu(x, spec, {true, true}, {}, {});
  EXPECT_EQ(q.source_dtype, DType::kF32);
  EXPECT_FALSE(q.is_hybrid);
  EXPECT_EQ(q.rowwise->data.data(), q.columnwise->data.data());
  EXPECT_EQ(q.rowwise->element, DType::kF16);
  EXPECT_TRUE(q.rowwise->is_cast);
  EXPECT_FALSE(q.rowwise->scale_inv.has_value());
  for (size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(q.rowwise->data.as<uint16_t>()[i], cases[i].second) << cases[i].first;
  }
  EXPECT_EQ(q.counts.normal, 5);
  EXPECT_EQ(q.counts.subnormal, 2);
  EXPECT_EQ(q.counts.flushed_to_zero, 2);
  EXPECT_EQ(q.counts.saturated, 1);
  EXPECT_EQ(q.counts.zero, 1);
  EXPECT_EQ(q.counts.infinite, 1);
  EXPECT_EQ(q.counts.nan, 1);
  EXPECT_TRUE(SameBits(*DequantizeCpu(q, Usage::kColumnwise, DType::kF32, {}),
                       *CastTensor(q.rowwise->data, DType::kF32, {})));
}

TEST(Identity, CountsTheKindsOfItsCasts) {
  for (const IdentityCast& cast : IdentityCasts()) {
    const auto made = QuantizeCpu(cast.Source(), cast.Spec(), {true, true}, {}, {});
    EXPECT_TRUE(made->counts == cast.counts) << cast.name;
  }
}

TEST(Identity, DirectionsMayCastAndNotCast) {
  const Tensor x = Generated(Distribution::kNormal, 4, DType::kBF16, {8, 8});
  Quantizer quantizer;
  quantizer.columnwise.element = DType::kF32;
  QuantizedTensor q = *QuantizeCpu(x, quantizer, {true, true}, {}, {});
  EXPECT_EQ(q.rowwise->data.data(), x.data());
  EXPECT_TRUE(SameBits(q.columnwise->data, *CastTensor(x, DType::kF32, {})));
  QuantizedTensor rowwise = *QuantizeCpu(x, quantizer, {true, false}, {}, {});
  EXPECT_EQ(UpdateUsagesCpu(rowwise, {true, true}, {}).code(),
            absl::StatusCode::kFailedPrecondition);
  // The source's own dtype is no cast.
  quantizer = QuantizerSpec{.element = DType::kBF16};
  q = *QuantizeCpu(x, quantizer, {true, true}, {}, {});
  EXPECT_EQ(q.columnwise->data.data(), x.data());
  // Columnwise from rowwise: the values of the f16 copy in the source's dtype.
  quantizer.rowwise.element = DType::kF16;
  quantizer.columnwise = QuantizerSpec();
  quantizer.columnwise_source = ColumnwiseSource::kRowwiseDequantized;
  const Tensor wide = FromBits(DType::kBF16, {0x4780, 0x3F80});  // 65536 and 1.
  q = *QuantizeCpu(wide, quantizer, {false, true}, {}, {});
  EXPECT_TRUE(SameBits(q.columnwise->data, FromBits(DType::kBF16, {0x7F80, 0x3F80})));
  EXPECT_FALSE(q.columnwise->is_cast);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
