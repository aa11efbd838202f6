// RankSeries: the metrics of ranks and of their collective calls. A part of Metrics, whose
// conventions it follows.
#pragma once

#include "kernels/comm/group/comm_statistics.h"
#include "kernels/comm/overlap/overlap_timeline.h"
#include "server/metrics/series_families.h"

namespace quantgate {

class RankSeries {
 public:
  explicit RankSeries(prometheus::Registry& registry);

  /// The counters for the collective calls of ranks.
  CommStatistics& communication() { return communication_; }
  void Overlapped(const OverlapTimeline& timeline);
  /// Reads the counters of communication() anew. To be called before each scrape.
  void Refresh();

 private:
  CommStatistics communication_;
  CounterGrid parallel_runs_, parallel_failures_, stuck_ranks_, communicators_;
  CounterGrid collective_calls_, collective_bytes_, collective_wait_;
  CounterGrid overlap_seconds_;
  HistogramGrid overlap_efficiency_;
};

}  // namespace quantgate
