// Quantization on a GPU against the CPU engine, byte for byte: every quantizer, distribution,
// source dtype, usage and edge; what can be made of the result; its summary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

// First: it speaks of gtest's namespace where every_quantizer.h has one of that name too.
#include "tests/tensor/cuda_test_device.h"

#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/base/repository_file.h"
#include "tests/quantize/every_quantizer.h"
#include "tests/quantize/identity_casts.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::NamedQuantizer;

constexpr DType kHighPrecision[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr Usages kEveryUsage[] = {{true, true}, {true, false}, {false, true}};
constexpr Usage kBothUsages[] = {Usage::kRowwise, Usage::kColumnwise};

Tensor Source(Distribution distribution, DType dtype, Shape shape, float scale = 1.0f) {
  return ValueOrAbort(Generate({.distribution = distribution,
                                .seed = 17,
                                .dtype = dtype,
                                .shape = std::move(shape),
                                .scale = scale},
                               {}));
}

/// The per-tensor rules that EveryQuantizer does not have.
void AddFp8Tensor(std::vector<NamedQuantizer>& all) {
  for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const ElementRounding rounding :
         {ElementRounding::kNearestEven, ElementRounding::kNearestAway}) {
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kNan}) {
        QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .element = element};
        spec.element_rounding = rounding;
        spec.overflow = overflow;
        all.push_back({"", spec});
        spec.power_2_scale = true;
        all.push_back({"", spec});
        spec.scale_rule = ScaleRule::kReciprocal;
        spec.amax_epsilon = 6.5f;
        all.push_back({"", spec});
        spec = {.format = QuantizerFormat::kFp8Tensor, .element = element};
        spec.element_rounding = rounding;
        spec.overflow = overflow;
        spec.scaling = Scaling::kDelayed;
        all.push_back({"", spec});
      }
    }
  }
}

/// Directions with rules of their own.
void AddHybrids(std::vector<NamedQuantizer>& all) {
  const QuantizerSpec specs[] = {
      {.format = QuantizerFormat::kIdentity},
      {.format = QuantizerFormat::kIdentity, .element = DType::kF16},
      {.format = QuantizerFormat::kIdentity, .element = DType::kBF16},
      {.format = QuantizerFormat::kFp8Tensor},
      {.format = QuantizerFormat::kFp8Block, .element = DType::kF8E5M2, .block_dim = 2},
      {.format = QuantizerFormat::kMxfp8},
      {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2}};
  for (const QuantizerSpec& rowwise : specs) {
    for (const QuantizerSpec& columnwise : specs) {
      for (const ColumnwiseSource source :
           {ColumnwiseSource::kOriginal, ColumnwiseSource::kRowwiseDequantized}) {
        Quantizer quantizer;
        quantizer.rowwise = rowwise;
        quantizer.columnwise = columnwise;
        quantizer.columnwise_source = source;
        all.push_back({"", quantizer});
      }
    }
  }
}

const std::vector<NamedQuantizer>& All() {
  static const std::vector<NamedQuantizer> all = [] {
    std::vector<NamedQuantizer> every = testing::EveryQuantizer();
    AddFp8Tensor(every);
    AddHybrids(every);
    for (NamedQuantizer& named : every) named.name = QuantizerText(named.quantizer);
    // The formats of QuantizeNvfp4Cuda last: its own test says more of them.
    std::stable_partition(every.begin(), every.end(), [](const NamedQuantizer& named) {
      return named.quantizer.rowwise.format != QuantizerFormat::kNvfp4 &&
             named.quantizer.columnwise.format != QuantizerFormat::kNvfp4;
    });
    return every;
  }();
  return all;
}

