// Ordered sums against sums of doubles rounded by hand, and maxima against a table; every
// instruction set.
#include "kernels/ops/reduction/ordered_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A binary format: digits of the significand, least exponent of a normal number.
struct Format {
  DType dtype;
  int digits, exponent_min;
  double max;
};
constexpr Format kFormats[] = {{DType::kF32, 24, -126, 0x1.fffffep127},
                               {DType::kBF16, 8, -126, 0x1.fep127},
                               {DType::kF16, 11, -14, 65504.0}};

/// To nearest even, by the spacing of the format's numbers around `value`.
double Rounded(double value, const Format& format) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.exponent_min);
  const double spacing = std::ldexp(1.0, exponent - (format.digits - 1));
  const double rounded = std::nearbyint(value / spacing) * spacing;
  return std::abs(rounded) > format.max ? std::copysign(HUGE_VAL, value) : rounded;
}

/// The value of element `i`, with the formats' layouts written out.
double ValueAt(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::kF32) return tensor.as<float>()[i];
  const uint16_t code = tensor.as<uint16_t>()[i];
  if (tensor.dtype() == DType::kBF16) return std::bit_cast<float>(uint32_t{code} << 16);
  const int exponent = code >> 10 & 31, mantissa = code & 1023;
  const double sign = code >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

/// The sum of floats that a double holds is rounded to fp32 correctly: 53 >= 2 * 24 + 2 digits.
double ExpectedSum(const std::vector<Tensor>& parts, int64_t i, const Format& partial,
                   const Format& out) {
  double s = ValueAt(parts[0], i);
  for (size_t p = 1; p < parts.size(); ++p) {
    s = Rounded(Rounded(s + ValueAt(parts[p], i), kFormats[0]), partial);
  }
  return Rounded(s, out);
}

uint32_t BitsAt(const Tensor& tensor, int64_t i) {
  return tensor.dtype() == DType::kF32 ? tensor.as<uint32_t>()[i] : tensor.as<uint16_t>()[i];
}
uint32_t CanonicalNan(DType dtype) { return dtype == DType::kF32 ? 0x7FFFFFFF : 0x7FFF; }

