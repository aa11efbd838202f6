// Attention beside its GEMMs, GPU against CPU, byte for byte; plain kernels as well as tuned ones,
// aligned tensors and others.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops/ops_cuda.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::vector<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};

Tensor Generated(Distribution distribution, DType dtype, Shape shape, uint64_t seed) {
  return ValueOrAbort(Generate(
      {.distribution = distribution, .seed = seed, .dtype = dtype, .shape = std::move(shape)}, {}));
}

/// How operands come to the device: aligned, or one element past that.
using ToDevice = std::function<Tensor(const Tensor&)>;
const ToDevice kAligned = [](const Tensor& tensor) { return OnDevice(tensor); };
const ToDevice kShifted = [](const Tensor& tensor) { return OnDeviceShifted(tensor, 1); };

void ExpectSameSoftmax(const SoftmaxDesc& desc, const Tensor& gradient) {
  const SoftmaxResult expected = ValueOrAbort(SoftmaxForwardCpu(desc, {}));
  const SoftmaxBackwardDesc backward = {gradient, expected.probabilities, desc.scale, desc.mask};
  const Tensor slopes = ValueOrAbort(SoftmaxBackwardCpu(backward, {}));
  for (const ToDevice& to : {kAligned, kShifted}) {
    SoftmaxDesc moved = desc;
    for (Tensor* tensor : TensorsOf(moved)) *tensor = to(*tensor);
    SoftmaxBackwardDesc moved_backward = backward;
    for (Tensor* tensor : TensorsOf(moved_backward)) *tensor = to(*tensor);
    for (const KernelPath path : {KernelPath::kTuned, KernelPath::kPlain}) {
      const SoftmaxResult result = ValueOrAbort(SoftmaxForwardCuda(TestDevice(), moved, path));
      EXPECT_TRUE(SameTensor(expected.probabilities, result.probabilities)) << "probabilities";
      EXPECT_TRUE(SameTensor(expected.rounded, result.rounded)) << "rounded";
      EXPECT_TRUE(
          SameTensor(slopes, ValueOrAbort(SoftmaxBackwardCuda(TestDevice(), moved_backward, path))))
          << "backward";
    }
  }
}

TEST(SoftmaxCuda, EveryDistributionAndShape) {
  const Shape shapes[] = {{1, 1},       {3, 3, 7},    {2, 5, 8},    {2, 16, 16}, {3, 9, 31},
                          {2, 7, 40},   {130, 128},   {3, 1, 248},  {2, 2, 256}, {5, 5, 264},
                          {2, 3, 1000}, {3, 1024},    {2, 2, 2048}, {3, 4096},   {2, 8192},
                          {1, 8200},    {2, 16384},   {1, 32768},   {1, 40000},  {0, 8},
                          {2, 0, 8},    {1030, 3, 24}};
  uint64_t seed = 0;
  for (const Shape& shape : shapes) {
    for (const Distribution distribution : AllDistributions()) {
      for (const DType dtype : kFloats) {
        for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
          SCOPED_TRACE(std::string(DistributionName(distribution)) + " " +
                       std::string(DTypeName(dtype)) + " " + ShapeText(shape) + " " +
                       std::string(AttentionMaskName(mask)));
          const int64_t queries = shape[shape.size() - 2];
          if (mask == AttentionMask::kCausal && queries > shape.back()) continue;
          SoftmaxDesc desc;
          desc.scores = Generated(distribution, dtype, shape, ++seed);
          desc.scale = seed % 3 == 0 ? 1.0f : 0.7f;
          desc.mask = mask;
          ExpectSameSoftmax(desc, Generated(distribution, dtype, shape, ++seed));
          if (HasFailure()) return;  // The first of thousands says enough.
        }
      }
    }
  }
}

// Rows whose terms reach from 1 to below the smallest number, those that a kernel's own division is
// not for among them.
TEST(SoftmaxCuda, TermsDownToTheSmallest) {
  for (const DType dtype : kFloats) {
    for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
      SoftmaxDesc desc;
      desc.scores = Generated(Distribution::kUniform, dtype, {4, 512, 2048}, 1);
      desc.scale = 60;  // Terms down to e^-120; a binary32 number is 0 below e^-104.
      desc.mask = mask;
      ExpectSameSoftmax(desc, Generated(Distribution::kNormal, dtype, {4, 512, 2048}, 2));
    }
  }
}

