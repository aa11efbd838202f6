// One rank of a ParallelSession. Private to kernels/training.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/training/parallel/parallel_session.h"
#include "kernels/training/session_state.h"

namespace quantgate {

struct ParallelSession::Member {
  Engine* engine = nullptr;
  std::string device;
  std::shared_ptr<SessionRank> rank = std::make_shared<SessionRank>();
  /// The step of later forwards, then the steps that forwards in flight still follow.
  std::vector<std::shared_ptr<ParallelStep>> steps;
  std::unique_ptr<RankOverlap> overlap;
  std::unique_ptr<OneRankSession> session;

  /// Later forwards follow `step`.
  void UseStep(std::shared_ptr<ParallelStep> step) {
    if (!steps.empty()) {
      step->tp = steps[0]->tp;
      step->overlap = steps[0]->overlap;
    }
    rank->step = step;
    steps.insert(steps.begin(), std::move(step));
  }
};

}  // namespace quantgate
