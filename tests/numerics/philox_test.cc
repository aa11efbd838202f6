// Known answers of Philox4x32-10 from Random123's kat_vectors file (Salmon et al., SC 2011).
#include "kernels/numerics/philox.h"

#include <gtest/gtest.h>

#include <array>

namespace quantgate {
namespace QG_TEST_FILE {

using Words = std::array<uint32_t, 4>;

Words Rounds10(Words counter, std::array<uint32_t, 2> key) {
  const PhiloxCounter out =
      Philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, {{key[0], key[1]}});
  return {out.word[0], out.word[1], out.word[2], out.word[3]};
}

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Rounds10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Rounds10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Rounds10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BlocksPlaceSeedBlockAndStream) {
  const PhiloxCounter block = PhiloxBlock(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 7);
  EXPECT_EQ((Words{block.word[0], block.word[1], block.word[2], block.word[3]}),
            Rounds10({0x243f6a88, 0x85a308d3, 7, 0}, {0xa4093822, 0x299f31d0}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
