// When each task of an overlapped call began and ended, and how much of its communication was not
// hidden behind a GEMM.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/comm/overlap/overlap_task_graph.h"

namespace quantgate {

struct TaskRecord {
  std::string name;
  OverlapResource resource = OverlapResource::kCompute;
  double begin_s = 0;  ///< Seconds since the beginning of the call on this rank.
  double end_s = 0;    ///< Likewise.
};

/// The tasks of one rank.
struct OverlapTimeline {
  std::vector<TaskRecord> tasks;  ///< In the order of the graph.
};

/// Figures of a timeline, in seconds.
struct OverlapFigures {
  double total_s = 0;          ///< From the first beginning to the last end.
  double compute_s = 0;        ///< While a GEMM ran.
  double communication_s = 0;  ///< While a copy or a sum ran.
  double exposed_s = 0;        ///< While a copy or a sum ran and no GEMM did.
  double idle_s = 0;           ///< While nothing ran: waiting for other ranks.

  /// total / max(compute, communication): 1 is perfect. 0 for an empty timeline.
  double efficiency() const;
};

OverlapFigures FiguresOf(const OverlapTimeline& timeline);

}  // namespace quantgate
