// The ranks that a ParallelSpec asks for, in this process: their engines, their world and groups,
// and each rank's end of overlapped calls.
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

/// The groups of a world that MakeWorld makes.
inline constexpr char kTensorParallelGroup[] = "tp";
inline constexpr char kDataParallelGroup[] = "dp";
inline constexpr char kExpertParallelGroup[] = "ep";

/// The engines of ranks, made when first asked for and kept for whoever asks again.
class RankEngines {
 public:
  /// `engine`: the owner's, which says on which kind of device ranks are.
  explicit RankEngines(Engine& engine) : engine_(engine) {}

  /// One for each rank: CPU engines that share the host's CPUs; virtual ranks on the owner's GPU;
  /// under backend nccl GPUs 0 to N - 1. FAILED_PRECONDITION or UNIMPLEMENTED naming what is
  /// missing.
  absl::StatusOr<std::vector<Engine*>> EnginesFor(const ParallelSpec& parallel);

 private:
  absl::StatusOr<std::unique_ptr<Engine>> Make(const ParallelSpec& parallel, int rank) const;

  Engine& engine_;
  std::map<std::pair<CollectiveBackend, int>, std::vector<std::unique_ptr<Engine>>> engines_;
};

/// A tensor of the owner's engine in the memory of a rank's, which has waited for it; what is on
/// the host stays there, absent ones too.
absl::StatusOr<Tensor> ImportedFor(Engine& engine, const Tensor& tensor);

/// Unless a run on this engine can give each of so many ranks a GPU of its own: FAILED_PRECONDITION
/// refusing `field`, or UNIMPLEMENTED from a build without CUDA.
absl::Status CheckGpuForEach(const std::string& field, int ranks, const Engine& engine);

/// The groups of ranks that `groups` lists, where the world does not have them yet.
/// INVALID_ARGUMENT where a list is none of its ranks. Not during a run.
absl::Status AddAmaxGroups(const AmaxGroups& groups, World& world);

/// A world of these ranks with the groups that `parallel` asks for. `setting`: null for the
/// defaults. Errors as World::Create.
absl::StatusOr<std::unique_ptr<World>> MakeWorld(const ParallelSpec& parallel,
                                                 std::vector<Engine*> engines,
                                                 const RankSetting* setting = nullptr);

/// A rank's end of overlapped calls on its tensor-parallel group, whose timelines are kept, and the
/// buffers of them.
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
