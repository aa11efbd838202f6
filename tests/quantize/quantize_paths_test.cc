// All 2^16 bf16 and f16 inputs through every instruction set, under scales that reach every class
// of result, against ml_dtypes; and what QuantizeCpu and DequantizeCpu promise beside the numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/quantize/cast_boundaries.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

uint8_t ExpectedCode(const std::vector<Boundary>& boundaries, float value) {
  std::vector<uint8_t> code;
  ExpectedCodes(boundaries, std::bit_cast<uint32_t>(value), 1, code);
  return code[0];
}

float Widen(DType dtype, uint16_t bits) {
  if (dtype == DType::kBF16) return std::bit_cast<float>(uint32_t{bits} << 16);
  _Float16 half;  // The compiler's own conversion.
  std::memcpy(&half, &bits, sizeof(half));
  return static_cast<float>(half);
}

void RunCast(Isa isa, DType source, DType element, const CastPiece& piece,
             QuantizationCounts& counts) {
  switch (isa) {
    case Isa::kScalar:
      return ScalarCast(source, element)(piece, ElementRounding::kNearestEven, Overflow::kSaturate,
                                         counts);
    case Isa::kAvx2:
      return Avx2Cast(source, element)(piece, counts);
    case Isa::kAvx512:
      return Avx512Cast(source, element)(piece, counts);
  }
}

TEST(Cast, EverySixteenBitInput) {
  const CastBoundaries all = LoadCastBoundaries();
  std::vector<uint16_t> inputs(1 << 16);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<uint16_t>(i);
  for (const DType source : {DType::kBF16, DType::kF16}) {
    for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
      const auto& boundaries = all.formats.at(std::string(DTypeName(element)));
      for (const float scale : {1.0f, 0.3f, 1e-30f, 68.92307f, 3e30f, 0x1p127f}) {
        std::vector<uint8_t> expected(inputs.size());
        for (size_t i = 0; i < inputs.size(); ++i) {
          expected[i] = ExpectedCode(boundaries, Widen(source, inputs[i]) * scale);
        }
        QuantizationCounts scalar_counts;
        for (const Isa isa : RunnableIsas()) {
          std::vector<uint8_t> codes(inputs.size());
          QuantizationCounts counts;
          RunCast(isa, source, element,
                  {inputs.data(), static_cast<int64_t>(inputs.size()), scale, codes.data()},
                  counts);
          EXPECT_TRUE(codes == expected) << IsaName(isa) << " " << DTypeName(source) << " "
                                         << DTypeName(element) << " " << scale;
          if (isa == Isa::kScalar) scalar_counts = counts;
          EXPECT_TRUE(counts == scalar_counts) << IsaName(isa) << " counts";
        }
      }
    }
  }
}

/// Lengths around every vector step.
TEST(Cast, Tails) {
  const int64_t count = 300;
  const Tensor source = *Generate({.distribution = Distribution::kSpecialsLaced,
                                   .seed = 3,
                                   .dtype = DType::kF32,
                                   .shape = {count}},
                                  {});
  for (const Isa isa : RunnableIsas()) {
    for (int64_t length = 0; length <= count; ++length) {
      alignas(64) uint8_t codes[320], expected[320];
      std::memset(codes, 0xAA, sizeof(codes));
      std::memset(expected, 0xAA, sizeof(expected));
      QuantizationCounts counts, expected_counts;
      RunCast(isa, DType::kF32, DType::kF8E4M3, {source.data(), length, 200.0f, codes}, counts);
      RunCast(Isa::kScalar, DType::kF32, DType::kF8E4M3, {source.data(), length, 200.0f, expected},
              expected_counts);
      EXPECT_EQ(std::memcmp(codes, expected, sizeof(codes)), 0) << IsaName(isa) << " " << length;
      EXPECT_TRUE(counts == expected_counts);
    }
  }
}

TEST(Amax, IgnoresNanAtEveryPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const Isa isa : RunnableIsas()) {
    ExecutionContext context;
    context.isa = isa;
    const auto amax = [&](const Tensor& x, DType dtype) {
      return *QuantizeCpu(*CastTensor(x, dtype, context),
                          QuantizerSpec{.format = QuantizerFormat::kFp8Tensor}, {}, {}, context)
                  ->rowwise->amax.as<float>();
    };
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t count : {1, 31, 64, 127, 129, 200}) {
        for (int64_t place = 0; place < count; ++place) {
          Tensor x = *Tensor::Allocate(DType::kF32, {count});
          std::fill(x.as<float>(), x.as<float>() + count, nan);
          x.as<float>()[place] = -5.25f;
          EXPECT_EQ(amax(x, dtype), 5.25f) << IsaName(isa) << " " << count << " " << place;
          x.as<float>()[count - 1 - place] = -inf;
          EXPECT_EQ(amax(x, dtype), inf);
        }
      }
    }
  }
}