void ExpectSameCopies(const QuantizedTensor& expected, const QuantizedTensor& found) {
  ASSERT_EQ(found.usages(), expected.usages());
  for (const Usage usage : kBothUsages) {
    if (!expected.copy(usage).has_value()) continue;
    SCOPED_TRACE(UsageName(usage));
    const QuantizedCopy &e = *expected.copy(usage), &f = *found.copy(usage);
    EXPECT_EQ(f.format, e.format);
    EXPECT_EQ(f.element, e.element);
    EXPECT_EQ(f.block_dim, e.block_dim);
    EXPECT_EQ(f.e4m3_max, e.e4m3_max);
    EXPECT_EQ(f.hadamard, e.hadamard);
    EXPECT_TRUE(SameTensor(e.data, f.data)) << "codes";
    ASSERT_EQ(f.scale_inv.has_value(), e.scale_inv.has_value());
    if (e.scale_inv.has_value()) {
      EXPECT_TRUE(SameTensor(e.scale_inv, f.scale_inv)) << "scales";
    }
    ASSERT_EQ(f.amax.has_value(), e.amax.has_value());
    if (e.amax.has_value()) {
      EXPECT_TRUE(SameTensor(e.amax, f.amax)) << "amax";
    }
    ASSERT_EQ(f.scale.has_value(), e.scale.has_value());
    if (e.scale.has_value()) {
      EXPECT_TRUE(SameTensor(e.scale, f.scale)) << "scale";
    }
  }
}

uint32_t BitsOf(const std::optional<float>& value) {
  return value.has_value() ? std::bit_cast<uint32_t>(*value) : 0xFFFFFFFF;
}

void ExpectSameSummary(const QuantizationSummary& expected, const QuantizationSummary& found) {
  EXPECT_EQ(BitsOf(found.amax), BitsOf(expected.amax));
  EXPECT_EQ(BitsOf(found.amax_columnwise), BitsOf(expected.amax_columnwise));
  EXPECT_EQ(BitsOf(found.scale), BitsOf(expected.scale));
  EXPECT_EQ(BitsOf(found.scale_inv), BitsOf(expected.scale_inv));
  EXPECT_EQ(found.scale_codes, expected.scale_codes);
  const QuantizationCounts &f = found.counts, &e = expected.counts;
  EXPECT_EQ(f.normal, e.normal);
  EXPECT_EQ(f.zero, e.zero);
  EXPECT_EQ(f.subnormal, e.subnormal);
  EXPECT_EQ(f.flushed_to_zero, e.flushed_to_zero);
  EXPECT_EQ(f.saturated, e.saturated);
  EXPECT_EQ(f.infinite, e.infinite);
  EXPECT_EQ(f.nan, e.nan);
}

void ExpectSameValues(const QuantizedTensor& expected, const QuantizedTensor& found) {
  for (const Usage usage : kBothUsages) {
    for (const DType dtype : kHighPrecision) {
      const auto values = DequantizeCpu(expected, usage, dtype, {});
      const auto on_device = DequantizeCuda(TestDevice(), found, usage, dtype);
      EXPECT_EQ(on_device.status(), values.status());
      if (!values.ok() || !on_device.ok()) continue;
      EXPECT_TRUE(SameTensor(*values, *on_device))
          << "values, " << UsageName(usage) << ", " << DTypeName(dtype);
    }
  }
}

void ExpectSameUpdates(const QuantizedTensor& expected, const QuantizedTensor& found) {
  for (const Usages usages : kEveryUsage) {
    QuantizedTensor e = expected, f = found;
    const absl::Status status = UpdateUsagesCpu(e, usages, {});
    EXPECT_EQ(UpdateUsagesCuda(TestDevice(), f, usages), status);
    ExpectSameCopies(e, f);
  }
}

