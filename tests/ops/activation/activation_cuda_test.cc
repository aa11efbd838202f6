// Activations on a GPU against the CPU, byte for byte: every kind, variant and dtype, every 16-bit
// code, odd shapes and addresses, real tensors.
#include "kernels/ops/ops_cuda.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr KernelPath kPaths[] = {KernelPath::kTuned, KernelPath::kPlain};

/// Every kind in each variant that it has, and clamped_swiglu with other numbers too.
std::vector<ActivationOptions> EveryOptions() {
  std::vector<ActivationOptions> every;
  const Tensor h = ValueOrAbort(Tensor::Allocate(DType::kF32, {2, 2}));
  for (size_t kind = 0; kind < std::size(kActivationKindNames); ++kind) {
    for (size_t variant = 0; variant < std::size(kActivationVariantNames); ++variant) {
      const ActivationOptions options = {.kind = static_cast<ActivationKind>(kind),
                                         .variant = static_cast<ActivationVariant>(variant)};
      if (CheckActivationForward(h, options, DType::kF32).ok()) every.push_back(options);
    }
  }
  for (const float alpha : {-1.25f, 0.5f, 4.0f}) {
    every.push_back(
        {.kind = ActivationKind::kClampedSwiglu, .limit = 2.5f, .alpha = alpha, .offset = 0.0f});
  }
  return every;
}

Tensor Generated(Distribution distribution, uint64_t seed, DType dtype, Shape shape, float scale) {
  return ValueOrAbort(Generate({.distribution = distribution,
                                .seed = seed,
                                .dtype = dtype,
                                .shape = std::move(shape),
                                .scale = scale},
                               {}));
}

/// Forward and backward; h, dy at addresses `shift` elements past an aligned one.
void ExpectSame(const Tensor& h, const Tensor& dy, const ActivationOptions& options, DType out,
                int64_t shift = 0) {
  SCOPED_TRACE(std::string(ActivationKindName(options.kind)) + " " +
               std::string(ActivationVariantName(options.variant)) + " " + TensorText(h) + " " +
               TensorText(dy) + " to " + std::string(DTypeName(out)) + " shifted by " +
               std::to_string(shift));
  const Tensor y = ValueOrAbort(ActivationForwardCpu(h, options, out, {}));
  const Tensor dh = ValueOrAbort(ActivationBackwardCpu(dy, h, options, out, {}));
  const Tensor device_h = OnDeviceShifted(h, shift), device_dy = OnDeviceShifted(dy, shift);
  for (const KernelPath path : kPaths) {
    SCOPED_TRACE(path == KernelPath::kTuned ? "tuned" : "plain");
    EXPECT_TRUE(SameTensor(
        y, ValueOrAbort(ActivationForwardCuda(TestDevice(), device_h, options, out, path))));
    EXPECT_TRUE(SameTensor(dh, ValueOrAbort(ActivationBackwardCuda(TestDevice(), device_dy,
                                                                   device_h, options, out, path))));
  }
}

TEST(ActivationCudaTest, DistributionsAndDTypes) {
  for (const ActivationOptions& options : EveryOptions()) {
    for (const Distribution distribution : AllDistributions()) {
      for (const DType dtype : kFloats) {
        const Shape shape = {37, 2 * 264};
        const Tensor h = Generated(distribution, 5, dtype, shape, 4.0f);
        const DType other = kFloats[(static_cast<int>(distribution) + 1) % 3];
        const Tensor dy = Generated(Distribution::kNormal, 6, other,
                                    ActivationOutputShape(shape, options.kind), 0.5f);
        ExpectSame(h, dy, options, kFloats[static_cast<int>(distribution) % 3]);
      }
    }
  }
}

TEST(ActivationCudaTest, OddShapesAndAddresses) {
  for (const ActivationOptions& options : EveryOptions()) {
    for (const Shape& shape : {Shape{0, 8}, Shape{3, 0}, Shape{1, 2}, Shape{5, 14}, Shape{3, 5, 48},
                               Shape{1, 2 * 1027}, Shape{1030, 18}}) {
      const Tensor h = Generated(Distribution::kNormal, 7, DType::kBF16, shape, 3.0f);
      const Tensor dy = Generated(Distribution::kNormal, 8, DType::kF16,
                                  ActivationOutputShape(shape, options.kind), 1.0f);
      for (const int64_t shift : {0, 1, 4}) ExpectSame(h, dy, options, DType::kF32, shift);
    }
  }
}

/// Every code of a 16-bit type in the activated half, in tensors large enough for the tables of
/// activation_table_cuda.cu.
TEST(ActivationCudaTest, EveryCode) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Tensor h = ValueOrAbort(Tensor::Allocate(dtype, {64 * 33, 2048}));
    for (int64_t i = 0; i < h.element_count(); ++i) {
      // Row by row 1024 codes, then a gate: another code, mixed.
      const int64_t row = i / 2048, column = i % 2048;
      const auto code = static_cast<uint16_t>(row * 1024 + column % 1024);
      h.as<uint16_t>()[i] = column < 1024 ? code : static_cast<uint16_t>(code * 40503u);
    }
    for (const ActivationOptions& options : EveryOptions()) {
      const Tensor dy = Generated(Distribution::kNormal, 9, DType::kBF16,
                                  ActivationOutputShape(h.shape(), options.kind), 1.0f);
      ExpectSame(h, dy, options, DType::kF32);
    }
  }
}

/// Beyond any one grid, with and without outputs that are left over from eights.
TEST(ActivationCudaTest, Large) {
  for (const Shape& shape : {Shape{1024, 2 * 8192}, Shape{2051, 2 * 1027}}) {
    const Tensor h = Generated(Distribution::kNormal, 10, DType::kBF16, shape, 2.0f);
    for (const ActivationKind kind :
         {ActivationKind::kGelu, ActivationKind::kSilu, ActivationKind::kSwiglu,
          ActivationKind::kGeglu, ActivationKind::kClampedSwiglu}) {
      const ActivationOptions options = {.kind = kind};
      const Tensor dy = Generated(Distribution::kNormal, 11, DType::kBF16,
                                  ActivationOutputShape(h.shape(), kind), 1.0f);
      ExpectSame(h, dy, options, DType::kBF16);
    }
  }
}

TEST(ActivationCudaTest, RealTensors) {
  const Tensor x = RealTensor("fc1.x");
  for (const ActivationOptions& options : EveryOptions()) {
    const Tensor dy = Generated(Distribution::kNormal, 12, DType::kBF16,
                                ActivationOutputShape(x.shape(), options.kind), 0.01f);
    ExpectSame(x, dy, options, DType::kBF16);
  }
}

TEST(ActivationCudaTest, Refusals) {
  const Tensor h = OnDevice(Generated(Distribution::kNormal, 1, DType::kF32, {2, 5}, 1.0f));
  const ActivationOptions swiglu = {.kind = ActivationKind::kSwiglu};
  EXPECT_EQ(ActivationForwardCuda(TestDevice(), h, swiglu, DType::kF32).status(),
            CheckActivationForward(h, swiglu, DType::kF32));
  EXPECT_EQ(ActivationBackwardCuda(TestDevice(), h, h, swiglu, DType::kF32).status(),
            CheckActivationBackward(h, h, swiglu, DType::kF32));
  EXPECT_FALSE(CheckActivationForward(h, swiglu, DType::kF32).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
