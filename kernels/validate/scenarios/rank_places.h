// RankPlaces: where the ranks of scenarios are, for the length of a run: virtual ranks on the
// engine that is looked at, or GPUs of their own and NCCL between them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/rank_engines.h"
#include "kernels/comm/transport.h"

namespace quantgate {

class RankPlaces {
 public:
  /// Of a run on `engine`, which outlives it. kLocal: every rank is virtual. kNccl: of N GPUs,
  /// worlds of 2 to N ranks have GPUs 0, 1, ...; those of one rank and larger ones are virtual.
  /// FAILED_PRECONDITION or UNIMPLEMENTED naming field parallel_backend where the run is on the
  /// CPU, the host has one GPU, or NCCL is missing.
  static absl::StatusOr<std::unique_ptr<RankPlaces>> Create(CollectiveBackend backend,
                                                            Engine& engine);

  /// Of a world of so many ranks.
  CollectiveBackend BackendOf(int ranks) const;
  /// The engine of rank `rank` of the worlds that have GPUs.
  Engine& gpu(int rank) { return *gpus_[static_cast<size_t>(rank)]; }
  /// What worlds leave for each other; null where there is nothing.
  CommunicatorPool* communicators() { return communicators_.get(); }
  /// None where every rank is virtual.
  std::vector<DeviceDescription> DescribeGpus() const;

 private:
  explicit RankPlaces(Engine& engine) : engines_(engine) {}
  absl::Status Open(CollectiveBackend backend);

  RankEngines engines_;
  std::vector<Engine*> gpus_;
  std::unique_ptr<CommunicatorPool> communicators_;  // Before the engines.
};

}  // namespace quantgate
