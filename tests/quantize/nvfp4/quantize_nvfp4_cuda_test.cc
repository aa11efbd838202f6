// NVFP4 on a GPU against quantize_nvfp4.cc, byte for byte: every rule, distribution, source dtype
// and usage; amaxes, counts and values of codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quantize/nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/base/repository_file.h"
#include "tests/quantize/every_quantizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::NamedQuantizer;

CudaDevice& Device() {
  static CudaDevice& device = *[] {
    auto opened = CudaDevice::Open(0);
    if (!opened.ok()) ADD_FAILURE() << opened.status();
    return opened->release();
  }();
  EXPECT_TRUE(device.MakeCurrent().ok());
  return device;
}

std::vector<NamedQuantizer> EveryNvfp4() {
  std::vector<NamedQuantizer> all;
  testing::AddNvfp4(all);
  // QuantizeCuda gives those to the general path.
  std::erase_if(
      all, [](const NamedQuantizer& named) { return named.quantizer.rowwise.has_library_steps(); });
  for (NamedQuantizer& named : all) named.name = QuantizerText(named.quantizer);
  return all;
}

/// Whether the quantizer takes the source in these usages.
bool Takes(const Quantizer& quantizer, const Tensor& source, Usages usages) {
  return CheckQuantization(source.dtype(), source.shape(), quantizer, usages).ok();
}

bool SameBytes(const Tensor& on_device, const Tensor& expected) {
  const auto found = Device().ToHost(on_device);
  if (!found.ok()) return false;
  return found->dtype() == expected.dtype() && found->shape() == expected.shape() &&
         (expected.byte_size() == 0 ||
          std::memcmp(found->data(), expected.data(), expected.byte_size()) == 0);
}

void ExpectSameCopy(const QuantizedCopy& found, const QuantizedCopy& expected,
                    const std::string& what) {
  EXPECT_EQ(found.format, expected.format) << what;
  EXPECT_EQ(found.element, expected.element) << what;
  EXPECT_EQ(found.block_dim, expected.block_dim) << what;
  EXPECT_EQ(found.e4m3_max, expected.e4m3_max) << what;
  EXPECT_EQ(found.hadamard, expected.hadamard) << what;
  ASSERT_EQ(found.amax.has_value(), expected.amax.has_value()) << what;
  if (expected.amax.has_value()) {
    EXPECT_TRUE(SameBytes(found.amax, expected.amax)) << what << " amax";
  }
  EXPECT_TRUE(SameBytes(found.scale_inv, expected.scale_inv)) << what << " scale_inv";
  EXPECT_TRUE(SameBytes(found.data, expected.data)) << what << " codes";
}

/// One rule for both usages, as quantizers of EveryNvfp4 are but for the transform.
QuantizerSpec SpecOf(const Quantizer& quantizer) {
  QuantizerSpec spec = quantizer.rowwise;
  spec.hadamard = quantizer.columnwise.hadamard;
  return spec;
}

struct Case {
  const Quantizer& quantizer;
  const Tensor& source;
  Usages usages;
  const QuantizeArguments& arguments;
};

void ExpectSamePath(const Case& c, const Tensor& source,
                    const absl::StatusOr<QuantizedTensor>& expected, Nvfp4Path path,
                    const std::string& what) {
  CudaDevice& device = Device();
  QuantizedCopy rowwise, columnwise;
  Tensor counts = *device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds});
  const absl::Status status =
      QuantizeNvfp4Cuda(device, source, SpecOf(c.quantizer), c.usages.rowwise ? &rowwise : nullptr,
                        c.usages.columnwise ? &columnwise : nullptr, c.arguments, counts, path);
  ASSERT_TRUE(status.ok()) << what << status;
  if (c.usages.rowwise) ExpectSameCopy(rowwise, *expected->rowwise, what + " rowwise");
  if (c.usages.columnwise) ExpectSameCopy(columnwise, *expected->columnwise, what + " columnwise");
  const Tensor counted = *device.ToHost(counts);
  EXPECT_EQ(std::memcmp(counted.data(), &expected->counts, sizeof(expected->counts)), 0)
      << what << " counts";
  if (!c.usages.rowwise) return;
  for (const DType out_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensor out = *device.Allocate(out_dtype, c.source.shape());
    ASSERT_TRUE(DequantizeNvfp4Cuda(device, rowwise, out, path).ok());
    EXPECT_TRUE(SameBytes(out, *DequantizeCpu(*expected, Usage::kRowwise, out_dtype, {})))
        << what << " values in " << DTypeName(out_dtype);
  }
}