// Sums that are -0 where no key is left out, and +0 where some are.
TEST(SoftmaxCuda, SignsOfZeroSums) {
  for (const int64_t keys : {5, 40, 2048}) {
    SoftmaxDesc desc;
    desc.scores = Generated(Distribution::kNormal, DType::kF32, {5, keys}, 1);
    Tensor gradient = Generated(Distribution::kAllZero, DType::kF32, {5, keys}, 2);
    for (int64_t i = 0; i < gradient.element_count(); ++i) gradient.as<float>()[i] = -0.0f;
    for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
      desc.mask = mask;
      ExpectSameSoftmax(desc, gradient);
    }
  }
}

TEST(SoftmaxCuda, RefusesWhatTheCpuRefuses) {
  SoftmaxDesc desc;
  desc.scores = Generated(Distribution::kNormal, DType::kF32, {3, 2}, 1);
  desc.mask = AttentionMask::kCausal;
  EXPECT_EQ(SoftmaxForwardCuda(TestDevice(), desc).status(), SoftmaxForwardCpu(desc, {}).status());
}

TEST(RotateCuda, EveryDistributionAndShape) {
  uint64_t seed = 0;
  for (const Shape& shape :
       {Shape{1, 1, 2}, Shape{5, 3, 6}, Shape{8, 7, 16}, Shape{6, 5, 24}, Shape{12, 65, 64},
        Shape{3, 33, 128}, Shape{4, 2, 1030}, Shape{0, 3, 16}, Shape{3, 0, 16}}) {
    for (const Distribution distribution : AllDistributions()) {
      for (const DType dtype : kFloats) {
        RotaryDesc desc;
        desc.heads = Generated(distribution, dtype, shape, ++seed);
        desc.table = seed % 2 == 0
                         ? ValueOrAbort(MakeRotaryTable(1e4f, shape[1], shape[2], dtype))
                         : RotaryTable{Generated(distribution, dtype, {shape[1], shape[2] / 2}, 1),
                                       Generated(distribution, dtype, {shape[1], shape[2] / 2}, 2)};
        for (const auto& [period, rotated] :
             {std::pair<int64_t, int64_t>{1, 1}, {4, 3}, {3, 1}, {2, 0}}) {
          for (const bool is_backward : {false, true}) {
            desc.period = period;
            desc.rotated = rotated;
            desc.is_backward = is_backward;
            const Tensor expected = ValueOrAbort(RotateCpu(desc, {}));
            for (const ToDevice& to : {kAligned, kShifted}) {
              RotaryDesc moved = desc;
              for (Tensor* tensor : TensorsOf(moved)) *tensor = to(*tensor);
              EXPECT_TRUE(SameTensor(expected, ValueOrAbort(RotateCuda(TestDevice(), moved))))
                  << DTypeName(dtype) << " " << ShapeText(shape) << " " << period << " " << rotated;
            }
          }
        }
        if (HasFailure()) return;
      }
    }
  }
}

// Heads that are not rotated keep their bytes, those of a NaN too.
TEST(RotateCuda, CopiesAreCopies) {
  RotaryDesc desc;
  desc.heads = Generated(Distribution::kNormal, DType::kBF16, {2, 3, 16}, 1);
  for (int64_t i = 0; i < desc.heads.element_count(); ++i) desc.heads.as<uint16_t>()[i] = 0xFFC1;
  desc.table = ValueOrAbort(MakeRotaryTable(1e4f, 3, 16, DType::kBF16));
  desc.rotated = 0;
  for (const ToDevice& to : {kAligned, kShifted}) {
    RotaryDesc moved = desc;
    for (Tensor* tensor : TensorsOf(moved)) *tensor = to(*tensor);
    EXPECT_TRUE(SameTensor(desc.heads, ValueOrAbort(RotateCuda(TestDevice(), moved))));
  }
}

TEST(SwapDimsCuda, EveryWidth) {
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 7, 2}, Shape{33, 17, 5}, Shape{9, 65, 64},
                             Shape{2, 3, 4, 5}, Shape{0, 4, 3}, Shape{4, 3, 0}}) {
    for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
      Tensor source = ValueOrAbort(Tensor::Allocate(dtype, shape));
      for (size_t i = 0; i < source.byte_size(); ++i) {
        source.data()[i] = static_cast<std::byte>(i * 2654435761u >> 7);
      }
      const Tensor expected = ValueOrAbort(SwapDimsCpu(source, {}));
      for (const ToDevice& to : {kAligned, kShifted}) {
        EXPECT_TRUE(SameTensor(expected, ValueOrAbort(SwapDimsCuda(TestDevice(), to(source)))))
            << DTypeName(dtype) << " " << ShapeText(shape);
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
