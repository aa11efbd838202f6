// The few-instruction steps of the tuned NVFP4 kernels are the scalar functions: casts of every
// fp32 magnitude with every random byte, the transform of random and of adversarial groups.
#include "tests/quantize/nvfp4/nvfp4_steps_cuda.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::LaunchCompareStep;
using testing::LaunchCompareTransform;
using testing::Nvfp4Step;

CudaDevice& Device() {
  static CudaDevice& device = *CudaDevice::Open(0)->release();
  EXPECT_TRUE(device.MakeCurrent().ok());
  return device;
}

int64_t DifferencesOf(Nvfp4Step step) {
  CudaDevice& device = Device();
  Tensor differences = *device.AllocateZeroed(DType::kI64, {1});
  EXPECT_EQ(LaunchCompareStep(step, differences.as<unsigned long long>(), device.stream()),
            cudaSuccess);
  int64_t count = -1;
  EXPECT_TRUE(device.Read(differences.data(), &count, sizeof(count)).ok());
  return count;
}

TEST(Nvfp4Steps, StochasticCodesOfEveryMagnitudeAndByte) {
  EXPECT_EQ(DifferencesOf(Nvfp4Step::kStochastic), 0);
}
TEST(Nvfp4Steps, NearestCodesOfEveryMagnitude) { EXPECT_EQ(DifferencesOf(Nvfp4Step::kNearest), 0); }
TEST(Nvfp4Steps, ScaleCodesOfEveryMagnitude) { EXPECT_EQ(DifferencesOf(Nvfp4Step::kScale), 0); }

using Random = std::mt19937_64;

uint16_t RandomFinite(Random& random, int exponent_first, int exponents) {
  const uint64_t bits = random();
  const int exponent = exponent_first + static_cast<int>((bits >> 16) % exponents);
  return static_cast<uint16_t>((bits & 0x807F) | exponent << 7);
}

/// Elements of a group, each kind another way to lose bits.
const std::vector<std::function<uint16_t(Random&, int)>> kKinds = {
    [](Random& random, int) { return static_cast<uint16_t>(random()); },  // NaN, infinities too.
    [](Random& random, int) { return RandomFinite(random, 120, 4); },
    [](Random& random, int) { return RandomFinite(random, 110, 30); },  // Beyond 25 bits.
    [](Random& random, int) { return RandomFinite(random, 1, 254); },
    [](Random& random, int) { return RandomFinite(random, 0, 1); },  // Subnormals.
    [](Random& random, int) { return RandomFinite(random, 0, 12); },
    [](Random& random, int) { return RandomFinite(random, 250, 5); },  // Overflow.
    [](Random& random, int) {  // Equal magnitudes: sums cancel.
      return static_cast<uint16_t>(0x3FC5 | (random() & 0x8000));
    },
    [](Random& random, int i) {  // One large element over small ones.
      return i == 5 ? RandomFinite(random, 130, 2) : RandomFinite(random, 100, 10);
    },
    [](Random& random, int) {  // Few elements, zeros of both signs.
      return random() % 5 == 0 ? RandomFinite(random, 100, 8)
                               : static_cast<uint16_t>(random() & 0x8000);
    },
    [](Random& random, int) {  // Infinities of both signs among numbers.
      return random() % 16 == 0 ? static_cast<uint16_t>(0x7F80 | (random() & 0x8000))
                                : RandomFinite(random, 0, 255);
    },
    [](Random& random, int) {  // NaN with payloads.
      return random() % 64 == 0 ? static_cast<uint16_t>(0x7F81 | random())
                                : RandomFinite(random, 125, 6);
    },
};

TEST(Nvfp4Steps, TransformOfEveryKindOfGroup) {
  constexpr int64_t kGroups = 1 << 18;
  CudaDevice& device = Device();
  Random random(7);
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    Tensor groups = *Tensor::Allocate(DType::kBF16, {kGroups, 16});
    for (int64_t i = 0; i < groups.element_count(); ++i) {
      groups.as<uint16_t>()[i] = kKinds[kind](random, static_cast<int>(i % 16));
    }
    const Tensor source = *device.ToDevice(groups);
    Tensor differences = *device.AllocateZeroed(DType::kI64, {2});
    EXPECT_EQ(LaunchCompareTransform(source.as<uint16_t>(), kGroups,
                                     differences.as<unsigned long long>(), device.stream()),
              cudaSuccess);
    const Tensor counts = *device.ToHost(differences);
    EXPECT_EQ(counts.as<int64_t>()[0], 0) << "kind " << kind;
    EXPECT_EQ(counts.as<int64_t>()[1], 0) << "kind " << kind << ", transform as A";
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