void ExpectSame(const Case& c, const std::string& what) {
  const absl::StatusOr<QuantizedTensor> expected =
      QuantizeCpu(c.source, c.quantizer, c.usages, c.arguments, {});
  ASSERT_TRUE(expected.ok()) << what << expected.status();
  const Tensor source = *Device().ToDevice(c.source);
  ExpectSamePath(c, source, expected, Nvfp4Path::kPlain, what + ", plain");
  ExpectSamePath(c, source, expected, Nvfp4Path::kTuned, what + ", tuned");
}

const Usages kBoth = {true, true}, kRowwise = {true, false}, kColumnwise = {false, true};

Tensor Source(Distribution distribution, DType dtype, Shape shape, float scale = 1.0f) {
  return *Generate({.distribution = distribution,
                    .seed = 11,
                    .dtype = dtype,
                    .shape = std::move(shape),
                    .scale = scale},
                   {});
}

std::string TextOf(const NamedQuantizer& named, const Tensor& source, std::string_view kind) {
  return named.name + ", " + std::string(kind) + " " + TensorText(source);
}

TEST(QuantizeNvfp4Cuda, EveryRuleAndDistribution) {
  for (const NamedQuantizer& named : EveryNvfp4()) {
    for (const Distribution distribution : AllDistributions()) {
      for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
        const Tensor source = Source(distribution, dtype, {96, 160});
        for (const Usages usages : {kBoth, kRowwise, kColumnwise}) {
          if (!Takes(named.quantizer, source, usages)) continue;
          const QuantizeArguments arguments = named.ArgumentsFor();
          ExpectSame({named.quantizer, source, usages, arguments},
                     TextOf(named, source, DistributionName(distribution)));
        }
      }
    }
  }
}

TEST(QuantizeNvfp4Cuda, Shapes) {
  const std::vector<Shape> shapes = {{0, 32},     {16, 16},   {32, 32},   {16, 400},  {400, 16},
                                     {3, 16, 48}, {128, 128}, {256, 512}, {144, 272}, {1008, 2096}};
  for (const NamedQuantizer& named : EveryNvfp4()) {
    for (const Shape& shape : shapes) {
      const Tensor source = Source(Distribution::kLogNormalOutliers, DType::kBF16, shape);
      const QuantizeArguments arguments = named.ArgumentsFor();
      for (const Usages usages : {kBoth, kColumnwise}) {
        if (!Takes(named.quantizer, source, usages)) continue;
        ExpectSame({named.quantizer, source, usages, arguments}, TextOf(named, source, "outliers"));
      }
    }
  }
}

/// Magnitudes at both ends of bf16: tensor scales overflow and vanish, blocks underflow.
TEST(QuantizeNvfp4Cuda, ExtremeScales) {
  for (const NamedQuantizer& named : EveryNvfp4()) {
    for (const float scale : {0x1p-126f, 0x1p-110f, 0x1p-60f, 0x1p60f, 0x1p100f, 0x1p122f}) {
      for (const Distribution distribution :
           {Distribution::kNormal, Distribution::kLogNormalOutliers, Distribution::kOneHuge}) {
        const Tensor source = Source(distribution, DType::kBF16, {64, 256}, scale);
        const Usages usages = Takes(named.quantizer, source, kBoth) ? kBoth : kRowwise;
        const QuantizeArguments arguments = named.ArgumentsFor();
        ExpectSame({named.quantizer, source, usages, arguments},
                   TextOf(named, source, DistributionName(distribution)));
      }
    }
  }
}

