// Which ranks wait for something that cannot come: for a rank that has ended, or for one another.
#pragma once

#include <span>
#include <vector>

namespace quantgate {

/// A rank that waits until all of some ranks have come.
struct RankWait {
  int rank = 0;
  std::vector<int> for_ranks;
};

/// For each rank whether it can still make a call, now or after what it waits for. `runs`: of each
/// rank; one that does not has ended. A rank that waits, once, can go on when its wait can be over,
/// which takes all the ranks of that wait. Whoever is not waiting is taken to make whatever call is
/// needed, so no rank that could go on is ever said to be stuck.
std::vector<bool> RanksThatCanGoOn(const std::vector<bool>& runs, std::span<const RankWait> waits);

/// Of ranks that cannot go on and of which none waits for an ended one: waits (as indices) that
/// form a cycle, each for a rank of the next one, beginning with the lowest rank of the cycle.
std::vector<int> CycleOfWaits(const std::vector<bool>& runs, std::span<const RankWait> waits);

}  // namespace quantgate