TEST(QuantizeCpu, EachUsageAloneGivesTheBytesOfBoth) {
  const Tensor x = *Generate({.seed = 5, .dtype = DType::kBF16, .shape = {37, 53}}, {});
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .element = DType::kF8E5M2};
  const QuantizedTensor both = *QuantizeCpu(x, spec, {true, true}, {}, {});
  const QuantizedTensor row = *QuantizeCpu(x, spec, {true, false}, {}, {});
  const QuantizedTensor column = *QuantizeCpu(x, spec, {false, true}, {}, {});
  EXPECT_EQ(both.usages(), (Usages{true, true}));
  EXPECT_EQ(row.usages(), (Usages{true, false}));
  EXPECT_EQ(column.usages(), (Usages{false, true}));
  const auto equal = [](const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
  };
  EXPECT_TRUE(equal(row.rowwise->data, both.rowwise->data));
  EXPECT_TRUE(equal(column.columnwise->data, both.columnwise->data));
  EXPECT_EQ(both.columnwise->data.shape(), (Shape{53, 37}));
  EXPECT_FALSE(row.columnwise.has_value());
  EXPECT_FALSE(column.rowwise.has_value());
}

TEST(QuantizeCpu, EmptyTensors) {
  for (const float epsilon : {0.0f, 2.0f}) {
    const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .amax_epsilon = epsilon};
    const Tensor x = *Tensor::Allocate(DType::kBF16, {0, 48});
    const QuantizedTensor q = *QuantizeCpu(x, spec, {true, true}, {}, {});
    EXPECT_EQ(*q.rowwise->amax.as<float>(), 0.0f);
    EXPECT_EQ(*q.rowwise->scale.as<float>(), 1.0f);
    EXPECT_EQ(*q.rowwise->scale_inv.as<float>(), 1.0f);
    EXPECT_EQ(q.rowwise->data.shape(), (Shape{0, 48}));
    EXPECT_EQ(q.columnwise->data.shape(), (Shape{48, 0}));
    EXPECT_EQ(DequantizeCpu(q, Usage::kColumnwise, DType::kF32, {})->shape(), (Shape{0, 48}));
  }
}

TEST(QuantizeCpu, RefusesWithFieldAndRule) {
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor};
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  const Tensor x = *Tensor::Allocate(DType::kBF16, {2, 2});
  EXPECT_THAT(message(QuantizeCpu(*Tensor::Allocate(DType::kI32, {2}), spec, {}, {}, {})),
              HasSubstr("source is i32: must be f32, bf16 or f16"));
  EXPECT_THAT(message(QuantizeCpu(*Tensor::Allocate(DType::kF32, {}), spec, {}, {}, {})),
              HasSubstr("rank must be at least 1"));
  EXPECT_THAT(message(QuantizeCpu(x, spec, {false, false}, {}, {})), HasSubstr("usages is none"));
  EXPECT_THAT(message(QuantizeCpu(x, spec, {}, {.scale = *Tensor::FromScalar(1)}, {})),
              HasSubstr("scale is given: only delayed scaling takes one"));
  const QuantizedTensor row = *QuantizeCpu(x, spec, {}, {}, {});
  EXPECT_EQ(DequantizeCpu(row, Usage::kColumnwise, DType::kF32, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message(DequantizeCpu(row, Usage::kRowwise, DType::kU8, {})),
              HasSubstr("out_dtype is u8"));
}

TEST(QuantizeCpu, StopsWhenCancelled) {
  Cancellation cancellation;
  cancellation.Cancel();
  ExecutionContext context;
  context.cancellation = &cancellation;
  const Tensor x = *Generate({.dtype = DType::kBF16, .shape = {8, 8}}, {});
  EXPECT_EQ(QuantizeCpu(x, QuantizerSpec{.format = QuantizerFormat::kFp8Tensor}, {}, {}, context)
                .status()
                .code(),
            absl::StatusCode::kCancelled);
}

/// A caller's flush-to-zero must not reach the codes: 2^-130 scaled by 2^127 is 2^-3, not 0.
TEST(QuantizeCpu, IgnoresTheCallersFloatingPointMode) {
  Tensor x = *Tensor::Allocate(DType::kF32, {1});
  *x.as<float>() = 0x1p-130f;
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040);
  const auto q = QuantizeCpu(
      x, QuantizerSpec{.format = QuantizerFormat::kFp8Tensor, .power_2_scale = true}, {}, {}, {});
  __builtin_ia32_ldmxcsr(saved);
  EXPECT_EQ(*q->rowwise->scale.as<float>(), 0x1p127f);
  EXPECT_EQ(*q->rowwise->data.as<uint8_t>(), 0x20);  // 2^-3 in E4M3.
}

TEST(QuantizerText, SaysEveryRule) {
  EXPECT_EQ(QuantizerText({}), "identity");
  EXPECT_EQ(
      QuantizerText(QuantizerSpec{.format = QuantizerFormat::kFp8Tensor, .amax_epsilon = 0.5f}),
      "f8_e4m3 per tensor, scale_rule=divide, power_2_scale=false, amax_epsilon=0.5, "
      "element_rounding=nearest_even, overflow=saturate");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
