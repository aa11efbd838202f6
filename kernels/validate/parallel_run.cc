#include "kernels/validate/parallel_run.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/layer/layer_sharding.h"

namespace quantgate {
namespace {

constexpr char kTensorParallelGroup[] = "tp";

/// Of "cuda:1"; -1 of another device.
int CudaOrdinalOf(const Engine& engine) {
  const std::string id = engine.Describe().id;
  absl::string_view number = id;
  int ordinal = -1;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &ordinal)) return -1;
  return ordinal;
}

absl::Status CheckDevices(const ParallelSpec& parallel, int ordinal) {
  if (parallel.backend == CollectiveBackend::kLocal) return absl::OkStatus();
  const std::string what = absl::StrCat("parallel.backend: nccl; it needs a GPU for each of the ",
                                        parallel.tensor_parallel, " ranks, and ");
  if (ordinal < 0) {
    return absl::FailedPreconditionError(absl::StrCat(what, "the run is on the CPU"));
  }
  QG_ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  if (count >= parallel.tensor_parallel) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, "this host has ", count));
}

/// The request with the tensors of another engine in this one's memory. States of delayed scaling
/// are on the host.
absl::StatusOr<LayerRequest> Imported(Engine& engine, const LayerRequest& whole) {
  LayerRequest request = whole;
  std::vector<Tensor*> tensors = {&request.x, &request.grad_output};
  for (auto* by_name : {&request.parameters, &request.main_grads}) {
    for (auto& [name, tensor] : *by_name) tensors.push_back(&tensor);
  }
  for (Tensor* tensor : tensors) {
    if (!tensor->has_value() || tensor->space() == MemorySpace::kHost) continue;
    QG_ASSIGN_OR_RETURN(*tensor, engine.Import(*tensor));
  }
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> RankEngines::Make(const ParallelSpec& parallel,
                                                          int rank) const {
  const int ordinal = CudaOrdinalOf(engine_);
  if (ordinal >= 0) {
    return MakeCudaEngine(parallel.backend == CollectiveBackend::kNccl ? rank : ordinal);
  }
  return MakeCpuEngine({.threads = std::max(1, AvailableCpus() / parallel.tensor_parallel)});
}

absl::StatusOr<std::vector<Engine*>> RankEngines::For(const ParallelSpec& parallel) {
  QG_RETURN_IF_ERROR(CheckDevices(parallel, CudaOrdinalOf(engine_)));
  auto& engines = engines_[{parallel.backend, parallel.tensor_parallel}];
  while (static_cast<int>(engines.size()) < parallel.tensor_parallel) {
    QG_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                        Make(parallel, static_cast<int>(engines.size())));
    engines.push_back(std::move(engine));
  }
  std::vector<Engine*> ranks;
  for (const auto& engine : engines) ranks.push_back(engine.get());
  return ranks;
}

absl::StatusOr<std::unique_ptr<World>> MakeWorld(const ParallelSpec& parallel,
                                                 std::vector<Engine*> engines) {
  std::vector<int> all(engines.size());
  std::iota(all.begin(), all.end(), 0);
  WorldOptions options;
  options.engines = std::move(engines);
  options.backend = parallel.backend;
  QG_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Create(std::move(options)));
  QG_RETURN_IF_ERROR(world->AddGroups(kTensorParallelGroup, {all}));
  return world;
}

absl::StatusOr<ParallelStepResult> RunOnRanks(const LayerRequest& whole, Engine& owner,
                                              const Variant& variant,
                                              const std::vector<Engine*>& engines,
                                              const Cancellation* cancellation) {
  const ParallelSpec& parallel = *variant.parallel;
  ParallelStepResult result;
  QG_ASSIGN_OR_RETURN(result.world, MakeWorld(parallel, engines));
  result.ranks.resize(engines.size());
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<const Moment> given, owner.MarkMoment());
  const auto run_rank = [&](Rank& rank) -> absl::Status {
    RankStep& mine = result.ranks[static_cast<size_t>(rank.index())];
    mine.engine = &rank.engine();
    QG_RETURN_IF_ERROR(rank.engine().WaitFor(*given));
    QG_ASSIGN_OR_RETURN(const LayerRequest imported, Imported(rank.engine(), whole));
    ParallelStep step;
    step.tp = &rank.group(kTensorParallelGroup);
    step.sequence_parallel = parallel.sequence_parallel;
    step.profile = parallel.profile;
    QG_ASSIGN_OR_RETURN(mine.request, ShardLayer(rank.engine(), imported, std::move(step)));
    QG_ASSIGN_OR_RETURN(mine.result, RunLayer(rank.engine(), mine.request, variant.recipe,
                                              variant.arithmetic, rank.cancellation()));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(result.world->Run(run_rank, cancellation));
  return result;
}

}  // namespace quantgate
