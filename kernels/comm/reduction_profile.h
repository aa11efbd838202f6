// Reduction profiles: the order and the roundings of a sum over ranks. The bits of a sum of N >= 3
// floating-point tensors depend on both; a profile specifies them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/reduction/ordered_reduction.h"

namespace quantgate {

enum class ReductionKind {
  kRankAscFp32,  ///< "rank_asc_fp32": ranks 0, 1, ..., N - 1, in fp32, one rounding at the end.
  kUbP2p,        ///< "ub_p2p": owner r adds r, r - 1, ..., r + 1, in fp32, one rounding at the end.
  kUbAtomic,     ///< "ub_atomic": owner r adds r, r + 1, ..., r - 1, in fp32, likewise.
  kNcclRing,     ///< "nccl_ring": r + 1, ..., r - 1, r, rounded to the parts' dtype at each add.
  kBf16Rotated,  ///< "bf16_rotated:W": r + W, r + W + 1, ..., rounded likewise at each add.
  kNccl,         ///< "nccl": the library's own sum, in the library's own order.
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
/// A profile of each kind but kNccl, and kBf16Rotated with rotations 0 and 1.
std::vector<ReductionProfile> OrderedProfiles();

/// Whether every owner adds in the same order, so that an all-reduce does not depend on who owns a
/// row.
bool IsOwnerIndependent(const ReductionProfile& profile);

/// How an owner takes a sum: over which ranks in order, and with which accumulator.
struct ReductionOrder {
  std::vector<int> ranks;  ///< All ranks of the group, in the order of the sum.
  SumAccumulation accumulation = SumAccumulation::kF32;
};

/// The order in which the owner of a block sums `size` parts. UNIMPLEMENTED for kNccl, whose order
/// is the library's.
absl::StatusOr<ReductionOrder> OrderOf(const ReductionProfile& profile, int owner, int size);

}  // namespace quantgate
