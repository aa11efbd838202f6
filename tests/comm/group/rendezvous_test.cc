#include "kernels/comm/group/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<bool> CanGoOn(const std::vector<bool>& runs, const std::vector<RankWait>& waits) {
  return RanksThatCanGoOn(runs, waits);
}

std::vector<int> Cycle(const std::vector<bool>& runs, const std::vector<RankWait>& waits) {
  return CycleOfWaits(runs, waits);
}

TEST(WaitAnalysis, WhoeverWaitsForARunningRankCanGoOn) {
  EXPECT_THAT(CanGoOn({true, true, true}, {{0, {1}}, {1, {2}}}), ElementsAre(true, true, true));
  EXPECT_THAT(Cycle({true, true, true}, {{0, {1}}, {1, {2}}}), IsEmpty());
}

TEST(WaitAnalysis, EveryRankOfAWaitMustCome) {
  EXPECT_THAT(CanGoOn({true, true, false}, {{0, {1, 2}}}), ElementsAre(false, true, false));
}

TEST(WaitAnalysis, WaitsForOneAnotherAreACycle) {
  const std::vector<RankWait> waits = {{3, {1}}, {0, {3}}, {1, {2, 3}}, {2, {0}}};
  EXPECT_THAT(CanGoOn({true, true, true, true}, waits), ElementsAre(false, false, false, false));
  // Rank 3 waits for 1, and 1 for 2 first, which waits for 0, which waits for 3.
  EXPECT_THAT(Cycle({true, true, true, true}, waits), ElementsAre(1, 0, 2, 3));
}

TEST(WaitAnalysis, WhoeverWaitsForACycleIsNotInIt) {
  EXPECT_THAT(Cycle({true, true, true}, {{0, {1}}, {1, {2}}, {2, {1}}}), ElementsAre(1, 2));
}

TEST(WaitAnalysis, EndedRanksAreInNoCycle) {
  EXPECT_THAT(Cycle({false, true, true}, {{1, {2}}, {2, {1}}}), ElementsAre(0, 1));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
