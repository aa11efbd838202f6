// exp, tanh, sigmoid and 1/sqrt on a device against the CPU's, for all 2^32 inputs.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/cuda_status.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/transcendental.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/numerics/transcendental_cuda.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kChunk = int64_t{1} << 26;
constexpr int64_t kGrain = int64_t{1} << 16;

using Fill = void (*)(uint32_t first, int64_t count, float* values);

template <float (*kFunction)(float)>
inline void FillValues(uint32_t first, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = kFunction(std::bit_cast<float>(first + static_cast<uint32_t>(i)));
  }
}

/// The same with std::fma as one instruction instead of a call; the bits are the same either way.
template <float (*kFunction)(float)>
__attribute__((target("avx2,fma"), flatten)) void FillValuesFma(uint32_t first, int64_t count,
                                                                float* values) {
  FillValues<kFunction>(first, count, values);
}

template <float (*kFunction)(float)>
Fill FillOf() {
  return BestIsa() == Isa::kScalar ? &FillValues<kFunction> : &FillValuesFma<kFunction>;
}

struct DeviceFunction {
  std::string name;
  FloatFunction on_device;
  Fill on_host;
};

class TranscendentalCuda : public ::testing::TestWithParam<DeviceFunction> {};

TEST_P(TranscendentalCuda, AllInputs) {
  const DeviceFunction& f = GetParam();
  Tensor values = ValueOrAbort(TestDevice().Allocate(DType::kF32, {kChunk}));
  Tensor expected = ValueOrAbort(Tensor::Allocate(DType::kF32, {kChunk}));
  for (int64_t first = 0; first < int64_t{1} << 32; first += kChunk) {
    const auto bits = static_cast<uint32_t>(first);
    ASSERT_TRUE(QG_CUDA_STATUS(LaunchFloatFunction(f.on_device, bits, kChunk, values.as<float>(),
                                                   TestDevice().stream()))
                    .ok());
    ParallelFor(ExecutionContext(), kChunk, kGrain, [&](int64_t begin, int64_t end) {
      f.on_host(bits + static_cast<uint32_t>(begin), end - begin, expected.as<float>() + begin);
    });
    // Copying 16 GiB for each function would take most of the time.
    const Fingerprint on_host = FingerprintOf(expected, {});
    Fingerprint on_device;
    const Tensor words = ValueOrAbort(FingerprintsCuda(TestDevice(), {&values, 1}))[0];
    ASSERT_TRUE(TestDevice().Read(words.data(), &on_device, sizeof(on_device)).ok());
    if (on_device == on_host) continue;
    FAIL() << f.name << " from 0x" << std::hex << bits << ": "
           << SameTensor(expected, values).message();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Functions, TranscendentalCuda,
    ::testing::Values(DeviceFunction{"exp", FloatFunction::kExp, FillOf<Exp>()},
                      DeviceFunction{"tanh", FloatFunction::kTanh, FillOf<Tanh>()},
                      DeviceFunction{"sigmoid", FloatFunction::kSigmoid, FillOf<Sigmoid>()},
                      DeviceFunction{"rsqrt", FloatFunction::kReciprocalSqrt,
                                     FillOf<ReciprocalSqrt>()},
                      DeviceFunction{"sigmoid_by_floats", FloatFunction::kSigmoidByFloats,
                                     FillOf<SigmoidByFloats>()}),
    [](const auto& info) { return info.param.name; });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
