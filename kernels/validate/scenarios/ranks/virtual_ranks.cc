#include "kernels/validate/scenarios/ranks/virtual_ranks.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

std::vector<std::vector<int>> GroupsOf(int size, std::string_view kind) {
  const int pairs = size / 2;
  std::vector<std::vector<int>> groups;
  for (int i = 0; i < pairs; ++i) {
    groups.push_back(kind == kNeighbours ? std::vector<int>{2 * i, 2 * i + 1}
                                         : std::vector<int>{i, i + pairs});
  }
  if (size % 2 == 1) groups.push_back({size - 1});
  return groups;
}

}  // namespace

absl::StatusOr<std::unique_ptr<World>> MakeVirtualRanks(ScenarioContext& context, int size,
                                                        const VirtualRanksOptions& options) {
  QG_ASSIGN_OR_RETURN(std::vector<Engine*> engines, context.RankEngines(size));
  const CollectiveBackend backend = context.RankBackend(size);
  QG_ASSIGN_OR_RETURN(
      std::unique_ptr<World> world,
      World::Create({.engines = std::move(engines),
                     .deadline = options.deadline,
                     .backend = backend,
                     .faults = context.faults(),
                     .noise = options.noise,
                     .communicators = context.communicators(),
                     .make_transport = TransportWith(context.faults(), context.communicators())}));
  context.NoteWorld(size, {backend, world->transport().name()});
  for (const char* kind : {kNeighbours, kHalfApart}) {
    QG_RETURN_IF_ERROR(world->AddGroups(kind, GroupsOf(size, kind)));
  }
  return world;
}

absl::StatusOr<std::unique_ptr<VirtualOverlap>> VirtualOverlap::Open(Rank& rank) {
  auto opened = std::make_unique<VirtualOverlap>(rank);
  QG_RETURN_IF_ERROR(opened->Reopen(rank));
  return opened;
}

absl::Status VirtualOverlap::Reopen(Rank& rank) {
  QG_ASSIGN_OR_RETURN(auto created, Overlap::Create(rank.group(kWorldGroup), buffers));
  overlap = OverlapWith(rank.faults(), std::move(created), buffers, memories);
  return absl::OkStatus();
}

std::vector<std::vector<int>> GroupOfEachRank(int size, std::string_view kind) {
  std::vector<std::vector<int>> of_ranks(size);
  for (const std::vector<int>& group : GroupsOf(size, kind)) {
    for (const int rank : group) of_ranks[rank] = group;
  }
  return of_ranks;
}

bool RunBodies(ScenarioContext& context, std::string_view what, World& world,
               absl::FunctionRef<absl::Status(Rank& rank)> body) {
  const absl::Status status = world.Run(body, context.cancellation());
  context.ExpectCode(what, status, absl::StatusCode::kOk);
  return status.ok();
}

GatherContext InWorld(Rank& rank) {
  return {rank.engine(), rank.group(kWorldGroup), rank.faults(), rank.cancellation()};
}

bool RunOnRanks(ScenarioContext& context, int ranks, std::string_view what,
                absl::FunctionRef<absl::Status(const GatherContext& rank)> body) {
  const auto world = MakeVirtualRanks(context, ranks);
  context.ExpectCode("ranks", world.status(), absl::StatusCode::kOk);
  return world.ok() &&
         RunBodies(context, what, **world, [&](Rank& rank) { return body(InWorld(rank)); });
}

std::vector<TensorsOfRank> RunRanks(
    ScenarioContext& context, std::string_view what, World& world,
    absl::FunctionRef<absl::StatusOr<TensorsOfRank>(Rank& rank)> body) {
  std::vector<TensorsOfRank> results(world.size());
  const bool is_done = RunBodies(context, what, world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(TensorsOfRank tensors, body(rank));
    for (Tensor& tensor : tensors) {
      QG_ASSIGN_OR_RETURN(tensor, rank.engine().ToHost(tensor, rank.cancellation()));
    }
    results[rank.index()] = std::move(tensors);
    return absl::OkStatus();
  });
  return is_done ? results : std::vector<TensorsOfRank>{};
}

std::vector<absl::Status> StatusOfEachRank(ScenarioContext& context, World& world,
                                           absl::FunctionRef<absl::Status(Rank& rank)> body) {
  std::vector<absl::Status> statuses(world.size());
  const auto run = [&](Rank& rank) {
    statuses[rank.index()] = body(rank);
    return absl::OkStatus();
  };
  // The errors of the bodies are in `statuses`.
  world.Run(run, context.cancellation()).IgnoreError();
  return statuses;
}

}  // namespace quantgate
