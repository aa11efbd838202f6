// ParallelSpec: the ranks of a variant or a session, as a request asks for them
// (docs/distributed.md section 2).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/comm/overlap_spec.h"
#include "kernels/comm/reduction_profile.h"
#include "kernels/comm/transport.h"

namespace quantgate {

std::string_view CollectiveBackendName(CollectiveBackend backend);  ///< "local", "nccl".
/// INVALID_ARGUMENT with the value and the known names.
absl::StatusOr<CollectiveBackend> ParseCollectiveBackend(std::string_view name);

/// Rank r is place r % tensor_parallel of copy r / tensor_parallel.
struct ParallelSpec {
  int tensor_parallel = 2;  ///< Ranks of the group over which weights are divided.
  bool sequence_parallel = false;
  ReductionProfile profile = {};  ///< Of sums over the ranks.
  CollectiveBackend backend = CollectiveBackend::kLocal;
  std::optional<OverlapSpec> overlap = {};  ///< Absent: nothing overlaps.
  int data_parallel = 1;                    ///< Copies of the layers; sessions only.
  /// Copies have rows of every weight, its master and moments, and gather it for each pass;
  /// sessions only.
  bool fully_sharded = false;
  bool reshard_after_forward = true;  ///< Backward gathers again; else what was gathered is kept.
  /// Ranks over which the experts of grouped_linear are divided, in runs of one such layer and in
  /// sessions; the others are 1 then.
  int expert_parallel = 1;

  int size() const { return tensor_parallel * data_parallel * expert_parallel; }
  /// "tp2", "tp4 sp ub_p2p nccl", "tp2 dp2", "tp1 dp2 fsdp", "tp2 sp overlap:default", "ep4": what
  /// differs from the defaults.
  std::string Label() const;
  friend bool operator==(const ParallelSpec&, const ParallelSpec&) = default;
};

}  // namespace quantgate
