// What a timeline says, worked out by hand.
#include "kernels/comm/overlap/overlap_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

TaskRecord Record(OverlapResource resource, double begin_s, double end_s) {
  return {"task", resource, begin_s, end_s};
}

TEST(OverlapFiguresTest, CountsWhatIsHiddenAndWhatIsExposed) {
  OverlapTimeline timeline;
  timeline.tasks = {
      Record(OverlapResource::kCompute, 1, 3), Record(OverlapResource::kReceive, 1, 4),
      Record(OverlapResource::kCompute, 4, 6), Record(OverlapResource::kReceive, 4, 5),
      Record(OverlapResource::kReduce, 8, 9),
  };
  const OverlapFigures figures = FiguresOf(timeline);
  EXPECT_EQ(figures.total_s, 8);          // 1 to 9.
  EXPECT_EQ(figures.compute_s, 4);        // 1 to 3, 4 to 6.
  EXPECT_EQ(figures.communication_s, 5);  // 1 to 5, 8 to 9.
  EXPECT_EQ(figures.exposed_s, 2);        // 3 to 4, 8 to 9.
  EXPECT_EQ(figures.idle_s, 2);           // 6 to 8.
  EXPECT_EQ(figures.efficiency(), 8.0 / 5.0);
}

TEST(OverlapFiguresTest, TwoResourcesAtOnceAreOneTime) {
  OverlapTimeline timeline;
  timeline.tasks = {Record(OverlapResource::kReceive, 0, 4), Record(OverlapResource::kReduce, 2, 5),
                    Record(OverlapResource::kReduce, 1, 2)};
  const OverlapFigures figures = FiguresOf(timeline);
  EXPECT_EQ(figures.communication_s, 5);
  EXPECT_EQ(figures.exposed_s, 5);
  EXPECT_EQ(figures.efficiency(), 1);
}

TEST(OverlapFiguresTest, NothingTakesNoTime) {
  const OverlapFigures figures = FiguresOf({});
  EXPECT_EQ(figures.total_s, 0);
  EXPECT_EQ(figures.efficiency(), 0);
}

TEST(TaskGraphTest, RefusesWhatIsNotThere) {
  TaskGraph graph(2);
  ASSERT_TRUE(graph.Add({"a", 0, OverlapResource::kCompute, -1, {}, {}}).ok());
  EXPECT_THAT(graph.Add({"b", 0, OverlapResource::kCompute, -1, {1}, {}}).status().message(),
              HasSubstr("task b is after task 1: it must depend only on the 1 tasks before it"));
  EXPECT_THAT(graph.Add({"c", 2, OverlapResource::kCompute, -1, {}, {}}).status().message(),
              HasSubstr("task c is of rank 2 and peer -1: there are 2 ranks"));
  EXPECT_THAT(graph.Add({"d", 0, OverlapResource::kCompute, 2, {}, {}}).status().message(),
              HasSubstr("peer 2"));
}

TEST(TaskGraphTest, KnowsWhoUsesARanksMemory) {
  TaskGraph graph(3);
  ASSERT_TRUE(graph.Add({"gemm", 0, OverlapResource::kCompute, -1, {}, {}}).ok());
  ASSERT_TRUE(graph.Add({"copy", 1, OverlapResource::kReceive, 0, {}, {}}).ok());
  ASSERT_TRUE(graph.Add({"gemm", 2, OverlapResource::kCompute, -1, {}, {}}).ok());
  EXPECT_EQ(graph.TasksThatUse(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(graph.TasksOf(1, /*communication=*/true), (std::vector<int>{1}));
  EXPECT_TRUE(graph.TasksOf(1, /*communication=*/false).empty());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
