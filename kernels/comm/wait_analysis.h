// Which ranks wait for something that cannot come: for a rank that has ended, or for one another.
#pragma once

#include <span>
#include <vector>

namespace quantgate {

/// One thread of a rank that waits until all of some ranks have come.
struct RankWait {
  int rank = 0;
  std::vector<int> for_ranks;
};

/// For each rank whether it can still make a call, now or after what it waits for. `threads` is the
/// number of threads of each rank that make calls; a rank with none has ended. A rank whose threads
/// all wait can go on when one of its waits can be over, which takes all the ranks of that wait.
/// Whoever is not waiting is taken to make whatever call is needed, so no rank that could go on is
/// ever said to be stuck.
std::vector<bool> RanksThatCanGoOn(std::span<const int> threads, std::span<const RankWait> waits);

/// Of ranks that cannot go on and of which none waits for an ended one: waits (as indices) that
/// form a cycle, each for a rank of the next one, beginning with the lowest rank of the cycle.
std::vector<int> CycleOfWaits(std::span<const int> threads, std::span<const RankWait> waits);

}  // namespace quantgate
