// The maxima ahead of a quantization, GPU against CPU, and quantizations by a group's amax that is
// on the device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

// First: it speaks of gtest's namespace where every_quantizer.h has one of that name too.
#include "tests/tensor/cuda_test_device.h"

#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/quantize/every_quantizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::EveryQuantizer;
using testing::NamedQuantizer;

constexpr Usages kEveryUsage[] = {{true, true}, {true, false}, {false, true}};

Tensor Source(Distribution distribution, DType dtype, Shape shape) {
  return ValueOrAbort(Generate(
      {.distribution = distribution, .seed = 23, .dtype = dtype, .shape = std::move(shape)}, {}));
}

::testing::AssertionResult SameOrAbsent(const Tensor& expected, const Tensor& on_device) {
  if (expected.has_value() != on_device.has_value()) {
    return ::testing::AssertionFailure() << "one of the two is absent";
  }
  if (!expected.has_value()) return ::testing::AssertionSuccess();
  return SameTensor(expected, on_device);
}

/// Every rule, and per-tensor FP8 by its own amax.
std::vector<NamedQuantizer> Rules() {
  std::vector<NamedQuantizer> rules = EveryQuantizer();
  rules.push_back({"fp8_tensor", QuantizerSpec{.format = QuantizerFormat::kFp8Tensor}});
  rules.push_back({"epsilon", QuantizerSpec{.format = QuantizerFormat::kFp8Tensor,
                                            .power_2_scale = true,
                                            .amax_epsilon = 6.5f}});
  return rules;
}

TEST(MeasureAmaxCuda, EveryRule) {
  for (const NamedQuantizer& rule : Rules()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Distribution distribution : AllDistributions()) {
        for (const Shape& shape : {Shape{96, 160}, Shape{0, 64}, Shape{16, 16}}) {
          const Tensor source = Source(distribution, dtype, shape);
          const Tensor on_device = OnDevice(source);
          for (const Usages usages : kEveryUsage) {
            const auto expected = MeasureAmaxCpu(source, rule.quantizer, usages, {});
            const auto actual = MeasureAmaxCuda(TestDevice(), on_device, rule.quantizer, usages);
            ASSERT_EQ(expected.status(), actual.status()) << rule.name;
            if (!expected.ok()) continue;
            ASSERT_TRUE(SameOrAbsent(expected->rowwise, actual->rowwise)) << rule.name;
            ASSERT_TRUE(SameOrAbsent(expected->columnwise, actual->columnwise)) << rule.name;
          }
        }
      }
    }
  }
}

/// What is measured of one tensor and given with another: empty shards too.
TEST(MeasureAmaxCuda, AGroupsAmaxStaysOnTheDevice) {
  for (const NamedQuantizer& rule : Rules()) {
    for (const int64_t rows : {0, 32, 96}) {
      const Tensor other = Source(Distribution::kLogNormalOutliers, DType::kBF16, {64, 160});
      const Tensor source = Source(Distribution::kNormal, DType::kBF16, {rows, 160});
      const Usages usages = {true, true};
      const auto amaxes = MeasureAmaxCpu(other, rule.quantizer, usages, {});
      if (!amaxes.ok()) continue;
      QuantizeArguments arguments, device_arguments;
      const bool is_delayed = rule.quantizer.rowwise.scaling == Scaling::kDelayed;
      if (is_delayed) arguments.scale = ValueOrAbort(Tensor::FromScalar(2.0f));
      device_arguments.scale = arguments.scale;
      arguments.group_amax_rowwise = amaxes->rowwise;
      arguments.group_amax_columnwise = amaxes->columnwise;
      if (amaxes->rowwise.has_value()) {
        device_arguments.group_amax_rowwise = OnDevice(amaxes->rowwise);
      }
      if (amaxes->columnwise.has_value()) {
        device_arguments.group_amax_columnwise = OnDevice(amaxes->columnwise);
      }
      const auto expected = QuantizeCpu(source, rule.quantizer, usages, arguments, {});
      const auto actual =
          QuantizeCuda(TestDevice(), OnDevice(source), rule.quantizer, usages, device_arguments);
      ASSERT_EQ(expected.status(), actual.status()) << rule.name;
      if (!expected.ok()) continue;
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        const QuantizedCopy &theirs = *expected->copy(usage), &ours = *actual->copy(usage);
        EXPECT_TRUE(SameOrAbsent(theirs.scale, ours.scale)) << rule.name << " " << rows;
        EXPECT_TRUE(SameTensor(theirs.data, ours.data)) << rule.name << " " << rows;
        EXPECT_TRUE(SameOrAbsent(theirs.scale_inv, ours.scale_inv)) << rule.name << " " << rows;
        EXPECT_TRUE(SameOrAbsent(theirs.amax, ours.amax)) << rule.name << " " << rows;
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
