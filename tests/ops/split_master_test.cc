// Masters in two halves: the parameter is the master rounded to nearest, ties away from zero, and
// both halves are what was there.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/ops/optimizer/optimizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

float FloatOfBF16(uint16_t code) { return std::bit_cast<float>(uint32_t{code} << 16); }

TEST(SplitMaster, ParameterIsNearestWithTiesAway) {
  // All lower halves under finite upper halves of both signs, spread over the exponents: 2^22
  // patterns. The distances to the two neighbours are exact in fp64.
  for (uint32_t upper = 0; upper < 0x7F7F; upper += 512) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      Tensor master = *Tensor::Allocate(DType::kF32, {1 << 16});
      for (uint32_t lower = 0; lower < 1u << 16; ++lower) {
        master.as<uint32_t>()[lower] = (sign | upper) << 16 | lower;
      }
      const SplitTensor split = *SplitMasterCpu(master, {});
      for (uint32_t lower = 0; lower < 1u << 16; ++lower) {
        const double value = std::abs(double{master.as<float>()[lower]});
        const double below = FloatOfBF16(static_cast<uint16_t>(upper));
        const double above = FloatOfBF16(static_cast<uint16_t>(upper + 1));
        const uint32_t nearest = value - below < above - value ? upper : upper + 1;
        ASSERT_EQ(split.parameter.as<uint16_t>()[lower], sign | nearest) << upper << " " << lower;
        ASSERT_EQ(split.remainder.as<uint16_t>()[lower], lower);
      }
    }
  }
}

TEST(SplitMaster, SaysWhatBecomesOfTheLargestAndOfNan) {
  const uint32_t bits[] = {0x7F7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0x7FC00000};
  const Tensor master = *Tensor::FromBytes(DType::kF32, {5}, std::as_bytes(std::span(bits)));
  const SplitTensor split = *SplitMasterCpu(master, {});
  const uint16_t expected[] = {0x7F80, 0x8000, 0x0000, 0x7F80, 0x7FC0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(split.parameter.as<uint16_t>()[i], expected[i]) << i;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
