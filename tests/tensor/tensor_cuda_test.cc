// GPU against CPU, byte for byte. The kernels' tuned and plain forms are compared through their
// launchers where the public function takes one of them by itself.
#include "kernels/tensor/device/tensor_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/device/staging_memory.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/number_source.h"
#include "kernels/tensor/tensor_kernels_cuda.h"
#include "kernels/tensor/transpose.h"
#include "kernels/tensor/visit_format.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::vector<DType> kTargets = {DType::kF32,    DType::kBF16,   DType::kF16,   DType::kF8E4M3,
                                     DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2};

Tensor Generated(Distribution distribution, DType dtype, Shape shape, float scale = 1.0f) {
  return ValueOrAbort(Generate({.distribution = distribution,
                                .seed = 17,
                                .dtype = dtype,
                                .shape = std::move(shape),
                                .scale = scale},
                               {}));
}

/// Every code of a type of at most 16 bits, in an order without runs.
Tensor EveryCode(DType dtype) {
  const int bytes = DTypeBytes(dtype);
  const int64_t codes = int64_t{1} << (8 * bytes);
  // 2 * codes + 3 elements, so that whole tiles and a tail have all of them.
  const int64_t count = 2 * codes + 3;
  Tensor tensor = ValueOrAbort(Tensor::Allocate(dtype, {count}));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t code = (i * 40503) % codes;
    std::memcpy(tensor.data() + i * bytes, &code, bytes);
  }
  return tensor;
}

TEST(GenerateCuda, BytesOfGenerate) {
  for (const Distribution distribution : AllDistributions()) {
    for (const DType dtype : kTargets) {
      for (const int64_t count : {0, 1, 4, 5, 1023, 300001}) {
        for (const float scale : {1.0f, -0x1.8p-3f, 0x1p40f}) {
          const GeneratorSpec spec = {.distribution = distribution,
                                      .seed = 0x123456789ABCDEF0u,
                                      .dtype = dtype,
                                      .shape = {count},
                                      .scale = scale};
          EXPECT_TRUE(SameTensor(ValueOrAbort(Generate(spec, {})),
                                 ValueOrAbort(GenerateCuda(TestDevice(), spec))))
              << DistributionName(distribution) << " times " << scale;
        }
      }
    }
  }
}

TEST(GenerateCuda, RefusesWhatGenerateRefuses) {
  for (const GeneratorSpec& spec : std::vector<GeneratorSpec>{
           {.dtype = DType::kI32, .shape = {4}},
           {.shape = {-4}},
           {.shape = {4}, .scale = std::numeric_limits<float>::infinity()}}) {
    EXPECT_EQ(GenerateCuda(TestDevice(), spec).status(), Generate(spec, {}).status());
  }
}

TEST(CastTensorCuda, BytesOfCastTensor) {
  for (const DType in : kTargets) {
    for (const DType out : kTargets) {
      for (const Distribution distribution : AllDistributions()) {
        const Tensor x = Generated(distribution, in, {3, 7001});
        EXPECT_TRUE(SameTensor(ValueOrAbort(CastTensor(x, out, {})),
                               ValueOrAbort(CastTensorCuda(TestDevice(), OnDevice(x), out))))
            << DTypeName(in) << " " << DistributionName(distribution);
      }
    }
  }
}

TEST(CastTensorCuda, EveryCodeOfNarrowTypes) {
  for (const DType in : kTargets) {
    if (in == DType::kF32) continue;
    const Tensor x = EveryCode(in);
    for (const DType out : kTargets) {
      const Tensor expected = ValueOrAbort(CastTensor(x, out, {}));
      EXPECT_TRUE(
          SameTensor(expected, ValueOrAbort(CastTensorCuda(TestDevice(), OnDevice(x), out))))
          << DTypeName(in);
      EXPECT_TRUE(SameTensor(
          expected, ValueOrAbort(CastTensorCuda(TestDevice(), OnDeviceShifted(x, 1), out))))
          << DTypeName(in);
    }
  }
}

/// Doubles of every exponent, and halfway cases of every target.
Tensor Doubles() {
  std::vector<double> values = {0.0, -0.0, 448.0, 464.0, 480.0, 57344.0, 61440.0, 65519.0, 65520.0};
  uint64_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t bits = state ^ (state >> 29);
    if (i % 2 == 0) bits = (bits & 0x800FFFFFFFFFFFFFu) | (uint64_t(850 + i % 310) << 52);
    if (i % 3 == 0) bits &= ~uint64_t{0} << (20 + i % 33);
    values.push_back(std::bit_cast<double>(bits));
  }
  return ValueOrAbort(Tensor::FromBytes(DType::kF64, {static_cast<int64_t>(values.size())},
                                        std::as_bytes(std::span(values))));
}

TEST(CastTensorCuda, FromDoubles) {
  const Tensor x = Doubles();
  for (const DType out : kTargets) {
    EXPECT_TRUE(SameTensor(ValueOrAbort(CastTensor(x, out, {})),
                           ValueOrAbort(CastTensorCuda(TestDevice(), OnDevice(x), out))));
  }
}

