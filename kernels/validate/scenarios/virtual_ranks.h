// Virtual ranks of a scenario: threads that share the engine that is looked at, and what each of
// them gives.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/comm/overlap.h"
#include "kernels/comm/world.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// How ranks are grouped: every two neighbours (0 and 1, 2 and 3, ...), and those that are half the
/// world apart. Of an odd world the last rank is alone.
inline constexpr char kNeighbours[] = "neighbours";
inline constexpr char kHalfApart[] = "half-apart";

struct VirtualRanksOptions {
  ScheduleNoise noise = {};
  absl::Duration deadline = absl::Seconds(60);
};

/// A world of `size` ranks with both kinds of groups and the faults of the scenario's run.
absl::StatusOr<std::unique_ptr<World>> MakeVirtualRanks(ScenarioContext& context, int size,
                                                        const VirtualRanksOptions& options = {});

/// A virtual rank's end of overlapped calls among all of them, with buffers of its own.
struct VirtualOverlap {
  static absl::StatusOr<std::unique_ptr<VirtualOverlap>> Open(Rank& rank);
  explicit VirtualOverlap(Rank& rank) : buffers(rank.engine(), rank.faults()) {}

  OverlapBuffers buffers;
  std::unique_ptr<Overlap> overlap;
};

/// For each rank the members of its group of a kind, in the group's order.
std::vector<std::vector<int>> GroupOfEachRank(int size, std::string_view kind);

/// What each rank gives, on the host. A run that fails is a difference named `what`, and gives
/// nothing.
using TensorsOfRank = std::vector<Tensor>;
std::vector<TensorsOfRank> RunRanks(
    ScenarioContext& context, std::string_view what, World& world,
    const std::function<absl::StatusOr<TensorsOfRank>(Rank& rank)>& body);

/// The status of each rank; none of them aborts the others.
std::vector<absl::Status> StatusOfEachRank(ScenarioContext& context, World& world,
                                           const std::function<absl::Status(Rank& rank)>& body);

}  // namespace quantgate
