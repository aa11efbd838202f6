// The schedules of overlapped calls: what each rank multiplies and moves in each step, as functions
// of the number of ranks alone (docs/ranks.md section 10.2). All rank arithmetic is modulo the size
// of the group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

/// Rows [begin, begin + count) of a tensor that is cut among ranks along its first dim.
struct RowInterval {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  friend bool operator==(const RowInterval&, const RowInterval&) = default;
};

/// The rows of a tensor that is cut into the ranks' shards, end to end in rank order, and of each
/// shard into pieces. Pieces are as equal as whole multiples of `multiple` rows allow: the first
/// ones are the larger ones, and the last one takes the remainder. A shard with fewer multiples
/// than pieces has empty pieces.
class RowMap {
 public:
  /// INVALID_ARGUMENT naming field, value and rule where a count is negative, or pieces or multiple
  /// less than 1.
  static absl::StatusOr<RowMap> Create(std::span<const int64_t> rows, int pieces, int64_t multiple);

  int ranks() const { return static_cast<int>(shards_.size()); }
  int pieces() const { return pieces_; }
  int64_t rows() const { return shards_.back().end(); }
  const RowInterval& shard(int rank) const { return shards_[rank]; }
  const RowInterval& piece(int rank, int piece) const { return cuts_[rank * pieces_ + piece]; }

 private:
  int pieces_ = 1;
  std::vector<RowInterval> shards_;
  std::vector<RowInterval> cuts_;  ///< The pieces of rank 0, then those of rank 1, ...
};

/// A shard that a rank holds in a step of a ring all-gather.
struct RingShard {
  int owner = 0;  ///< The rank whose shard it is.
  int from = 0;   ///< The rank whose memory it is copied from; the rank itself for its own.
};

/// The shards that a rank multiplies in one step, in ascending rows: one, or two neighbouring ones
/// under `aggregate`.
using RingStep = std::vector<RingShard>;

/// The steps of rank r. Plain: step i has shard r - i, received from rank r - 1. Aggregate (an even
/// number of ranks): step 0 has the pair of r, exchanged with the neighbour r ^ 1; step i has the
/// pair i places below, received from rank r - 2.
std::vector<RingStep> RingAllGatherSteps(int rank, int ranks, bool aggregate);

/// The owner of the rows that rank r multiplies in step i of a point-to-point reduce-scatter:
/// r + i + 1, so that its own rows come last.
int ReduceScatterOwner(int rank, int step, int ranks);

}  // namespace quantgate