TEST(CastTensorCuda, SameDTypeIsTheTensorAndOthersAreRefused) {
  const Tensor x = OnDevice(Generated(Distribution::kNormal, DType::kF32, {16}));
  EXPECT_EQ(ValueOrAbort(CastTensorCuda(TestDevice(), x, DType::kF32)).data(), x.data());
  EXPECT_EQ(
      CastTensorCuda(TestDevice(), x, DType::kI32).status(),
      CastTensor(Generated(Distribution::kNormal, DType::kF32, {16}), DType::kI32, {}).status());
}

Tensor CastBy(KernelPath path, const Tensor& x, DType out) {
  Tensor result = ValueOrAbort(TestDevice().Allocate(out, x.shape()));
  const CastParameters parameters = {.from = NumbersOf(x),
                                     .to = result.data(),
                                     .format = FormatOf(out),
                                     .count = x.element_count()};
  EXPECT_EQ(LaunchCast(parameters, path, TestDevice().stream()), cudaSuccess);
  return result;
}

// The hardware's conversions are what EncodeFloat is, for all 2^32 floats; the plain kernel calls
// EncodeFloat. A fingerprint of both stands for their bytes.
TEST(LaunchCast, ConversionsEqualTheScalarCastForEveryFloat) {
  constexpr int64_t kPiece = int64_t{1} << 27;
  Tensor bits = ValueOrAbort(Tensor::Allocate(DType::kF32, {kPiece}));
  const DType targets[] = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
  for (int64_t begin = 0; begin < int64_t{1} << 32; begin += kPiece) {
    std::iota(bits.as<uint32_t>(), bits.as<uint32_t>() + kPiece, static_cast<uint32_t>(begin));
    const Tensor x = OnDevice(bits);
    for (const DType dtype : targets) {
      const auto print = [&](KernelPath path) {
        const Tensor cast = CastBy(path, x, dtype);
        return OnHost(ValueOrAbort(FingerprintsCuda(TestDevice(), {&cast, 1}))[0]);
      };
      const Tensor tuned = print(KernelPath::kTuned), plain = print(KernelPath::kPlain);
      ASSERT_EQ(std::memcmp(tuned.data(), plain.data(), 16), 0)
          << DTypeName(dtype) << " from " << begin;
    }
  }
}

TEST(Transpose2dCuda, BytesOfTranspose2d) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16, DType::kF32}) {
    for (const Shape& shape : std::vector<Shape>{{0, 5},
                                                 {5, 0},
                                                 {1, 1},
                                                 {1, 130},
                                                 {130, 1},
                                                 {4, 4},
                                                 {33, 31},
                                                 {128, 128},
                                                 {132, 260},
                                                 {2, 3, 68},
                                                 {257, 1000},
                                                 {1030, 130},
                                                 {36, 4}}) {
      const Tensor x = Generated(Distribution::kSpecialsLaced, dtype, shape);
      const Tensor expected = ValueOrAbort(Transpose2d(x, {}));
      EXPECT_TRUE(SameTensor(expected, ValueOrAbort(Transpose2dCuda(TestDevice(), OnDevice(x)))));
      EXPECT_TRUE(
          SameTensor(expected, ValueOrAbort(Transpose2dCuda(TestDevice(), OnDeviceShifted(x, 1)))));
    }
  }
  const Tensor wide = ValueOrAbort(TestDevice().AllocateZeroed(DType::kF64, {2, 2}));
  EXPECT_EQ(Transpose2dCuda(TestDevice(), wide).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ColumnSumsCuda, BytesOfColumnSums) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {0, 1, 7, 31, 255, 256, 257, 3000, 70001}) {
      for (const int64_t columns : {1, 3, 8, 100, 264}) {
        if (rows * columns > 8000000) continue;
        for (const Distribution distribution :
             {Distribution::kNormal, Distribution::kLogNormalOutliers, Distribution::kAllZero}) {
          const Tensor x = Generated(distribution, dtype, {rows, columns}, -1.0f);
          for (const DType out : {DType::kF32, DType::kBF16}) {
            const Tensor expected = ValueOrAbort(ColumnSums(x, out, {}));
            EXPECT_TRUE(
                SameTensor(expected, ValueOrAbort(ColumnSumsCuda(TestDevice(), OnDevice(x), out))))
                << TensorText(x) << " " << DistributionName(distribution);
            EXPECT_TRUE(SameTensor(
                expected, ValueOrAbort(ColumnSumsCuda(TestDevice(), OnDeviceShifted(x, 1), out))))
                << TensorText(x) << " " << DistributionName(distribution);
          }
        }
      }
    }
  }
}