/// Shards, seeds, and amaxes of a group, strange ones too.
TEST(QuantizeNvfp4Cuda, Arguments) {
  const Tensor source = Source(Distribution::kNormal, DType::kBF16, {128, 256});
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<QuantizeArguments> all;
  all.push_back({.seed = ~uint64_t{0}, .call_id = ~0u, .row_offset = 48, .column_offset = 1024});
  all.push_back({.row_offset = int64_t{1} << 36, .column_offset = int64_t{3} << 33});
  const Tensor other = Tensor::FromScalar(2.5f).value();
  for (const float value : {0.0f, 1.0f, 100.0f, 1e-40f, infinity, std::nanf("")}) {
    const Tensor amax = Tensor::FromScalar(value).value();
    all.push_back({.seed = 5, .group_amax_rowwise = amax});
    all.push_back({.seed = 5, .group_amax_rowwise = other, .group_amax_columnwise = amax});
  }
  for (const NamedQuantizer& named : EveryNvfp4()) {
    for (const QuantizeArguments& arguments : all) {
      for (const Usages usages : {kBoth, kColumnwise}) {
        if (!Takes(named.quantizer, source, usages)) continue;
        ExpectSame({named.quantizer, source, usages, arguments}, TextOf(named, source, "normal"));
      }
    }
  }
}

/// A source that begins at any element, where no wide load is aligned.
TEST(QuantizeNvfp4Cuda, ViewsAtAnOffset) {
  const int64_t rows = 128, columns = 256;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    const Tensor whole = Source(Distribution::kNormal, dtype, {rows * columns + 16});
    CudaDevice& device = Device();
    for (const NamedQuantizer& named : EveryNvfp4()) {
      const Tensor all = *device.ToDevice(whole);
      auto buffer = Buffer::Wrap(const_cast<std::byte*>(all.data()), all.byte_size(),
                                 std::make_shared<Tensor>(all), MemorySpace::kDevice);
      const size_t offset = 3 * static_cast<size_t>(DTypeBytes(dtype));
      const Tensor view = *Tensor::View(dtype, {rows, columns}, buffer, offset);
      const Tensor host =
          *Tensor::FromBytes(dtype, {rows, columns}, {whole.data() + offset, view.byte_size()});
      const Usages usages = Takes(named.quantizer, host, kBoth) ? kBoth : kRowwise;
      QuantizedCopy rowwise, columnwise;
      Tensor counts;
      ASSERT_TRUE(QuantizeNvfp4Cuda(device, view, SpecOf(named.quantizer), &rowwise,
                                    usages.columnwise ? &columnwise : nullptr, named.ArgumentsFor(),
                                    counts)
                      .ok());
      const QuantizedTensor expected =
          *QuantizeCpu(host, named.quantizer, usages, named.ArgumentsFor(), {});
      ExpectSameCopy(rowwise, *expected.rowwise, named.name);
      if (usages.columnwise) ExpectSameCopy(columnwise, *expected.columnwise, named.name);
    }
  }
}

/// Weights of a trained model.
TEST(QuantizeNvfp4Cuda, RealWeights) {
  const auto file = ReadSafetensors(RepositoryFile("data/bytegpt_block1.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  int quantized = 0;
  for (const auto& [name, tensor] : file->tensors) {
    if (tensor.rank() < 2 || !IsHighPrecision(tensor.dtype())) continue;
    const Tensor source = *CastTensor(tensor, DType::kBF16, {});
    for (const NamedQuantizer& named : EveryNvfp4()) {
      if (!Takes(named.quantizer, source, kBoth)) continue;
      const QuantizeArguments arguments = named.ArgumentsFor();
      ExpectSame({named.quantizer, source, kBoth, arguments}, TextOf(named, source, name));
      ++quantized;
    }
  }
  EXPECT_GT(quantized, 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
