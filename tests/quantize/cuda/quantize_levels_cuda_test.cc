// Integers and tables of levels on a GPU against the CPU engine, byte for byte: every form of every
// library, groups, dtypes and hostile values; codes, scales, zero points, counts and values.
#include <gtest/gtest.h>

#include <string>
#include <vector>

// First: it speaks of gtest's namespace where hostile_levels.h has one of that name too.
#include "tests/tensor/cuda_test_device.h"

#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/quantize/general/level_forms.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/quantize/hostile_levels.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr DType kHighPrecision[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr Usages kEveryUsage[] = {{true, true}, {true, false}, {false, true}};

/// Every form with every kind of group that it has; 0 is the usual one.
std::vector<QuantizerSpec> EverySpec() {
  std::vector<QuantizerSpec> specs;
  for (const LevelForm& form : AllLevelForms()) {
    for (const int group : {0, 2, 3, 32, 100, 4096, kTensorGroup, kLineGroup}) {
      for (const StepDType operations : {StepDType::kF32, StepDType::kSource}) {
        QuantizerSpec spec = {.format = form.format, .element = form.element};
        spec.scale_rule = form.rule;
        spec.zero_point = form.zero_point;
        spec.group = group;
        spec.operation_dtype = operations;
        if (CheckQuantizer(spec).ok()) specs.push_back(spec);
      }
    }
  }
  return specs;
}

void ExpectSameCopy(const QuantizedCopy& expected, const QuantizedCopy& found) {
  EXPECT_EQ(found.format, expected.format);
  EXPECT_EQ(found.element, expected.element);
  EXPECT_EQ(found.group, expected.group);
  EXPECT_TRUE(SameTensor(expected.scale_inv, found.scale_inv)) << "scales";
  ASSERT_EQ(found.zero_point.has_value(), expected.zero_point.has_value());
  if (expected.zero_point.has_value()) {
    EXPECT_TRUE(SameTensor(expected.zero_point, found.zero_point)) << "zero points";
  }
  EXPECT_TRUE(SameTensor(expected.data, found.data)) << "codes";
}

/// Everything of one quantization; false once something differs. Adds to `compared`.
bool ExpectSame(const QuantizerSpec& spec, const Tensor& source, const Tensor& on_device,
                Usages usages, int& compared) {
  if (!CheckQuantization(source.dtype(), source.shape(), spec, usages).ok()) return true;
  SCOPED_TRACE(QuantizerText(spec) + " of " + TensorText(source) +
               (usages.rowwise ? " rowwise" : "") + (usages.columnwise ? " columnwise" : ""));
  const QuantizedTensor expected = ValueOrAbort(QuantizeCpu(source, spec, usages, {}, {}));
  const auto found = QuantizeCuda(TestDevice(), on_device, spec, usages, {});
  EXPECT_TRUE(found.ok()) << found.status();
  if (!found.ok()) return false;
  EXPECT_EQ(found->usages(), expected.usages());
  const QuantizationSummary summary = ValueOrAbort(SummarizeCuda(TestDevice(), {&*found, 1}))[0];
  EXPECT_EQ(summary.counts, expected.counts);
  EXPECT_EQ(summary.scale_codes, SummarizeCpu(expected).scale_codes);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!expected.copy(usage).has_value()) continue;
    SCOPED_TRACE(UsageName(usage));
    ExpectSameCopy(*expected.copy(usage), *found->copy(usage));
    for (const DType dtype : kHighPrecision) {
      const Tensor values = ValueOrAbort(DequantizeCpu(expected, usage, dtype, {}));
      const auto there = DequantizeCuda(TestDevice(), *found, usage, dtype);
      EXPECT_TRUE(there.ok()) << there.status();
      if (!there.ok()) return false;
      EXPECT_TRUE(SameTensor(values, *there)) << "values in " << DTypeName(dtype);
    }
  }
  ++compared;
  return !::testing::Test::HasFailure();
}

TEST(QuantizeLevelsCuda, EveryFormGroupAndHostileSource) {
  constexpr int64_t kShapes[][2] = {{1, 2},  {2, 1},     {17, 130}, {24, 66},
                                    {9, 66}, {64, 1024}, {2, 4098}, {5000, 2}};
  int compared = 0;
  for (const DType dtype : kHighPrecision) {
    for (const auto& [m, k] : kShapes) {
      const Tensor source = testing::HostileLevels(dtype, m, k);
      const Tensor on_device = OnDevice(source);
      for (const QuantizerSpec& spec : EverySpec()) {
        for (const Usages usages : kEveryUsage) {
          ASSERT_TRUE(ExpectSame(spec, source, on_device, usages, compared));
        }
      }
    }
  }
  EXPECT_GT(compared, 5000);
}