::testing::AssertionResult IsValue(const Tensor& tensor, int64_t i, double expected) {
  const double actual = ValueAt(tensor, i);
  if (std::isnan(expected)) {
    return BitsAt(tensor, i) == CanonicalNan(tensor.dtype())
               ? ::testing::AssertionSuccess()
               : ::testing::AssertionFailure() << std::hex << BitsAt(tensor, i) << " for NaN";
  }
  if (actual == expected && std::signbit(actual) == std::signbit(expected)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << actual << " instead of " << expected;
}

std::vector<Tensor> Parts(Distribution distribution, DType dtype, Shape shape, int count) {
  std::vector<Tensor> parts;
  for (int i = 0; i < count; ++i) {
    parts.push_back(*Generate({.distribution = distribution,
                               .seed = static_cast<uint64_t>(i),
                               .dtype = dtype,
                               .shape = shape},
                              {}));
  }
  return parts;
}

void ExpectSums(const std::vector<Tensor>& parts, const Format& in, const Format& out) {
  for (const SumAccumulation accumulation : {SumAccumulation::kF32, SumAccumulation::kElement}) {
    const Format& partial = accumulation == SumAccumulation::kF32 ? kFormats[0] : in;
    for (const Isa isa : RunnableIsas()) {
      const auto sum = OrderedSumCpu(parts, accumulation, out.dtype, {isa, 2});
      ASSERT_TRUE(sum.ok()) << sum.status();
      ASSERT_EQ(sum->shape(), parts[0].shape());
      ASSERT_EQ(sum->dtype(), out.dtype);
      for (int64_t i = 0; i < sum->element_count(); ++i) {
        ASSERT_TRUE(IsValue(*sum, i, ExpectedSum(parts, i, partial, out)))
            << IsaName(isa) << " " << TensorText(parts[0]) << " x " << parts.size() << " at " << i;
      }
    }
  }
}

TEST(OrderedSum, RoundsAsSaid) {
  for (const Distribution distribution :
       {Distribution::kNormal, Distribution::kLogNormalOutliers, Distribution::kSpecialsLaced}) {
    for (const Format& in : kFormats) {
      for (const Format& out : kFormats) {
        for (const int count : {1, 2, 3, 4, 9}) {
          for (const Shape& shape : {Shape{0, 8}, Shape{1}, Shape{3, 7}, Shape{4099}}) {
            ExpectSums(Parts(distribution, in.dtype, shape, count), in, out);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

Tensor Of(const std::vector<float>& values) {
  return *Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(values.size())},
                            std::as_bytes(std::span(values)));
}
Tensor Bf16Of(const std::vector<uint16_t>& codes) {
  return *Tensor::FromBytes(DType::kBF16, {static_cast<int64_t>(codes.size())},
                            std::as_bytes(std::span(codes)));
}

/// Worked out on paper: 256 + 1 + 1 in bf16, whose numbers above 256 are 2 apart.
TEST(OrderedSum, OrderAndAccumulationShow) {
  const Tensor big = Bf16Of({0x4380}), one = Bf16Of({0x3F80});
  const auto sum = [](const std::vector<Tensor>& parts, SumAccumulation accumulation) {
    return OrderedSumCpu(parts, accumulation, DType::kBF16, {})->as<uint16_t>()[0];
  };
  EXPECT_EQ(sum({big, one, one}, SumAccumulation::kF32), 0x4381);      // 258.
  EXPECT_EQ(sum({big, one, one}, SumAccumulation::kElement), 0x4380);  // 257 -> 256, twice.
  EXPECT_EQ(sum({one, one, big}, SumAccumulation::kElement), 0x4381);  // 2 + 256.
}

TEST(OrderedSum, ZerosAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0xFFC00001u);
  const Tensor first = Of({-0.0f, -0.0f, infinity, nan, 1.0f});
  const Tensor second = Of({-0.0f, 0.0f, -infinity, 1.0f, nan});
  const Tensor sum = *OrderedSumCpu({{first, second}}, SumAccumulation::kF32, DType::kF32, {});
  const uint32_t expected[] = {0x80000000, 0, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF};
  EXPECT_EQ(std::memcmp(sum.data(), expected, sizeof(expected)), 0);
}

TEST(Maximum, IsThatOfFmaxfOnAGpu) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf(""), other_nan = std::bit_cast<float>(0xFF800001u);
  const float canonical = std::bit_cast<float>(0x7FFFFFFFu), least = 0x1p-149f;
  const struct {
    float a, b, expected;
  } table[] = {{1, 2, 2},
               {-1, -2, -1},
               {0.0f, -0.0f, 0.0f},
               {-0.0f, -0.0f, -0.0f},
               {nan, 3, 3},
               {other_nan, -infinity, -infinity},
               {other_nan, nan, canonical},
               {infinity, 5, infinity},
               {least, 0, least},
               {-least, -0.0f, -0.0f},
               {3e38f, -3e38f, 3e38f},
               {nan, least, least}};
  std::vector<float> a, b, expected;
  for (const auto& row : table) {
    a.push_back(row.a);
    b.push_back(row.b);
    expected.push_back(row.expected);
  }
  const Tensor first = Of(a), second = Of(b), none = Of(std::vector<float>(a.size(), nan));
  for (const std::vector<Tensor>& parts : {std::vector<Tensor>{first, second},
                                           {second, first},
                                           {none, first, second},
                                           {second, none, first, first}}) {
    const Tensor largest = *MaximumCpu(parts, {});
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(BitsAt(largest, i), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST(Maximum, OfManyNumbers) {
  const std::vector<Tensor> parts = Parts(Distribution::kNormal, DType::kF32, {5, 4099}, 5);
  const Tensor largest = *MaximumCpu(parts, {});
  EXPECT_EQ(TensorText(largest), "f32[5x4099]");
  for (int64_t i = 0; i < largest.element_count(); ++i) {
    float expected = -HUGE_VALF;
    for (const Tensor& part : parts) expected = std::fmax(expected, part.as<float>()[i]);
    ASSERT_EQ(largest.as<float>()[i], expected) << i;
  }
}

/// Rows in the middle of others, which stay.
TEST(OrderedSumTo, WritesItsRowsAlone) {
  Tensor whole = *Tensor::Allocate(DType::kBF16, {4, 3});
  std::fill_n(whole.as<uint16_t>(), 12, uint16_t{0x1234});
  const std::vector<Tensor> parts = {Bf16Of({0x3F80, 0x4000, 0x4040, 0x3F80, 0x4000, 0x4040}),
                                     Bf16Of(std::vector<uint16_t>(6, 0x3F80))};
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) rows.push_back(*part.Reinterpret(DType::kBF16, {2, 3}));
  ASSERT_TRUE(OrderedSumToCpu(rows, SumAccumulation::kF32, *whole.RowRange(1, 2), {}).ok());
  const double expected[] = {2, 3, 4, 2, 3, 4};
  for (int64_t i = 0; i < 12; ++i) {
    if (i >= 3 && i < 9) {
      EXPECT_EQ(ValueAt(whole, i), expected[i - 3]);
    } else {
      EXPECT_EQ(whole.as<uint16_t>()[i], 0x1234);
    }
  }
}

TEST(Maximum, OfOneCanonicalizesNan) {
  const Tensor largest = *MaximumCpu({{Of({std::bit_cast<float>(0xFFC00001u), -0.0f})}}, {});
  EXPECT_EQ(BitsAt(largest, 0), 0x7FFFFFFFu);
  EXPECT_EQ(BitsAt(largest, 1), 0x80000000u);
}

TEST(Reductions, Refuse) {
  const Tensor f32 = Of({1, 2}), bf16 = Bf16Of({1, 2}), three = Of({1, 2, 3});
  const auto sum = [](const std::vector<Tensor>& parts, DType out) {
    return std::string(OrderedSumCpu(parts, SumAccumulation::kF32, out, {}).status().message());
  };
  const auto maximum = [](const std::vector<Tensor>& parts) {
    return std::string(MaximumCpu(parts, {}).status().message());
  };
  EXPECT_THAT(sum({}, DType::kF32), HasSubstr("parts is empty"));
  EXPECT_THAT(sum({f32, bf16}, DType::kF32),
              AllOf(HasSubstr("parts[1] is bf16"), HasSubstr("must be f32")));
  EXPECT_THAT(sum({f32, three}, DType::kF32),
              AllOf(HasSubstr("parts[1] is f32[3]"), HasSubstr("must be 2")));
  EXPECT_THAT(sum({f32, Tensor()}, DType::kF32), HasSubstr("parts[1] is absent"));
  EXPECT_THAT(sum({f32}, DType::kF8E4M3), HasSubstr("out dtype is f8_e4m3"));
  const auto sum_to = [](const std::vector<Tensor>& parts, const Tensor& to) {
    return std::string(OrderedSumToCpu(parts, SumAccumulation::kF32, to, {}).message());
  };
  EXPECT_THAT(sum_to({}, f32), HasSubstr("parts is empty"));
  EXPECT_THAT(sum_to({f32}, three), AllOf(HasSubstr("to is f32[3]"), HasSubstr("must be 2")));
  EXPECT_THAT(sum_to({f32}, Tensor()), HasSubstr("to is absent"));
  EXPECT_THAT(sum_to({f32}, *Tensor::Allocate(DType::kF8E4M3, {2})), HasSubstr("to is f8_e4m3"));
  EXPECT_THAT(maximum({}), HasSubstr("parts is empty"));
  EXPECT_THAT(maximum({bf16}), AllOf(HasSubstr("parts[0] is bf16"), HasSubstr("must be f32")));
  Cancellation cancelled;
  cancelled.Cancel();
  const ExecutionContext context = {BestIsa(), 1, &cancelled};
  EXPECT_TRUE(absl::IsCancelled(
      OrderedSumCpu({{f32, f32}}, SumAccumulation::kF32, DType::kF32, context).status()));
  EXPECT_TRUE(absl::IsCancelled(MaximumCpu({{f32, f32}}, context).status()));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