TEST(ColumnSumsCuda, SpecialsAndRealGradients) {
  const Tensor specials = Generated(Distribution::kSpecialsLaced, DType::kF16, {60, 4000});
  const Tensor real = RealTensor("fc1.dy");
  for (const Tensor& x : {specials, real}) {
    EXPECT_TRUE(SameTensor(ValueOrAbort(ColumnSums(x, DType::kF16, {})),
                           ValueOrAbort(ColumnSumsCuda(TestDevice(), OnDevice(x), DType::kF16))));
  }
  EXPECT_EQ(ColumnSumsCuda(TestDevice(), OnDevice(real), DType::kF8E4M3).status(),
            ColumnSums(real, DType::kF8E4M3, {}).status());
}

void ExpectFingerprints(const std::vector<Tensor>& host, const std::vector<Tensor>& on_device) {
  const std::vector<Tensor> started = ValueOrAbort(FingerprintsCuda(TestDevice(), on_device));
  ASSERT_EQ(started.size(), host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    const Fingerprint expected = FingerprintOf(host[i], {});
    const Tensor actual = OnHost(started[i]);
    EXPECT_EQ(actual.as<uint64_t>()[0], expected.high) << i << " " << TensorText(host[i]);
    EXPECT_EQ(actual.as<uint64_t>()[1], expected.low) << i << " " << TensorText(host[i]);
  }
}

void ExpectFingerprint(const Tensor& host, const Tensor& on_device) {
  ExpectFingerprints({host}, {on_device});
}

TEST(FingerprintCuda, NumbersOfFingerprintOf) {
  for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 16383, 16384, 16391, 1000003}) {
    const Tensor x = Generated(Distribution::kNormal, DType::kF8E5M2, {count});
    ExpectFingerprint(x, OnDevice(x));
    for (const int64_t shift : {1, 2, 4, 8}) ExpectFingerprint(x, OnDeviceShifted(x, shift));
  }
  for (const char* name : {"fc1.x", "fc1.weight", "fc1.dy"}) {
    ExpectFingerprint(RealTensor(name), OnDevice(RealTensor(name)));
  }
}

// Small and large ones side by side, more than one launch takes.
TEST(FingerprintsCuda, NumbersOfEachOfMany) {
  std::vector<Tensor> host, on_device;
  for (int i = 0; i < 150; ++i) {
    const int64_t count = i % 3 == 0 ? 5 + i : i % 3 == 1 ? 16384 * i + i : 300007;
    host.push_back(
        Generated(Distribution::kNormal, DType::kF8E4M3, {i % 50 == 7 ? int64_t{0} : count}));
    on_device.push_back(i % 4 == 2 ? OnDeviceShifted(host.back(), 4) : OnDevice(host.back()));
  }
  ExpectFingerprints(host, on_device);
  ExpectFingerprints({}, {});
}

// Element counts and byte offsets beyond 32 bits.
TEST(TensorCuda, TensorsOfMoreThanFourGigabytes) {
  const GeneratorSpec spec = {.distribution = Distribution::kUniform,
                              .seed = 5,
                              .dtype = DType::kF8E4M3,
                              .shape = {65539, 65540}};
  const Tensor x = ValueOrAbort(Generate(spec, {}));
  const Tensor on_device = ValueOrAbort(GenerateCuda(TestDevice(), spec));
  ExpectFingerprint(x, on_device);
  ExpectFingerprint(ValueOrAbort(CastTensor(x, DType::kF8E5M2, {})),
                    ValueOrAbort(CastTensorCuda(TestDevice(), on_device, DType::kF8E5M2)));
  ExpectFingerprint(ValueOrAbort(Transpose2d(x, {})),
                    ValueOrAbort(Transpose2dCuda(TestDevice(), on_device)));
}

/// Devices in turn, and two at a time: what one leaves in the staging memory nobody else reads.
TEST(CudaDevice, StagesItsOwnBytesInMemoryThatOthersHad) {
  const int64_t count = static_cast<int64_t>(kStagingBytes) / 4 * 5 / 2;  // Two pieces and a half.
  std::unique_ptr<CudaDevice> other;
  for (int round = 0; round < 4; ++round) {
    std::unique_ptr<CudaDevice> device = ValueOrAbort(CudaDevice::Open(0));
    ASSERT_TRUE(device->MakeCurrent().ok());
    Tensor tensor = ValueOrAbort(Tensor::Allocate(DType::kI32, {count}));
    std::iota(tensor.as<int32_t>(), tensor.as<int32_t>() + count, 1000 * round);
    const Tensor on_device = ValueOrAbort(device->ToDevice(tensor));
    int32_t last = 0;
    const CudaDevice::Result result = {on_device.data() + 4 * (count - 1), &last, sizeof(last)};
    device->MarkResults();
    ASSERT_TRUE(device->ReadResults({&result, 1}).ok());
    EXPECT_EQ(last, tensor.as<int32_t>()[count - 1]);
    EXPECT_TRUE(SameTensor(ValueOrAbort(device->ToHost(on_device)), tensor)) << round;
    if (round % 2 == 0) other = std::move(device);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
