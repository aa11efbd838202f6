#include "kernels/base/nearest_word.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

TEST(NearestWordTest, DistancesOfTheTextbooks) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("saturday", "sunday"), 3);
  EXPECT_EQ(EditDistance("jsno", "json"), 1);
  // Optimal string alignment: what has been exchanged is not edited again.
  EXPECT_EQ(EditDistance("ca", "abc"), 3);
}

TEST(NearestWordTest, NearIsWhatASlipMakes) {
  const std::vector<std::string> known = {"compare", "completion", "run", "--input", "--tp"};
  EXPECT_EQ(NearestWord("compair", known), "compare");
  EXPECT_EQ(NearestWord("COMPARE", known), "compare");
  EXPECT_EQ(NearestWord("rnu", known), "run");
  EXPECT_EQ(NearestWord("--imput", known), "--input");
  EXPECT_EQ(NearestWord("frobnicate", known), "");
  EXPECT_EQ(NearestWord("--dp", known), "");  // Of two letters one is too much.
  EXPECT_EQ(NearestWord("", known), "");
  EXPECT_EQ(NearestWord("run", known), "");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
