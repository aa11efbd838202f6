#include "kernels/comm/group/wait_analysis.h"

#include <algorithm>

namespace quantgate {
namespace {

/// A rank of the wait that cannot go on; there is one for each wait of a stuck rank.
int StuckRankOf(const RankWait& wait, const std::vector<bool>& can_go_on) {
  return *std::find_if(wait.for_ranks.begin(), wait.for_ranks.end(),
                       [&](int rank) { return !can_go_on[rank]; });
}

int FirstWaitOf(std::span<const RankWait> waits, int rank) {
  const auto wait = std::find_if(waits.begin(), waits.end(),
                                 [&](const RankWait& each) { return each.rank == rank; });
  return static_cast<int>(wait - waits.begin());
}

}  // namespace

std::vector<bool> RanksThatCanGoOn(const std::vector<bool>& runs, std::span<const RankWait> waits) {
  std::vector<bool> can_go_on = runs;
  for (const RankWait& wait : waits) can_go_on[wait.rank] = false;
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (const RankWait& wait : waits) {
      if (can_go_on[wait.rank] || !std::all_of(wait.for_ranks.begin(), wait.for_ranks.end(),
                                               [&](int rank) { return can_go_on[rank]; })) {
        continue;
      }
      can_go_on[wait.rank] = is_changed = true;
    }
  }
  return can_go_on;
}

std::vector<int> CycleOfWaits(const std::vector<bool>& runs, std::span<const RankWait> waits) {
  const std::vector<bool> can_go_on = RanksThatCanGoOn(runs, waits);
  const auto stuck = std::find_if(waits.begin(), waits.end(),
                                  [&](const RankWait& wait) { return !can_go_on[wait.rank]; });
  if (stuck == waits.end()) return {};
  // Each stuck rank waits for another; whoever follows that comes around.
  std::vector<int> path;
  int rank = stuck->rank;
  std::vector<int> place_of_rank(runs.size(), -1);
  while (place_of_rank[rank] < 0) {
    place_of_rank[rank] = static_cast<int>(path.size());
    path.push_back(FirstWaitOf(waits, rank));
    rank = StuckRankOf(waits[path.back()], can_go_on);
  }
  std::vector<int> cycle(path.begin() + place_of_rank[rank], path.end());
  const auto lowest = std::min_element(cycle.begin(), cycle.end(),
                                       [&](int a, int b) { return waits[a].rank < waits[b].rank; });
  std::rotate(cycle.begin(), lowest, cycle.end());
  return cycle;
}

}  // namespace quantgate
