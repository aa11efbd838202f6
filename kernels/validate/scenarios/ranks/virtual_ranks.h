// The ranks of a scenario: threads, each with a lane of the engine under test or a GPU of its own
// (rank_places.h).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/validate/scenarios/faults/faulty_communication.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// The kinds of groups: every two neighbours (0 and 1, 2 and 3, ...), and every two ranks that are
/// half the world apart. In an odd world the last rank is alone.
inline constexpr char kNeighbours[] = "neighbours";
inline constexpr char kHalfApart[] = "half-apart";

struct VirtualRanksOptions {
  ScheduleNoise noise = {};
  absl::Duration deadline = absl::Seconds(60);
};

/// A world of `size` ranks with both kinds of groups and the faults of the scenario's run. After a
/// rank has ended, only results on the host may be read.
absl::StatusOr<std::unique_ptr<World>> MakeVirtualRanks(ScenarioContext& context, int size,
                                                        const VirtualRanksOptions& options = {});

/// A virtual rank's end of overlapped calls among all ranks, with its own buffers.
struct VirtualOverlap {
  static absl::StatusOr<std::unique_ptr<VirtualOverlap>> Open(Rank& rank);
  explicit VirtualOverlap(Rank& rank) : buffers(rank.engine()) {}
  /// Opens `overlap` anew over the same buffers.
  absl::Status Reopen(Rank& rank);

  OverlapBuffers buffers;
  BufferMemories memories;
  std::unique_ptr<Overlap> overlap;
};

/// For each rank the members of its group of a kind, in the group's order.
std::vector<std::vector<int>> GroupOfEachRank(int size, std::string_view kind);

/// Runs `body` on every rank and returns whether it succeeded on all. An error of a rank is
/// recorded as a difference named `what`.
bool RunBodies(ScenarioContext& context, std::string_view what, World& world,
               absl::FunctionRef<absl::Status(Rank& rank)> body);
/// RunBodies on new ranks, in the group of all ranks.
bool RunOnRanks(ScenarioContext& context, int ranks, std::string_view what,
                absl::FunctionRef<absl::Status(const GatherContext& rank)> body);
/// The context of a rank in the group of all ranks.
GatherContext InWorld(Rank& rank);

/// Runs `body` on every rank and returns each rank's tensors on the host. Empty if a rank fails, as
/// RunBodies records.
using TensorsOfRank = std::vector<Tensor>;
std::vector<TensorsOfRank> RunRanks(
    ScenarioContext& context, std::string_view what, World& world,
    absl::FunctionRef<absl::StatusOr<TensorsOfRank>(Rank& rank)> body);

/// Runs `body` on every rank and returns each rank's status. An error does not abort other ranks.
std::vector<absl::Status> StatusOfEachRank(ScenarioContext& context, World& world,
                                           absl::FunctionRef<absl::Status(Rank& rank)> body);

}  // namespace quantgate
