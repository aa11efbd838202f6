// Metrics of ranks: which number of an overlapped call stands in which series.
#include "server/metrics/rank_series.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(RankSeries, CountsEveryPartOfAnOverlappedCall) {
  prometheus::Registry registry;
  RankSeries series(registry);
  // A GEMM of 4 s, a copy of 3 s of which it hides 2, nothing for 1 s, and a sum of 0.5 s.
  OverlapTimeline timeline;
  timeline.tasks = {{"gemm", OverlapResource::kCompute, 0, 4},
                    {"copy", OverlapResource::kReceive, 2, 5},
                    {"sum", OverlapResource::kReduce, 6, 6.5}};
  series.Overlapped(timeline);
  series.Overlapped(timeline);
  const std::string page = prometheus::TextSerializer().Serialize(registry.Collect());
  const auto seconds = [&](const std::string& part) {
    return MetricValue(page, "quantgate_overlap_seconds_total{part=\"" + part + "\"}");
  };
  EXPECT_EQ(seconds("compute"), 8);
  EXPECT_EQ(seconds("communication"), 7);
  EXPECT_EQ(seconds("exposed"), 3);
  EXPECT_EQ(seconds("idle"), 2);
  EXPECT_EQ(MetricValue(page, "quantgate_overlap_efficiency_count"), 2);
  // 6.5 s by the 4 s of its GEMM, each time.
  EXPECT_EQ(MetricValue(page, "quantgate_overlap_efficiency_sum"), 3.25);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
