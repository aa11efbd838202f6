// ParallelSpec: how the ranks of a variant or a session divide the work, as a request asks for it
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

/// The ranks form data_parallel copies of copy_size() ranks each: rank r has place r % copy_size()
/// in copy r / copy_size().
struct ParallelSpec {
  int tensor_parallel = 2;  ///< Ranks over which weights are divided.
  bool sequence_parallel = false;
  ReductionProfile profile = {};  ///< Order and roundings of sums over the ranks.
  CollectiveBackend backend = CollectiveBackend::kLocal;
  std::optional<OverlapSpec> overlap = {};  ///< Absent: nothing overlaps.
  /// Copies of the layers in sessions; copies of the experts in runs and sessions with
  /// expert_parallel.
  int data_parallel = 1;
  /// Each copy keeps rows of every weight, its master and its moments, and gathers the weight for
  /// each pass; sessions only.
  bool fully_sharded = false;
  /// With fully_sharded: backward gathers weights again. Otherwise the gathered weights are kept.
  bool reshard_after_forward = true;
  /// Ranks over which a copy's experts of grouped_linear are divided, in runs of one such layer and
  /// in sessions. tensor_parallel must be 1 where this is more than 1.
  int expert_parallel = 1;
  /// Each copy keeps a range of the elements of all parameters' masters and moments, in one flat
  /// buffer; sessions only.
  bool distributed_optimizer = false;
  /// The ranks over which amaxes are reduced, where not the default. Calls may name other groups.
  AmaxGroups amax_groups = {};

  /// The number of ranks of one copy.
  int copy_size() const { return tensor_parallel * expert_parallel; }
  int size() const { return copy_size() * data_parallel; }
  /// "tp2", "tp4 sp ub_p2p nccl", "tp2 dp2", "tp1 dp2 fsdp", "tp1 dp2 distopt", "tp2 sp
  /// overlap:default", "ep4", "ep2 dp2", "tp2 sp amax:input=none": what differs from the defaults.
  std::string Label() const;
  friend bool operator==(const ParallelSpec&, const ParallelSpec&) = default;
};

}  // namespace quantgate