/// Every bf16 and f16 there is, beside values that set the scale.
TEST(QuantizeLevelsCuda, EverySixteenBitInput) {
  int compared = 0;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Tensor source = ValueOrAbort(Tensor::Allocate(dtype, {1024, 64}));
    for (int i = 0; i < 1 << 16; ++i) source.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    const Tensor on_device = OnDevice(source);
    for (const QuantizerSpec& spec : EverySpec()) {
      for (const Usages usages : {Usages{true, false}, Usages{false, true}}) {
        ASSERT_TRUE(ExpectSame(spec, source, on_device, usages, compared));
      }
    }
  }
  EXPECT_GT(compared, 500);
}

/// Without NaN and infinities, so that scales of whole tensors and long rows are finite; groups
/// that are cut into parts.
TEST(QuantizeLevelsCuda, EveryDistribution) {
  int compared = 0;
  for (const Distribution distribution : AllDistributions()) {
    for (const DType dtype : kHighPrecision) {
      const Tensor source = ValueOrAbort(Generate(
          {.distribution = distribution, .seed = 17, .dtype = dtype, .shape = {20, 5000}}, {}));
      const Tensor on_device = OnDevice(source);
      for (const QuantizerSpec& spec : EverySpec()) {
        if (spec.group == 2 || spec.group == 3) continue;  // Slow on the CPU, and seen above.
        ASSERT_TRUE(ExpectSame(spec, source, on_device, {true, false}, compared))
            << DistributionName(distribution);
      }
    }
  }
  EXPECT_GT(compared, 500);
}

/// Zeros of both signs: the one that comes first is a zero point.
TEST(QuantizeLevelsCuda, TheFirstOfEqualExtremes) {
  int compared = 0;
  for (const DType dtype : kHighPrecision) {
    for (const int first_negative : {0, 1, 40, 4500}) {
      Tensor source = ValueOrAbort(Tensor::Allocate(DType::kF32, {2, 9000}));
      for (int64_t i = 0; i < source.element_count(); ++i) {
        source.as<float>()[i] = i % 9000 < first_negative || i % 3 == 1 ? 0.0f : -0.0f;
      }
      source = ValueOrAbort(CastTensor(source, dtype, {}));
      const Tensor on_device = OnDevice(source);
      for (const QuantizerSpec& spec : EverySpec()) {
        ASSERT_TRUE(ExpectSame(spec, source, on_device, {true, false}, compared));
      }
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(QuantizeLevelsCuda, EmptyTensorsAndOddAddresses) {
  int compared = 0;
  for (const Shape& shape : {Shape{0, 64}, Shape{2, 0, 64}, Shape{64, 0}}) {
    const Tensor source = ValueOrAbort(Tensor::Allocate(DType::kBF16, shape));
    for (const QuantizerSpec& spec : EverySpec()) {
      ASSERT_TRUE(ExpectSame(spec, source, OnDevice(source), {true, false}, compared));
    }
  }
  for (const DType dtype : kHighPrecision) {
    const Tensor source = testing::HostileLevels(dtype, 32, 256);
    const Tensor on_device = OnDeviceShifted(source, 1);
    for (const QuantizerSpec& spec : EverySpec()) {
      ASSERT_TRUE(ExpectSame(spec, source, on_device, {true, false}, compared));
    }
  }
  EXPECT_GT(compared, 500);
}

/// What cannot be allocated leaves nothing behind.
TEST(QuantizeLevelsCuda, EveryAllocationMayFail) {
  CudaDevice& device = TestDevice();
  const Tensor source = OnDevice(testing::HostileLevels(DType::kBF16, 8, 8192));
  for (const LevelForm& form : AllLevelForms()) {
    QuantizerSpec spec = {.format = form.format, .element = form.element};
    spec.scale_rule = form.rule;
    spec.zero_point = form.zero_point;
    const int64_t in_use = device.bytes_in_use(), before = device.allocation_count();
    ASSERT_TRUE(QuantizeCuda(device, source, spec, {true, false}, {}).ok());
    const int64_t allocations = device.allocation_count() - before;
    ASSERT_GT(allocations, 2);
    for (int64_t k = 1; k <= allocations; ++k) {
      device.FailAllocation(k);
      EXPECT_EQ(QuantizeCuda(device, source, spec, {true, false}, {}).status().code(),
                absl::StatusCode::kResourceExhausted)
          << QuantizerText(spec);
      EXPECT_EQ(device.bytes_in_use(), in_use) << QuantizerText(spec);
    }
    device.FailAllocation(0);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
