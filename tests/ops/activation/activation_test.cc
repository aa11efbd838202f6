// What activations do at their edges, what they refuse, and that runs and threads leave no trace.
#include "kernels/ops/activation/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr ActivationKind kEveryKind[] = {
    ActivationKind::kGelu,  ActivationKind::kGeglu,  ActivationKind::kGlu,
    ActivationKind::kQgelu, ActivationKind::kQgeglu, ActivationKind::kRelu,
    ActivationKind::kReglu, ActivationKind::kSrelu,  ActivationKind::kSreglu,
    ActivationKind::kSilu,  ActivationKind::kSwiglu, ActivationKind::kClampedSwiglu};

Tensor Row(const std::vector<float>& values) {
  return *Tensor::FromBytes(DType::kF32, {1, static_cast<int64_t>(values.size())},
                            std::as_bytes(std::span(values)));
}

std::vector<uint32_t> BitsOf(const Tensor& tensor) {
  return {tensor.as<uint32_t>(), tensor.as<uint32_t>() + tensor.element_count()};
}

std::vector<uint32_t> BitsOf(const std::vector<float>& values) { return BitsOf(Row(values)); }

Tensor Forward(ActivationKind kind, const std::vector<float>& h) {
  return *ActivationForwardCpu(Row(h), {.kind = kind}, DType::kF32, {});
}

Tensor Backward(ActivationKind kind, const std::vector<float>& dy, const std::vector<float>& h) {
  return *ActivationBackwardCpu(Row(dy), Row(h), {.kind = kind}, DType::kF32, {});
}

const float kNan = std::bit_cast<float>(0x7FFFFFFFu);  // Canonical.

TEST(ActivationTest, ReluAndZerosAndNan) {
  EXPECT_EQ(BitsOf(Forward(ActivationKind::kRelu, {0.0f, -0.0f, -1.0f, 2.0f, -NAN, INFINITY})),
            BitsOf({0.0f, 0.0f, 0.0f, 2.0f, kNan, INFINITY}));
  EXPECT_EQ(BitsOf(Forward(ActivationKind::kSrelu, {0.0f, -0.0f, -3.0f, 3.0f, NAN, 1e30f})),
            BitsOf({0.0f, 0.0f, 0.0f, 9.0f, kNan, INFINITY}));
  // A slope of 0 is multiplied like any other: the sign of zero and 0 * Inf are IEEE's.
  EXPECT_EQ(
      BitsOf(Backward(ActivationKind::kRelu, {5, 5, -5, INFINITY, 5, NAN}, {2, 0, -1, -1, NAN, 2})),
      BitsOf({5.0f, 0.0f, -0.0f, kNan, kNan, kNan}));
  EXPECT_EQ(BitsOf(Backward(ActivationKind::kSrelu, {5, 5, 5}, {2, -2, NAN})),
            BitsOf({20.0f, 0.0f, kNan}));
}

TEST(ActivationTest, ClampsPassNanAndTheLimitItself) {
  const float at = 7.0f, above = std::nextafter(7.0f, 8.0f);
  // qgelu is the same function without the clamps.
  const float f = *Forward(ActivationKind::kQgelu, {at}).as<float>();
  const float slope = *Backward(ActivationKind::kQgelu, {1.0f}, {at}).as<float>();
  // Gates 7, above 7, -7, below -7 and NaN: d gate is dy * f(7) within the limits, both included,
  // and +0 beyond.
  const std::vector<float> expected = {slope * 8, slope * 8, slope * -6, slope * -6, kNan,
                                       f,         0.0f,      f,          0.0f,       kNan};
  EXPECT_EQ(BitsOf(Backward(ActivationKind::kClampedSwiglu, {1, 1, 1, 1, 1},
                            {at, at, at, at, at, at, above, -at, -above, NAN})),
            BitsOf(expected));
  // The activated half at the limit, above it, and NaN, with gate 0 and so factor 1.
  EXPECT_EQ(BitsOf(Forward(ActivationKind::kClampedSwiglu, {at, above, NAN, 0, 0, 0})),
            BitsOf(std::vector<float>{f, f, kNan}));
  const std::vector<uint32_t> slopes =
      BitsOf(Backward(ActivationKind::kClampedSwiglu, {1, 1, 1}, {at, above, NAN, 0, 0, 0}));
  EXPECT_NE(slopes[0], 0u);
  EXPECT_EQ(slopes[1], 0u);
  EXPECT_EQ(slopes[2], 0x7FFFFFFFu);
}

TEST(ActivationTest, NanReachesEveryOutputOfItsElement) {
  for (const ActivationKind kind : kEveryKind) {
    SCOPED_TRACE(ActivationKindName(kind));
    const std::vector<float> h = IsGated(kind) ? std::vector<float>{NAN, 2} : std::vector{NAN};
    EXPECT_EQ(BitsOf(Forward(kind, h))[0], 0x7FFFFFFFu);
    for (const uint32_t bits : BitsOf(Backward(kind, {1}, h))) EXPECT_EQ(bits, 0x7FFFFFFFu);
    if (IsGated(kind)) {
      EXPECT_EQ(BitsOf(Forward(kind, {2, NAN}))[0], 0x7FFFFFFFu);
    }
  }
}

