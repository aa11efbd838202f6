// Ranks of a scenario: threads, each with a lane of the engine that is looked at or a GPU of its
// own (rank_places.h), and what they give.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/validate/scenarios/faults/faulty_overlap.h"
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

/// A world of `size` ranks with both kinds of groups and the faults of the scenario's run. What a
/// rank's engine computes is read on the host alone once the rank has ended.
absl::StatusOr<std::unique_ptr<World>> MakeVirtualRanks(ScenarioContext& context, int size,
                                                        const VirtualRanksOptions& options = {});

/// A virtual rank's end of overlapped calls among all of them, with buffers of its own.
struct VirtualOverlap {
  static absl::StatusOr<std::unique_ptr<VirtualOverlap>> Open(Rank& rank);
  explicit VirtualOverlap(Rank& rank) : buffers(rank.engine()) {}
  /// Opens it over the buffers that there are.
  absl::Status Reopen(Rank& rank);

  OverlapBuffers buffers;
  BufferMemories memories;
  std::unique_ptr<Overlap> overlap;
};

/// For each rank the members of its group of a kind, in the group's order.
std::vector<std::vector<int>> GroupOfEachRank(int size, std::string_view kind);

/// Runs `body` on every rank; whether all did it. What one of them refuses is a difference named
/// `what`.
bool RunBodies(ScenarioContext& context, std::string_view what, World& world,
               absl::FunctionRef<absl::Status(Rank& rank)> body);
/// The same on new ranks, in the group of all of them.
bool RunOnRanks(ScenarioContext& context, int ranks, std::string_view what,
                absl::FunctionRef<absl::Status(const GatherContext& rank)> body);
/// A rank in the group of all of them.
GatherContext InWorld(Rank& rank);

/// What each rank gives, on the host; nothing where one of them refuses, as RunBodies.
using TensorsOfRank = std::vector<Tensor>;
std::vector<TensorsOfRank> RunRanks(
    ScenarioContext& context, std::string_view what, World& world,
    absl::FunctionRef<absl::StatusOr<TensorsOfRank>(Rank& rank)> body);

/// The status of each rank; none of them aborts the others.
std::vector<absl::Status> StatusOfEachRank(ScenarioContext& context, World& world,
                                           absl::FunctionRef<absl::Status(Rank& rank)> body);

}  // namespace quantgate
