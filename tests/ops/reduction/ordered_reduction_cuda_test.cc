// Reductions over parts, GPU against CPU, byte for byte; aligned and not, more parts than one
// launch takes.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

#include "kernels/ops/ops_cuda.h"
#include "kernels/ops/reduction/ordered_reduction_kernels.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::vector<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};
const std::vector<int64_t> kCounts = {0, 1, 7, 8, 9, 4099, 70001};
const std::vector<int> kPartCounts = {1,
                                      2,
                                      3,
                                      8,
                                      kReductionPartsMax,
                                      kReductionPartsMax + 1,
                                      kReductionPartsMax + 2,
                                      2 * kReductionPartsMax + 5};

std::vector<Tensor> Parts(Distribution distribution, DType dtype, int64_t elements, int count) {
  std::vector<Tensor> parts;
  for (int i = 0; i < count; ++i) {
    parts.push_back(ValueOrAbort(Generate({.distribution = distribution,
                                           .seed = static_cast<uint64_t>(i),
                                           .dtype = dtype,
                                           .shape = {elements}},
                                          {})));
  }
  return parts;
}

/// All aligned, or the last one `shift` elements past that.
std::vector<Tensor> OnDevice(const std::vector<Tensor>& parts, int64_t shift) {
  std::vector<Tensor> moved;
  for (const Tensor& part : parts) moved.push_back(OnDevice(part));
  if (shift != 0) moved.back() = OnDeviceShifted(parts.back(), shift);
  return moved;
}

TEST(OrderedSumCuda, EveryDistributionTypeAndCount) {
  for (const Distribution distribution : AllDistributions()) {
    for (const DType in : kFloats) {
      for (const int64_t elements : kCounts) {
        const std::vector<Tensor> parts = Parts(distribution, in, elements, 4);
        for (const DType out : kFloats) {
          for (const auto accumulation : {SumAccumulation::kF32, SumAccumulation::kElement}) {
            const Tensor expected = ValueOrAbort(OrderedSumCpu(parts, accumulation, out, {}));
            for (const int64_t shift : {0, 1}) {
              ASSERT_TRUE(SameTensor(
                  expected, ValueOrAbort(OrderedSumCuda(TestDevice(), OnDevice(parts, shift),
                                                        accumulation, out))))
                  << DistributionName(distribution) << " " << elements << " shift " << shift;
            }
          }
        }
      }
    }
  }
}

TEST(OrderedSumCuda, AnyNumberOfParts) {
  for (const int count : kPartCounts) {
    for (const DType in : kFloats) {
      const std::vector<Tensor> parts = Parts(Distribution::kNormal, in, 1027, count);
      for (const auto accumulation : {SumAccumulation::kF32, SumAccumulation::kElement}) {
        EXPECT_TRUE(SameTensor(ValueOrAbort(OrderedSumCpu(parts, accumulation, DType::kBF16, {})),
                               ValueOrAbort(OrderedSumCuda(TestDevice(), OnDevice(parts, 0),
                                                           accumulation, DType::kBF16))))
            << count;
      }
    }
  }
}

TEST(MaximumCuda, NumbersAndSpecials) {
  for (const Distribution distribution :
       {Distribution::kNormal, Distribution::kSpecialsLaced, Distribution::kAllZero}) {
    for (const int64_t elements : kCounts) {
      for (const int count : kPartCounts) {
        const std::vector<Tensor> parts = Parts(distribution, DType::kF32, elements, count);
        for (const int64_t shift : {0, 1}) {
          ASSERT_TRUE(SameTensor(ValueOrAbort(MaximumCpu(parts, {})),
                                 ValueOrAbort(MaximumCuda(TestDevice(), OnDevice(parts, shift)))))
              << elements << " x " << count;
        }
      }
    }
  }
}

/// Every pair of these.
TEST(MaximumCuda, NanAndZeros) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,
                                     -0.0f,
                                     1.0f,
                                     -1.0f,
                                     infinity,
                                     -infinity,
                                     0x1p-149f,
                                     -0x1p-149f,
                                     std::bit_cast<float>(0x7FC00000u),
                                     std::bit_cast<float>(0xFF800001u)};
  std::vector<float> a, b;
  for (const float left : values) {
    for (const float right : values) {
      a.push_back(left);
      b.push_back(right);
    }
  }
  const auto tensor = [](const std::vector<float>& all) {
    return ValueOrAbort(Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(all.size())},
                                          std::as_bytes(std::span(all))));
  };
  const std::vector<Tensor> parts = {tensor(a), tensor(b)};
  const std::vector<Tensor> on_device = OnDevice(parts, 0);
  EXPECT_TRUE(SameTensor(ValueOrAbort(MaximumCpu(parts, {})),
                         ValueOrAbort(MaximumCuda(TestDevice(), on_device))));
  for (const auto accumulation : {SumAccumulation::kF32, SumAccumulation::kElement}) {
    EXPECT_TRUE(SameTensor(
        ValueOrAbort(OrderedSumCpu(parts, accumulation, DType::kF32, {})),
        ValueOrAbort(OrderedSumCuda(TestDevice(), on_device, accumulation, DType::kF32))));
  }
}

TEST(ReductionsCuda, RefuseWhatTheCpuRefuses) {
  const std::vector<Tensor> parts = {Parts(Distribution::kNormal, DType::kF32, 4, 1)[0],
                                     Parts(Distribution::kNormal, DType::kF32, 5, 1)[0]};
  const std::vector<Tensor> on_device = OnDevice(parts, 0);
  EXPECT_EQ(OrderedSumCuda(TestDevice(), on_device, SumAccumulation::kF32, DType::kF32).status(),
            OrderedSumCpu(parts, SumAccumulation::kF32, DType::kF32, {}).status());
  EXPECT_EQ(MaximumCuda(TestDevice(), on_device).status(), MaximumCpu(parts, {}).status());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
