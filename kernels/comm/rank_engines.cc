#include "kernels/comm/rank_engines.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/execution.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"

namespace quantgate {
namespace {

/// The ordinal in an id like "cuda:1"; -1 for another device.
int CudaOrdinalOf(const Engine& engine) {
  const std::string id = engine.Describe().id;
  absl::string_view number = id;
  int ordinal = -1;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &ordinal)) return -1;
  return ordinal;
}

/// `count` ranks: begin, begin + step, ...
std::vector<int> Every(int step, int begin, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(begin + i * step);
  return ranks;
}

}  // namespace

absl::Status CheckGpuForEach(const std::string& field, int ranks, const Engine& engine) {
  const auto refuse = [&](const std::string& found) {
    return RefusePrecondition(
        field, "nccl",
        absl::StrCat("it needs a GPU for each of the ", ranks, " ranks, and ", found));
  };
  if (CudaOrdinalOf(engine) < 0) return refuse("the run is on the CPU");
  QG_ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  if (count >= ranks) return absl::OkStatus();
  return refuse(absl::StrCat("this host has ", count));
}

absl::StatusOr<std::unique_ptr<Engine>> RankEngines::Make(const ParallelSpec& parallel,
                                                          int rank) const {
  const int ordinal = CudaOrdinalOf(engine_);
  if (ordinal >= 0) {
    return MakeCudaEngine(parallel.backend == CollectiveBackend::kNccl ? rank : ordinal);
  }
  return MakeCpuEngine({.threads = std::max(1, AvailableCpus() / parallel.size())});
}

absl::StatusOr<std::vector<Engine*>> RankEngines::EnginesFor(const ParallelSpec& parallel) {
  if (parallel.backend == CollectiveBackend::kNccl) {
    QG_RETURN_IF_ERROR(CheckGpuForEach("parallel.backend", parallel.size(), engine_));
  }
  auto& engines = engines_[{parallel.backend, parallel.size()}];
  while (static_cast<int>(engines.size()) < parallel.size()) {
    QG_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                        Make(parallel, static_cast<int>(engines.size())));
    engines.push_back(std::move(engine));
  }
  std::vector<Engine*> ranks;
  for (const auto& engine : engines) ranks.push_back(engine.get());
  return ranks;
}

absl::StatusOr<Tensor> ImportedFor(Engine& engine, const Tensor& tensor) {
  if (!tensor.has_value() || tensor.space() == MemorySpace::kHost) return tensor;
  return engine.Import(tensor);
}

absl::StatusOr<std::unique_ptr<World>> MakeWorld(const ParallelSpec& parallel,
                                                 std::vector<Engine*> engines,
                                                 const RankSetting* setting) {
  WorldOptions options;
  options.engines = std::move(engines);
  options.backend = parallel.backend;
  if (setting != nullptr) {
    options.statistics = setting->statistics;
    options.deadline = setting->deadline;
    options.make_transport = setting->make_transport;
    options.wrap_engine = setting->wrap_engine;
    options.faults = setting->faults;
    options.on_stuck = setting->on_stuck;
    options.communicators = setting->communicators;
  }
  QG_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Create(std::move(options)));
  const bool divides_experts = parallel.expert_parallel > 1;
  const int width = parallel.copy_size(), dp = parallel.data_parallel;
  std::vector<std::vector<int>> layers, copies;
  for (int copy = 0; copy < dp; ++copy) layers.push_back(Every(1, copy * width, width));
  for (int place = 0; place < width; ++place) copies.push_back(Every(width, place, dp));
  QG_RETURN_IF_ERROR(
      world->AddGroups(divides_experts ? kExpertParallelGroup : kTensorParallelGroup, layers));
  if (dp > 1) QG_RETURN_IF_ERROR(world->AddGroups(kDataParallelGroup, copies));
  QG_RETURN_IF_ERROR(AddAmaxGroups(parallel.amax_groups, *world));
  return world;
}

absl::Status AddAmaxGroups(const AmaxGroups& groups, World& world) {
  for (const auto& [role, group] : groups) {
    const bool is_new = group.kind == AmaxGroup::Kind::kRanks && !world.HasGroups(group.Text());
    if (is_new) QG_RETURN_IF_ERROR(world.AddGroups(group.Text(), group.ranks));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankOverlap>> RankOverlap::Create(Rank& rank) {
  std::unique_ptr<RankOverlap> made(new RankOverlap(rank));
  QG_ASSIGN_OR_RETURN(made->overlap_, Overlap::Create(rank.group(kTensorParallelGroup),
                                                      made->buffers_, {.keeps_timelines = true}));
  return made;
}

}  // namespace quantgate