/// Everything of one quantization; false once something differs.
bool ExpectSame(const NamedQuantizer& named, const Tensor& source, const Tensor& on_device,
                Usages usages, const QuantizeArguments& arguments) {
  SCOPED_TRACE(named.name + ", " + TensorText(source) + (usages.rowwise ? " rowwise" : "") +
               (usages.columnwise ? " columnwise" : ""));
  const auto expected = QuantizeCpu(source, named.quantizer, usages, arguments, {});
  QuantizeArguments arguments_there = arguments;
  arguments_there.scale = OnDevice(arguments.scale);
  auto found = QuantizeCuda(TestDevice(), on_device, named.quantizer, usages, arguments_there);
  EXPECT_EQ(found.status(), expected.status());
  if (!expected.ok() || !found.ok()) return !::testing::Test::HasFailure();
  EXPECT_EQ(found->source_dtype, expected->source_dtype);
  EXPECT_EQ(found->shape, expected->shape);
  EXPECT_EQ(found->is_hybrid, expected->is_hybrid);
  ExpectSameCopies(*expected, *found);
  ExpectSameSummary(SummarizeCpu(*expected),
                    ValueOrAbort(SummarizeCuda(TestDevice(), {&*found, 1}))[0]);
  EXPECT_TRUE(StartSummaryCuda(TestDevice(), *found).ok());
  ExpectSameSummary(SummarizeCpu(*expected),
                    ValueOrAbort(SummarizeCuda(TestDevice(), {&*found, 1}))[0]);
  ExpectSameValues(*expected, *found);
  ExpectSameUpdates(*expected, *found);
  return !::testing::Test::HasFailure();
}

TEST(QuantizeCuda, EveryQuantizerDistributionAndSource) {
  for (const Distribution distribution : AllDistributions()) {
    for (const DType dtype : kHighPrecision) {
      const Tensor source = Source(distribution, dtype, {256, 320});
      const Tensor on_device = OnDevice(source);
      for (const NamedQuantizer& named : All()) {
        ASSERT_TRUE(ExpectSame(named, source, on_device, {true, true}, named.ArgumentsFor()))
            << DistributionName(distribution);
      }
    }
  }
}

TEST(QuantizeCuda, CountsTheKindsOfIdentitysCasts) {
  for (const IdentityCast& cast : IdentityCasts()) {
    SCOPED_TRACE(cast.name);
    const QuantizedTensor found = ValueOrAbort(
        QuantizeCuda(TestDevice(), OnDevice(cast.Source()), cast.Spec(), {true, true}, {}));
    const Tensor counts = OnHost(found.device_counts);
    const QuantizationCounts& wanted = cast.counts;
    EXPECT_THAT(
        std::span(counts.as<int64_t>(), kQuantizationCountKinds),
        ::testing::ElementsAre(wanted.normal, wanted.zero, wanted.subnormal, wanted.flushed_to_zero,
                               wanted.saturated, wanted.infinite, wanted.nan));
  }
}

TEST(QuantizeCuda, EveryUsageAtTheEdges) {
  const Shape shapes[] = {{1, 1},    {3, 5},     {17, 33},   {31, 129},   {127, 64}, {129, 131},
                          {32, 32},  {96, 160},  {16, 16},   {32, 2080},  {160, 64}, {128, 128},
                          {256, 96}, {130, 264}, {144, 136}, {272, 1032}, {7},       {4096},
                          {4097},    {2, 3, 64}, {2, 64, 96}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const Tensor source = Source(Distribution::kNormal, dtype, shape);
      const Tensor on_device = OnDevice(source);
      for (const NamedQuantizer& named : All()) {
        for (const Usages usages : kEveryUsage) {
          ASSERT_TRUE(ExpectSame(named, source, on_device, usages, named.ArgumentsFor()));
        }
      }
    }
  }
}

/// Vectors need aligned addresses; a view need not have one.
TEST(QuantizeCuda, ViewsAtOddAddresses) {
  for (const DType dtype : kHighPrecision) {
    const Tensor source = Source(Distribution::kNormal, dtype, {128, 256});
    for (const int64_t shift : {1, 8}) {
      const Tensor on_device = OnDeviceShifted(source, shift);
      for (const NamedQuantizer& named : All()) {
        ASSERT_TRUE(ExpectSame(named, source, on_device, {true, true}, named.ArgumentsFor()));
      }
    }
  }
}

TEST(QuantizeCuda, EmptyTensors) {
  for (const Shape& shape : {Shape{0, 64}, Shape{2, 0, 64}, Shape{64, 0}}) {
    const Tensor source = ValueOrAbort(Tensor::Allocate(DType::kBF16, shape));
    for (const NamedQuantizer& named : All()) {
      for (const Usages usages : kEveryUsage) {
        ASSERT_TRUE(ExpectSame(named, source, OnDevice(source), usages, named.ArgumentsFor()));
      }
    }
  }
}

