#include "kernels/comm/wait_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<bool> CanGoOn(std::vector<int> threads, std::vector<RankWait> waits) {
  return RanksThatCanGoOn(threads, waits);
}

std::vector<int> Cycle(std::vector<int> threads, std::vector<RankWait> waits) {
  return CycleOfWaits(threads, waits);
}

TEST(WaitAnalysis, WhoeverWaitsForARunningRankCanGoOn) {
  EXPECT_THAT(CanGoOn({1, 1, 1}, {{0, {1}}, {1, {2}}}), ElementsAre(true, true, true));
  EXPECT_THAT(Cycle({1, 1, 1}, {{0, {1}}, {1, {2}}}), IsEmpty());
}

TEST(WaitAnalysis, EveryRankOfAWaitMustCome) {
  EXPECT_THAT(CanGoOn({1, 1, 0}, {{0, {1, 2}}}), ElementsAre(false, true, false));
}

TEST(WaitAnalysis, WaitsForOneAnotherAreACycle) {
  const std::vector<RankWait> waits = {{3, {1}}, {0, {3}}, {1, {2, 3}}, {2, {0}}};
  EXPECT_THAT(CanGoOn({1, 1, 1, 1}, waits), ElementsAre(false, false, false, false));
  // Rank 3 waits for 1, and 1 for 2 first, which waits for 0, which waits for 3.
  EXPECT_THAT(Cycle({1, 1, 1, 1}, waits), ElementsAre(1, 0, 2, 3));
}

TEST(WaitAnalysis, WhoeverWaitsForACycleIsNotInIt) {
  EXPECT_THAT(Cycle({1, 1, 1}, {{0, {1}}, {1, {2}}, {2, {1}}}), ElementsAre(1, 2));
}

TEST(WaitAnalysis, ARankCanGoOnWhileOneOfItsThreadsCan) {
  // Rank 0 has two threads. One waits for rank 1, which waits for rank 0.
  EXPECT_THAT(CanGoOn({2, 1}, {{0, {1}}, {1, {0}}}), ElementsAre(true, true));
  // Both wait for rank 1.
  EXPECT_THAT(CanGoOn({2, 1}, {{0, {1}}, {0, {1}}, {1, {0}}}), ElementsAre(false, false));
  // The second waits for rank 2, which runs.
  EXPECT_THAT(CanGoOn({2, 1, 1}, {{0, {1}}, {0, {2}}, {1, {0}}}), ElementsAre(true, true, true));
}

TEST(WaitAnalysis, EndedRanksAreInNoCycle) {
  EXPECT_THAT(Cycle({0, 1, 1}, {{1, {2}}, {2, {1}}}), ElementsAre(0, 1));
}

}  // namespace
}  // namespace quantgate