/// A tensor longer than any run and any piece of work, against its rows one by one.
TEST(ActivationTest, RunsRowsAndThreads) {
  for (const ActivationKind kind : kEveryKind) {
    SCOPED_TRACE(ActivationKindName(kind));
    const int64_t rows = 19, columns = IsGated(kind) ? 2 * 2051 : 2051;
    const Tensor h = *Generate({.distribution = Distribution::kSpecialsLaced,
                                .seed = 3,
                                .dtype = DType::kBF16,
                                .shape = {rows, columns},
                                .scale = 4},
                               {});
    const ActivationOptions options = {.kind = kind};
    const Tensor dy = *Generate({.distribution = Distribution::kNormal,
                                 .seed = 4,
                                 .dtype = DType::kF16,
                                 .shape = ActivationOutputShape(h.shape(), kind)},
                                {});
    const Tensor y = *ActivationForwardCpu(h, options, DType::kF32, {.threads = 2});
    const Tensor dh = *ActivationBackwardCpu(dy, h, options, DType::kBF16, {.threads = 2});
    const auto row_of = [](const Tensor& tensor, int64_t r) {
      const size_t bytes = tensor.byte_size() / static_cast<size_t>(rows);
      return *Tensor::FromBytes(tensor.dtype(), {tensor.columns()},
                                tensor.bytes().subspan(static_cast<size_t>(r) * bytes, bytes));
    };
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.byte_size() == b.byte_size() && std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
    };
    for (int64_t r = 0; r < rows; ++r) {
      const Tensor one = row_of(h, r);
      EXPECT_TRUE(same(*ActivationForwardCpu(one, options, DType::kF32, {}), row_of(y, r))) << r;
      EXPECT_TRUE(same(*ActivationBackwardCpu(row_of(dy, r), one, options, DType::kBF16, {}),
                       row_of(dh, r)))
          << r;
    }
  }
}

TEST(ActivationTest, EmptyTensors) {
  const Tensor h = *Tensor::Allocate(DType::kBF16, {0, 8});
  EXPECT_EQ(ActivationForwardCpu(h, {.kind = ActivationKind::kGeglu}, DType::kF16, {})->shape(),
            (Shape{0, 4}));
  const Tensor none = *Tensor::Allocate(DType::kBF16, {3, 0});
  EXPECT_EQ(ActivationForwardCpu(none, {.kind = ActivationKind::kGeglu}, DType::kF16, {})->shape(),
            (Shape{3, 0}));
}

TEST(ActivationTest, Names) {
  for (const ActivationKind kind : kEveryKind) {
    EXPECT_EQ(*ParseActivationKind(ActivationKindName(kind)), kind);
  }
  EXPECT_THAT(std::string(ParseActivationKind("swish").status().message()),
              HasSubstr("activation is \"swish\": unknown name; known: gelu, geglu, glu"));
  for (const auto variant : {ActivationVariant::kCanonical, ActivationVariant::kFp32Sigmoid,
                             ActivationVariant::kJitGelu}) {
    EXPECT_EQ(*ParseActivationVariant(ActivationVariantName(variant)), variant);
  }
  EXPECT_FALSE(ParseActivationVariant("fast").ok());
}

void ExpectRefused(const absl::Status& status, const char* text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(ActivationTest, Refusals) {
  const Tensor h = *Tensor::Allocate(DType::kF32, {2, 6});
  const Tensor odd = *Tensor::Allocate(DType::kF32, {2, 5});
  const Tensor scalar = *Tensor::Allocate(DType::kF32, {});
  const Tensor codes = *Tensor::Allocate(DType::kF8E4M3, {2, 6});
  const ActivationOptions silu = {.kind = ActivationKind::kSilu};
  ActivationOptions clamped = {.kind = ActivationKind::kClampedSwiglu};
  const auto f32 = DType::kF32;
  ExpectRefused(CheckActivationForward(Tensor(), silu, f32), "h is absent");
  ExpectRefused(CheckActivationForward(codes, silu, f32), "h is f8_e4m3: must be f32, bf16 or f16");
  ExpectRefused(CheckActivationForward(h, silu, DType::kF8E4M3), "out dtype is f8_e4m3");
  ExpectRefused(CheckActivationForward(odd, clamped, f32),
                "h is f32[2x5]: its last dim must be even for clamped_swiglu");
  ExpectRefused(CheckActivationForward(scalar, clamped, f32), "h is f32[scalar]");
  ExpectRefused(CheckActivationBackward(h, h, clamped, f32),
                "dy is f32[2x6]: its shape must be 2x3");
  ExpectRefused(CheckActivationBackward(Tensor(), h, silu, f32), "dy is absent");
  for (const float limit : {0.0f, -1.0f, NAN}) {
    clamped.limit = limit;
    ExpectRefused(CheckActivationForward(h, clamped, f32), "limit is ");
  }
  clamped = {.kind = ActivationKind::kClampedSwiglu, .alpha = INFINITY};
  ExpectRefused(CheckActivationForward(h, clamped, f32), "alpha is inf: must be finite");
  clamped = {.kind = ActivationKind::kClampedSwiglu, .offset = NAN};
  ExpectRefused(CheckActivationForward(h, clamped, f32), "offset is nan: must be finite");
  ExpectRefused(
      CheckActivationForward(
          h, {.kind = ActivationKind::kRelu, .variant = ActivationVariant::kFp32Sigmoid}, f32),
      "variant is fp32_sigmoid: relu does not have it");
  ExpectRefused(
      CheckActivationForward(
          h, {.kind = ActivationKind::kSilu, .variant = ActivationVariant::kJitGelu}, f32),
      "variant is jit_gelu: silu does not have it");
}

TEST(ActivationTest, Cancelled) {
  Cancellation cancellation;
  cancellation.Cancel();
  const Tensor h = *Tensor::Allocate(DType::kF32, {64, 64});
  EXPECT_EQ(
      ActivationForwardCpu(h, {}, DType::kF32, {.cancellation = &cancellation}).status().code(),
      absl::StatusCode::kCancelled);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
