#include "kernels/validate/scenarios/ranks/rank_places.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/group/world.h"
#include "kernels/engine/cuda_module.h"

namespace quantgate {
namespace {

constexpr char kField[] = "parallel_backend";

}  // namespace

absl::StatusOr<std::unique_ptr<RankPlaces>> RankPlaces::Create(CollectiveBackend backend,
                                                               Engine& engine,
                                                               CommunicatorCache* communicators) {
  std::unique_ptr<RankPlaces> places(new RankPlaces(engine, communicators));
  if (backend == CollectiveBackend::kLocal) return places;
  QG_RETURN_IF_ERROR(CheckGpuForEach(kField, 2, engine));
  QG_RETURN_IF_ERROR(places->Open(backend));
  return places;
}

absl::Status RankPlaces::Open(CollectiveBackend backend) {
  const absl::Status status = CheckCollectiveBackend(backend);
  if (!status.ok()) {
    return StatusOf({.code = status.code(),
                     .field = kField,
                     .value = "nccl",
                     .rule = std::string(status.message())});
  }
  QG_ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  QG_ASSIGN_OR_RETURN(gpus_, engines_.EnginesFor({.tensor_parallel = std::min(count, kWorldSizeMax),
                                                  .backend = backend}));
  return absl::OkStatus();
}

CollectiveBackend RankPlaces::BackendOf(int ranks) const {
  return ranks >= 2 && ranks <= static_cast<int>(gpus_.size()) ? CollectiveBackend::kNccl
                                                               : CollectiveBackend::kLocal;
}

std::vector<DeviceDescription> RankPlaces::DescribeGpus() const {
  std::vector<DeviceDescription> devices;
  for (const Engine* gpu : gpus_) devices.push_back(gpu->Describe());
  return devices;
}

}  // namespace quantgate
