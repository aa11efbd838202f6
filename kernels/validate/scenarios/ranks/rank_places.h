// RankPlaces: where the ranks of scenarios are, for the length of a run: virtual ranks on the
// engine that is looked at, or GPUs of their own and NCCL between them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/transport.h"
#include "kernels/comm/rank_engines.h"

namespace quantgate {

class RankPlaces {
 public:
  /// Of a run on `engine`, which outlives it. kLocal: every rank is virtual. kNccl: of N GPUs,
  /// worlds of 2 to N ranks have GPUs 0, 1, ...; those of one rank and larger ones are virtual.
  /// FAILED_PRECONDITION or UNIMPLEMENTED naming field parallel_backend where the run is on the
  /// CPU, the host has one GPU, or NCCL is missing. `communicators` as WorldOptions'.
  static absl::StatusOr<std::unique_ptr<RankPlaces>> Create(
      CollectiveBackend backend, Engine& engine, CommunicatorCache* communicators = nullptr);

  /// Of a world of so many ranks.
  CollectiveBackend BackendOf(int ranks) const;
  /// The engine of rank `rank` of the worlds that have GPUs.
  Engine& gpu(int rank) { return *gpus_[static_cast<size_t>(rank)]; }
  CommunicatorCache* communicators() { return communicators_; }
  /// None where every rank is virtual.
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