/// Scales at the ends of fp32: amaxes whose quotient overflows, and codes that all vanish.
TEST(QuantizeCuda, ExtremeMagnitudes) {
  for (const float scale : {0x1p-126f, 0x1p-120f, 0x1p-60f, 0x1p100f, 0x1p125f}) {
    const Tensor source = Source(Distribution::kLogNormalOutliers, DType::kBF16, {128, 256}, scale);
    const Tensor on_device = OnDevice(source);
    for (const NamedQuantizer& named : All()) {
      ASSERT_TRUE(ExpectSame(named, source, on_device, {true, true}, named.ArgumentsFor()))
          << scale;
    }
  }
}

/// Given scales and amaxes under which much saturates, and ones under which all vanishes.
TEST(QuantizeCuda, GivenScalesAndAmaxes) {
  for (const Distribution distribution : {Distribution::kNormal, Distribution::kSpecialsLaced}) {
    const Tensor source = Source(distribution, DType::kBF16, {256, 256});
    const Tensor on_device = OnDevice(source);
    for (const NamedQuantizer& named : All()) {
      if (named.quantizer.rowwise.format != QuantizerFormat::kFp8Tensor) continue;
      const bool is_delayed = named.quantizer.rowwise.scaling == Scaling::kDelayed;
      for (const float value : {1e-8f, 0.02f, 1.0f, 300.0f, 40000.0f}) {
        QuantizeArguments arguments;
        if (is_delayed) {
          arguments.scale = ValueOrAbort(Tensor::FromScalar(value));
        } else {
          arguments.group_amax_rowwise = ValueOrAbort(Tensor::FromScalar(value));
        }
        for (const Usages usages : kEveryUsage) {
          ASSERT_TRUE(ExpectSame(named, source, on_device, usages, arguments)) << value;
        }
      }
    }
  }
}

/// All 2^16 elements of each format under scales that reach every class of result.
TEST(QuantizeCuda, EverySixteenBitInput) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Tensor source = ValueOrAbort(Tensor::Allocate(dtype, {256, 256}));
    for (int i = 0; i < 1 << 16; ++i) source.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    const Tensor on_device = OnDevice(source);
    for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
      NamedQuantizer named = {"", QuantizerSpec{.format = QuantizerFormat::kFp8Tensor,
                                                .element = element,
                                                .scaling = Scaling::kDelayed}};
      named.name = QuantizerText(named.quantizer);
      for (const float scale : {1.0f, 0.3f, 1e-30f, 68.92307f, 3e30f, 0x1p127f}) {
        const QuantizeArguments arguments = {.scale = ValueOrAbort(Tensor::FromScalar(scale))};
        for (const Usages usages : kEveryUsage) {
          ASSERT_TRUE(ExpectSame(named, source, on_device, usages, arguments)) << scale;
        }
      }
    }
  }
}

/// What the tuned kernels take, and little else: short enough for compute-sanitizer.
TEST(QuantizeCuda, UsualRules) {
  Tensor source = Source(Distribution::kNormal, DType::kBF16, {288, 416});
  source.as<uint16_t>()[5 * 416 + 300] = 0x7F80;
  const Tensor on_device = OnDevice(source);
  std::vector<NamedQuantizer> usual;
  for (const int block_dim : {1, 2}) {
    usual.push_back(
        {"", QuantizerSpec{.format = QuantizerFormat::kFp8Block, .block_dim = block_dim}});
    usual.push_back({"", QuantizerSpec{.format = QuantizerFormat::kMxfp8, .block_dim = block_dim}});
  }
  usual.push_back({"", QuantizerSpec{.format = QuantizerFormat::kFp8Tensor}});
  usual.push_back(
      {"", QuantizerSpec{.format = QuantizerFormat::kFp8Tensor, .scaling = Scaling::kDelayed}});
  for (NamedQuantizer& named : usual) {
    named.name = QuantizerText(named.quantizer);
    for (const Usages usages : kEveryUsage) {
      ASSERT_TRUE(ExpectSame(named, source, on_device, usages, named.ArgumentsFor()));
    }
  }
}

