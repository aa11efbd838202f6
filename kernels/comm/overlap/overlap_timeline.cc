#include "kernels/comm/overlap/overlap_timeline.h"

#include <algorithm>

namespace quantgate {
namespace {

/// Where tasks of one kind begin (+1) and end (-1).
struct Edge {
  double at_s;
  int compute;
  int communication;
};

std::vector<Edge> EdgesOf(const OverlapTimeline& timeline) {
  std::vector<Edge> edges;
  for (const TaskRecord& task : timeline.tasks) {
    const int communication = IsCommunication(task.resource) ? 1 : 0;
    edges.push_back({task.begin_s, 1 - communication, communication});
    edges.push_back({task.end_s, communication - 1, -communication});
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.at_s < b.at_s; });
  return edges;
}

}  // namespace

double OverlapFigures::efficiency() const {
  const double larger = std::max(compute_s, communication_s);
  return larger > 0 ? total_s / larger : 0;
}

OverlapFigures FiguresOf(const OverlapTimeline& timeline) {
  OverlapFigures figures;
  const std::vector<Edge> edges = EdgesOf(timeline);
  if (edges.empty()) return figures;
  int computing = 0, communicating = 0;
  double last_s = edges.front().at_s;
  for (const Edge& edge : edges) {
    const double span_s = edge.at_s - last_s;
    if (computing > 0) figures.compute_s += span_s;
    if (communicating > 0) figures.communication_s += span_s;
    if (communicating > 0 && computing == 0) figures.exposed_s += span_s;
    if (communicating == 0 && computing == 0) figures.idle_s += span_s;
    computing += edge.compute;
    communicating += edge.communication;
    last_s = edge.at_s;
  }
  figures.total_s = edges.back().at_s - edges.front().at_s;
  return figures;
}

}  // namespace quantgate
