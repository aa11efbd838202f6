// The ranks of a ParallelSpec in this process: their engines, their world with its groups, and each
// rank's Overlap.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/comm/parallel_spec.h"

namespace quantgate {

/// Names of the groups that MakeWorld makes.
inline constexpr char kTensorParallelGroup[] = "tp";
inline constexpr char kDataParallelGroup[] = "dp";
inline constexpr char kExpertParallelGroup[] = "ep";

/// The engines of ranks, made at the first request and kept for later ones.
class RankEngines {
 public:
  /// The kind of `engine`, the owner's, decides on which kind of device the ranks are.
  explicit RankEngines(Engine& engine) : engine_(engine) {}

  /// An engine for each rank: CPU engines that share the host's CPUs, or engines on the owner's GPU
  /// (virtual ranks), or under backend nccl engines on GPUs 0 to N - 1. FAILED_PRECONDITION or
  /// UNIMPLEMENTED naming what is missing.
  absl::StatusOr<std::vector<Engine*>> EnginesFor(const ParallelSpec& parallel);

 private:
  absl::StatusOr<std::unique_ptr<Engine>> Make(const ParallelSpec& parallel, int rank) const;

  Engine& engine_;
  std::map<std::pair<CollectiveBackend, int>, std::vector<std::unique_ptr<Engine>>> engines_;
};

/// A tensor of the owner's engine, imported into the memory of a rank's engine, which has waited
/// for it. A tensor on the host stays there, and an absent one stays absent.
absl::StatusOr<Tensor> ImportedFor(Engine& engine, const Tensor& tensor);

/// Whether a run on this engine can give each of `ranks` ranks a GPU of its own:
/// FAILED_PRECONDITION refusing `field`, or UNIMPLEMENTED from a build without CUDA.
absl::Status CheckGpuForEach(const std::string& field, int ranks, const Engine& engine);

/// Adds to the world the groups of ranks that `groups` lists and the world does not have yet.
/// INVALID_ARGUMENT where a list names ranks that the world does not have. Not during a run.
absl::Status AddAmaxGroups(const AmaxGroups& groups, World& world);

/// A world of ranks with these engines and the groups that `parallel` asks for. A null `setting`
/// means the defaults. Errors as World::Create.
absl::StatusOr<std::unique_ptr<World>> MakeWorld(const ParallelSpec& parallel,
                                                 std::vector<Engine*> engines,
                                                 const RankSetting* setting = nullptr);

/// A rank's Overlap on its tensor-parallel group, with the buffers that it uses. Timelines are
/// kept.
class RankOverlap {
 public:
  /// Errors as Overlap::Create.
  static absl::StatusOr<std::unique_ptr<RankOverlap>> Create(Rank& rank);
  Overlap& overlap() { return *overlap_; }

 private:
  explicit RankOverlap(Rank& rank) : buffers_(rank.engine()) {}

  OverlapBuffers buffers_;
  std::unique_ptr<Overlap> overlap_;
};

}  // namespace quantgate