/// Some tiles with specials, some without; tiles of zeros; more than one band of tiles.
TEST(QuantizeCuda, TilesOfEveryKindSideBySide) {
  Tensor source = Source(Distribution::kNormal, DType::kBF16, {1280, 1600});
  auto* elements = source.as<uint16_t>();
  const int64_t columns = source.columns();
  for (int64_t row = 128; row < 256; ++row) {
    std::fill_n(elements + row * columns + 256, 128,
                static_cast<uint16_t>(row % 2 == 0 ? 0x8000 : 0));
  }
  elements[300 * columns + 700] = 0x7F80;
  elements[900 * columns + 1500] = 0xFFC1;
  elements[901 * columns + 2] = 0xFF80;
  const Tensor on_device = OnDevice(source);
  for (const NamedQuantizer& named : All()) {
    for (const Usages usages : kEveryUsage) {
      ASSERT_TRUE(ExpectSame(named, source, on_device, usages, named.ArgumentsFor()));
    }
  }
}

TEST(QuantizeCuda, ARealLayer) {
  const TensorFile file =
      ValueOrAbort(ReadSafetensors(RepositoryFile("data/bytegpt_block1.safetensors")));
  int taken = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (!IsHighPrecision(tensor.dtype()) || tensor.rank() < 2) continue;
    ++taken;
    const Tensor on_device = OnDevice(tensor);
    for (const NamedQuantizer& named : testing::EveryQuantizer()) {
      ASSERT_TRUE(ExpectSame(named, tensor, on_device, {true, true}, named.ArgumentsFor())) << name;
    }
  }
  EXPECT_GT(taken, 2);
}

/// A fragment in the middle of `source`, measured and quantized.
void ExpectSameFragment(const Tensor& source, const QuantizerSpec& spec, Usage usage,
                        const Tensor& scale) {
  constexpr int64_t kBegin = 777, kCount = 12345;
  const auto bytes = static_cast<size_t>(DTypeBytes(source.dtype()));
  const TensorFragment fragment = {
      ValueOrAbort(Tensor::FromBytes(source.dtype(), {kCount},
                                     source.bytes().subspan(kBegin * bytes, kCount * bytes))),
      kBegin, source.shape()};
  const TensorFragment there = {OnDevice(fragment.values), kBegin, source.shape()};
  const Tensor amaxes = ValueOrAbort(MeasureFragmentCpu(fragment, spec, usage, {}));
  const Tensor amaxes_there = ValueOrAbort(MeasureFragmentCuda(TestDevice(), there, spec, usage));
  EXPECT_TRUE(SameTensor(amaxes, amaxes_there)) << "amaxes";
  const QuantizedFragment expected =
      ValueOrAbort(QuantizeFragmentCpu(fragment, spec, usage, {amaxes}, scale, {}));
  const QuantizedFragment found = ValueOrAbort(
      QuantizeFragmentCuda(TestDevice(), there, spec, usage, {amaxes_there}, OnDevice(scale)));
  EXPECT_TRUE(SameTensor(expected.codes, found.codes)) << "codes";
  EXPECT_TRUE(SameTensor(expected.whole.scale_inv, found.whole.scale_inv)) << "scales";
  ASSERT_EQ(found.whole.amax.has_value(), expected.whole.amax.has_value());
  if (expected.whole.amax.has_value()) {
    EXPECT_TRUE(SameTensor(expected.whole.amax, found.whole.amax)) << "amax";
  }
  ASSERT_EQ(found.whole.scale.has_value(), expected.whole.scale.has_value());
  if (expected.whole.scale.has_value()) {
    EXPECT_TRUE(SameTensor(expected.whole.scale, found.whole.scale)) << "scale";
  }
}

