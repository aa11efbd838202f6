// The streaming pairwise sum against the definition carried out literally: pad with -0.0, add
// neighbours, repeat.
#include "kernels/numerics/pairwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

float ByDefinition(std::vector<float> v) {
  if (v.empty()) return 0.0f;
  v.resize(std::bit_ceil(v.size()), -0.0f);
  while (v.size() > 1) {
    for (size_t i = 0; i < v.size() / 2; ++i) v[i] = v[2 * i] + v[2 * i + 1];
    v.resize(v.size() / 2);
  }
  return v[0];
}

TEST(PairwiseSum, EqualsTheDefinitionForEveryLength) {
  uint32_t state = 1;
  std::vector<float> values;
  for (int count = 0; count <= 1100; ++count) {
    EXPECT_EQ(std::bit_cast<uint32_t>(PairwiseSum(values.data(), count)),
              std::bit_cast<uint32_t>(ByDefinition(values)))
        << count;
    state = state * 1664525u + 1013904223u;
    const float magnitude = std::ldexp(1.0f + static_cast<float>(state & 0xFFFF) * 0x1p-16f,
                                       static_cast<int>(state >> 28) - 8);
    values.push_back((state & 0x10000) != 0 ? magnitude : -magnitude);
  }
}

TEST(PairwiseSum, OrderMatters) {
  // (2^24 + 1) + (1 + 1): the first pair loses its 1, and 2^24 + 2 is exact; a running sum would
  // lose all three.
  const float values[] = {0x1p24f, 1.0f, 1.0f, 1.0f};
  EXPECT_EQ(PairwiseSum(values, 4), 0x1p24f + 2.0f);
}

TEST(PairwiseSum, SignOfZero) {
  const float negative[] = {-0.0f, -0.0f, -0.0f};
  const float mixed[] = {-0.0f, 0.0f, -0.0f};
  EXPECT_TRUE(std::signbit(PairwiseSum(negative, 3)));
  EXPECT_FALSE(std::signbit(PairwiseSum(mixed, 3)));
  EXPECT_FALSE(std::signbit(PairwiseSum(negative, 0)));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
