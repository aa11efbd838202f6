// Reduction profiles: in which order, and with which roundings, a sum over ranks is taken. A sum of
// N >= 3 floating-point tensors has no bits of its own; a profile gives it some.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/reduction/ordered_reduction.h"

namespace quantgate {

enum class ReductionKind {
  kRankAscFp32,  ///< "rank_asc_fp32": ranks 0, 1, ..., N - 1, in fp32, one rounding at the end.
  kUbP2p,        ///< "ub_p2p": owner r takes r, r - 1, ..., r + 1, likewise in fp32.
  kUbAtomic,     ///< "ub_atomic": owner r takes r, r + 1, ..., r - 1, likewise in fp32.
  kNcclRing,     ///< "nccl_ring": r + 1, ..., r - 1, r, rounded in the parts' dtype at each add.
  kBf16Rotated,  ///< "bf16_rotated:W": from rank r + W upwards, rounded likewise at each add.
  kNccl,         ///< "nccl": the library's own sum, in whichever order it takes.
};

struct ReductionProfile {
  ReductionKind kind = ReductionKind::kRankAscFp32;
  int rotation = 0;  ///< W of kBf16Rotated, in [0, 7]; 0 elsewhere.

  friend bool operator==(const ReductionProfile&, const ReductionProfile&) = default;
};

/// "rank_asc_fp32", "bf16_rotated:3".
std::string ReductionProfileName(const ReductionProfile& profile);
/// INVALID_ARGUMENT with the value and the known names.
absl::StatusOr<ReductionProfile> ParseReductionProfile(std::string_view text);
/// One of each kind but the library's, rotations 0 and 1.
std::vector<ReductionProfile> OrderedProfiles();

/// Whether every owner takes the same order, so that all-reduce does not depend on who owns a row.
bool IsOwnerIndependent(const ReductionProfile& profile);

struct ReductionOrder {
  std::vector<int> ranks;  ///< Of the group, each once; the first is where the sum begins.
  SumAccumulation accumulation = SumAccumulation::kF32;
};

/// How the owner of a block sums `size` parts. UNIMPLEMENTED for kNccl, whose order is the
/// library's.
absl::StatusOr<ReductionOrder> OrderOf(const ReductionProfile& profile, int owner, int size);

}  // namespace quantgate
