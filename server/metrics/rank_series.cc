#include "server/metrics/rank_series.h"

#include <string>

#include "kernels/comm/parallel_spec.h"

namespace quantgate {
namespace {

constexpr CollectiveBackend kBackends[] = {CollectiveBackend::kLocal, CollectiveBackend::kNccl};

LabelAxis BackendAxis() {
  LabelAxis axis{"backend", {}};
  for (const CollectiveBackend backend : kBackends) {
    axis.values.emplace_back(CollectiveBackendName(backend));
  }
  return axis;
}

LabelAxis CallAxis() {
  LabelAxis axis{"call", {}};
  for (int kind = 0; kind < kCallKinds; ++kind) {
    axis.values.emplace_back(CallKindName(static_cast<CallKind>(kind)));
  }
  return axis;
}

LabelAxis CommFailureAxis() {
  LabelAxis axis{"kind", {}};
  for (int failure = 0; failure < kCommFailures; ++failure) {
    axis.values.emplace_back(CommFailureName(static_cast<CommFailure>(failure)));
  }
  return axis;
}

LabelAxis CommunicatorAxis() {
  LabelAxis axis{"event", {}};
  for (int event = 0; event < kCommunicatorEvents; ++event) {
    axis.values.emplace_back(CommunicatorEventName(static_cast<CommunicatorEvent>(event)));
  }
  return axis;
}

// The time of an overlapped stage, divided by the larger of its GEMM time and its communication
// time: 1 is the best.
const Buckets kEfficiencyBuckets = {1, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5};

}  // namespace

RankSeries::RankSeries(prometheus::Registry& registry)
    : parallel_runs_(
          CounterFamily(registry, "quantgate_parallel_runs_total",
                        "Times that ranks were started: variants of runs and steps of sessions."),
          {BackendAxis()}),
      parallel_failures_(CounterFamily(registry, "quantgate_parallel_failures_total",
                                       "Starts of ranks that failed, by cause."),
                         {BackendAxis(), CommFailureAxis()}),
      stuck_ranks_(CounterFamily(registry, "quantgate_stuck_ranks_total",
                                 "Ranks that did not return from their engine after their run "
                                 "had failed: the server is not ready then."),
                   {BackendAxis()}),
      communicators_(CounterFamily(registry, "quantgate_communicators_total",
                                   "NCCL's communicators that were made, leased by a group from "
                                   "one that had ended, closed, or aborted."),
                     {CommunicatorAxis()}),
      collective_calls_(CounterFamily(registry, "quantgate_collective_calls_total",
                                      "Collective calls of groups."),
                        {BackendAxis(), CallAxis()}),
      collective_bytes_(CounterFamily(registry, "quantgate_collective_bytes_total",
                                      "Bytes that ranks brought to collective calls."),
                        {BackendAxis(), CallAxis()}),
      collective_wait_(
          CounterFamily(registry, "quantgate_collective_wait_seconds_total",
                        "Time that ranks waited on the host for the others of a collective call."),
          {BackendAxis(), CallAxis()}),
      overlap_seconds_(
          CounterFamily(
              registry, "quantgate_overlap_seconds_total",
              "Time of stages of ranks that communicate beside their GEMMs, by what ran: a "
              "GEMM, a copy or sum, one of these without a GEMM, nothing."),
          {{"part", {"compute", "communication", "exposed", "idle"}}}),
      overlap_efficiency_(
          HistogramFamily(
              registry, "quantgate_overlap_efficiency",
              "Time of such a stage divided by the larger of its compute and communication times."),
          {}, kEfficiencyBuckets) {}

void RankSeries::Overlapped(const OverlapTimeline& timeline) {
  const OverlapFigures figures = FiguresOf(timeline);
  overlap_seconds_("compute").Increment(figures.compute_s);
  overlap_seconds_("communication").Increment(figures.communication_s);
  overlap_seconds_("exposed").Increment(figures.exposed_s);
  overlap_seconds_("idle").Increment(figures.idle_s);
  overlap_efficiency_().Observe(Bounded(figures.efficiency(), kEfficiencyBuckets));
}

void RankSeries::Refresh() {
  const auto communicators = communication_.ReadCommunicators();
  for (int i = 0; i < kCommunicatorEvents; ++i) {
    RaiseTo(communicators_(CommunicatorEventName(static_cast<CommunicatorEvent>(i))),
            communicators[i]);
  }
  for (const CollectiveBackend backend : kBackends) {
    const CommStatistics::Totals totals = communication_.Read(backend);
    const std::string_view name = CollectiveBackendName(backend);
    RaiseTo(parallel_runs_(name), totals.runs);
    RaiseTo(stuck_ranks_(name), totals.stuck_ranks);
    for (int i = 0; i < kCommFailures; ++i) {
      RaiseTo(parallel_failures_(name, CommFailureName(static_cast<CommFailure>(i))),
              totals.failures[i]);
    }
    for (int i = 0; i < kCallKinds; ++i) {
      const std::string_view call = CallKindName(static_cast<CallKind>(i));
      RaiseTo(collective_calls_(name, call), totals.calls[i].count);
      RaiseTo(collective_bytes_(name, call), totals.calls[i].bytes);
      RaiseTo(collective_wait_(name, call), totals.calls[i].wait_seconds);
    }
  }
}

}  // namespace quantgate
