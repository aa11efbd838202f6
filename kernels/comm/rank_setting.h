// RankSetting: what a process gives to the ranks in it, whatever a request asks for.
#pragma once

#include "absl/time/time.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/comm_statistics.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

/// Outlives the worlds that it is for.
struct RankSetting {
  CommStatistics* statistics = nullptr;         ///< As WorldOptions::statistics.
  absl::Duration deadline = absl::Seconds(60);  ///< As WorldOptions::deadline.
  TransportFactory make_transport = {};         ///< As WorldOptions::make_transport.
  EngineWrapper wrap_engine = {};               ///< As WorldOptions::wrap_engine.
  SeededFaults faults = {};                     ///< In place on every rank, for scenarios.
  StuckObserver on_stuck = {};                  ///< As WorldOptions::on_stuck.
  CommunicatorCache* communicators = nullptr;   ///< As WorldOptions::communicators.
};

}  // namespace quantgate