/// Tiny amaxes by every rule whose scales can flush subnormals, of whole tensors and fragments.
TEST(QuantizeCuda, FlushesTheSubnormalsThatTheCpuDoes) {
  const Tensor delayed_scale = ValueOrAbort(Tensor::FromScalar(0x1.8p126f));
  int of_fragments = 0;
  for (const int exponent : {-133, -127, -120, -119, -118, -112, -111, -100}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor source =
          Source(Distribution::kNormal, dtype, {160, 256}, std::ldexp(1.0f, exponent));
      const Tensor on_device = OnDevice(source);
      for (NamedQuantizer named : All()) {
        if (!named.quantizer.is_uniform()) continue;
        const bool is_delayed = named.quantizer.rowwise.scaling == Scaling::kDelayed;
        QuantizeArguments arguments = named.ArgumentsFor();
        if (is_delayed) arguments.scale = delayed_scale;
        for (const FlushSubnormals where :
             {FlushSubnormals::kShardedUpdate, FlushSubnormals::kNever, FlushSubnormals::kAlways}) {
          QuantizerSpec spec = named.quantizer.rowwise;
          spec.flush_subnormals = where;
          if (!CheckQuantizer(spec).ok()) continue;
          named.quantizer = spec;
          named.name = QuantizerText(spec);
          ASSERT_TRUE(ExpectSame(named, source, on_device, {true, true}, arguments)) << exponent;
          for (const Usage usage : kBothUsages) {
            if (!CheckFragment({source, 0, source.shape()}, spec, usage).ok()) continue;
            SCOPED_TRACE(named.name);
            ExpectSameFragment(source, spec, usage, arguments.scale);
            ASSERT_FALSE(HasFailure()) << exponent;
            ++of_fragments;
          }
        }
      }
    }
  }
  EXPECT_GT(of_fragments, 1000);
}

TEST(QuantizeCuda, RefusesAsTheCpuDoes) {
  const Tensor source = OnDevice(Source(Distribution::kNormal, DType::kBF16, {48, 48}));
  const auto message = [&](const Quantizer& quantizer, const QuantizeArguments& arguments) {
    return std::string(
        QuantizeCuda(TestDevice(), source, quantizer, {true, true}, arguments).status().message());
  };
  QuantizerSpec spec = {.format = QuantizerFormat::kMxfp8};
  EXPECT_THAT(message(spec, {}), ::testing::HasSubstr("mxfp8 needs both dims in multiples of 32"));
  spec = {.format = QuantizerFormat::kFp8Tensor, .scaling = Scaling::kDelayed};
  EXPECT_THAT(message(spec, {}),
              ::testing::HasSubstr("scale is absent: delayed scaling needs an f32"));
  EXPECT_THAT(message(spec, {.scale = ValueOrAbort(Tensor::FromScalar(-1.0f))}),
              ::testing::HasSubstr("scale is -1: must be positive and finite"));
  EXPECT_THAT(message(spec, {.scale = ValueOrAbort(Tensor::FromScalar(2.0f)), .row_offset = 3}),
              ::testing::HasSubstr("row_offset is 3: must be a multiple of 16"));
}

/// What cannot be allocated leaves nothing behind.
TEST(QuantizeCuda, EveryAllocationMayFail) {
  CudaDevice& device = TestDevice();
  const Tensor source = OnDevice(Source(Distribution::kNormal, DType::kBF16, {64, 64}));
  for (const NamedQuantizer& named : testing::EveryQuantizer()) {
    QuantizeArguments arguments = named.ArgumentsFor();
    arguments.scale = OnDevice(arguments.scale);
    const int64_t in_use = device.bytes_in_use(), before = device.allocation_count();
    ASSERT_TRUE(QuantizeCuda(device, source, named.quantizer, {true, true}, arguments).ok());
    const int64_t allocations = device.allocation_count() - before;
    for (int64_t k = 1; k <= allocations; ++k) {
      device.FailAllocation(k);
      EXPECT_EQ(
          QuantizeCuda(device, source, named.quantizer, {true, true}, arguments).status().code(),
          absl::StatusCode::kResourceExhausted)
          << named.name;
      EXPECT_EQ(device.bytes_in_use(), in_use) << named.name;
    }
    device.FailAllocation(0);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
