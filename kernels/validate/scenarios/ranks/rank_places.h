// RankPlaces: where the ranks of scenarios are during a run: virtual ranks on the engine under
// test, or GPUs of their own with NCCL between them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/transport.h"
#include "kernels/comm/rank_engines.h"

namespace quantgate {

class RankPlaces {
 public:
  /// For a run on `engine`, which must outlive the result. kLocal: every rank is virtual. kNccl,
  /// with N GPUs: worlds of 2 to N ranks have GPUs 0, 1, ...; ranks of other worlds are virtual.
  /// FAILED_PRECONDITION or UNIMPLEMENTED naming field parallel_backend if the run is on the CPU,
  /// the host has one GPU, or NCCL is missing. `communicators`: as WorldOptions::communicators.
  static absl::StatusOr<std::unique_ptr<RankPlaces>> Create(
      CollectiveBackend backend, Engine& engine, CommunicatorCache* communicators = nullptr);

  /// The backend of a world of so many ranks.
  CollectiveBackend BackendOf(int ranks) const;
  /// The engine of rank `rank` of the worlds that have GPUs.
  Engine& gpu(int rank) { return *gpus_[static_cast<size_t>(rank)]; }
  CommunicatorCache* communicators() { return communicators_; }
  /// Empty if every rank is virtual.
  std::vector<DeviceDescription> DescribeGpus() const;

 private:
  RankPlaces(Engine& engine, CommunicatorCache* communicators)
      : engines_(engine), communicators_(communicators) {}
  absl::Status Open(CollectiveBackend backend);

  RankEngines engines_;
  CommunicatorCache* const communicators_;
  std::vector<Engine*> gpus_;
};

}  // namespace quantgate
