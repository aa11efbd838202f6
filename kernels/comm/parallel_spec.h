// ParallelSpec: the ranks of a variant or a session, as a request asks for them
// (docs/ranks.md section 2).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/comm/group/amax_groups.h"
#include "kernels/comm/group/transport.h"
#include "kernels/comm/overlap/overlap_spec.h"
#include "kernels/comm/reduction_profile.h"

namespace quantgate {

std::string_view CollectiveBackendName(CollectiveBackend backend);  ///< "local", "nccl".
/// INVALID_ARGUMENT with the value and the known names.
absl::StatusOr<CollectiveBackend> ParseCollectiveBackend(std::string_view name);

/// Rank r is place r % copy_size() of copy r / copy_size().
struct ParallelSpec {
  int tensor_parallel = 2;  ///< Ranks of the group over which weights are divided.
  bool sequence_parallel = false;
  ReductionProfile profile = {};  ///< Of sums over the ranks.
  CollectiveBackend backend = CollectiveBackend::kLocal;
  std::optional<OverlapSpec> overlap = {};  ///< Absent: nothing overlaps.
  /// Copies of the layers, of sessions; copies of the experts, of runs with expert_parallel too.
  int data_parallel = 1;
  /// Copies have rows of every weight, its master and moments, and gather it for each pass;
  /// sessions only.
  bool fully_sharded = false;
  bool reshard_after_forward = true;  ///< Backward gathers again; else what was gathered is kept.
  /// Ranks over which a copy's experts of grouped_linear are divided, in runs of one such layer and
  /// in sessions; tensor_parallel is 1 then.
  int expert_parallel = 1;
  /// Copies have runs of elements of every parameter's master and moments, in one flat buffer;
  /// sessions only.
  bool distributed_optimizer = false;
  /// Over which ranks amaxes are reduced where it is not the default; of calls that name no others.
  AmaxGroups amax_groups = {};

  /// Ranks of one copy.
  int copy_size() const { return tensor_parallel * expert_parallel; }
  int size() const { return copy_size() * data_parallel; }
  /// "tp2", "tp4 sp ub_p2p nccl", "tp2 dp2", "tp1 dp2 fsdp", "tp1 dp2 distopt", "tp2 sp
  /// overlap:default", "ep4", "ep2 dp2", "tp2 sp amax:input=none": what differs from the defaults.
  std::string Label() const;
  friend bool operator==(const ParallelSpec&, const ParallelSpec&) = default;
};

}  // namespace quantgate
