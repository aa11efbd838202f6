// Some of the flipped bits that run_bit_flips tries, by the same seeds each time.
#include <gtest/gtest.h>

#include "tests/server/store/bit_flips.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(BitFlipsTest, NoAnswerIsAltered) {
  BitFlips flips;
  ASSERT_GT(flips.answers().size(), 40u);
  const FlipCounts counts = RunFlips(flips, /*first=*/1, /*count=*/25);
  EXPECT_TRUE(counts.unsound.empty()) << counts.Text();
  int lost = 0;
  for (const auto& [outcome, count] : counts.by_outcome) {
    if (outcome.find("nothing") == std::string::npos) lost += count;
  }
  EXPECT_GE(lost, 10) << counts.Text();
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
