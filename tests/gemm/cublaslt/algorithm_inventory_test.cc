#include "kernels/gemm/cublaslt/algorithm_inventory.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/gemm/arithmetic.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(AlgorithmInventoryTest, EveryRunIsCountedOnceAndModelledClassesAreEqual) {
  const AlgorithmInventory& inventory = CublasLtInventory();
  EXPECT_FALSE(inventory.classes.empty());
  std::set<std::tuple<std::string, int, std::string>> keys;
  for (const AlgorithmClass& c : inventory.classes) {
    SCOPED_TRACE(absl::StrCat(c.operands, ", id ", c.algorithm_id, ", ", c.slices));
    EXPECT_TRUE(keys.emplace(c.operands, c.algorithm_id, c.slices).second);
    EXPECT_EQ(c.equal + c.differing + c.not_run, c.returned);
    EXPECT_GT(c.returned, 0);
    EXPECT_LE(c.first_choices, c.returned);
    if (c.arithmetic.empty()) {
      EXPECT_GT(c.differing + c.not_run, 0) << "what keeps it from being modelled?";
    } else {
      EXPECT_TRUE(Arithmetic::Parse(c.arithmetic).ok());
      EXPECT_EQ(c.differing, 0);
      EXPECT_EQ(c.not_run, 0);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
