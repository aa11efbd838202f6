#include "kernels/comm/overlap/overlap_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

int Modulo(int value, int size) { return ((value % size) + size) % size; }

}  // namespace

absl::StatusOr<RowMap> RowMap::Create(std::span<const int64_t> rows, int pieces, int64_t multiple) {
  if (pieces < 1) {
    return Refuse("pieces", absl::StrCat(pieces), "must be at least 1");
  }
  if (multiple < 1) {
    return Refuse("multiple", absl::StrCat(multiple), "must be at least 1");
  }
  if (rows.empty()) return Refuse("rows", "empty", "there must be one count for each rank");
  RowMap map;
  map.pieces_ = pieces;
  int64_t begin = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank] < 0) {
      return Refuse(absl::StrCat("rows[", rank, "]"), absl::StrCat(rows[rank]),
                    "must be at least 0");
    }
    map.shards_.push_back({begin, rows[rank]});
    const int64_t end = begin + rows[rank];
    const int64_t multiples = (rows[rank] + multiple - 1) / multiple;
    for (int piece = 0; piece < pieces; ++piece) {
      const int64_t share = multiples / pieces + (piece < multiples % pieces ? 1 : 0);
      const int64_t count = std::min(share * multiple, end - begin);
      map.cuts_.push_back({begin, count});
      begin += count;
    }
  }
  return map;
}

std::vector<RingStep> RingAllGatherSteps(int rank, int ranks, bool aggregate) {
  std::vector<RingStep> steps;
  if (!aggregate) {
    for (int step = 0; step < ranks; ++step) {
      const int from = step == 0 ? rank : Modulo(rank - 1, ranks);
      steps.push_back({{Modulo(rank - step, ranks), from}});
    }
    return steps;
  }
  const int pairs = ranks / 2;
  for (int step = 0; step < pairs; ++step) {
    const int low = 2 * Modulo(rank / 2 - step, pairs);
    RingStep pair;
    for (const int owner : {low, low + 1}) {
      pair.push_back({owner, step == 0 ? owner : Modulo(rank - 2, ranks)});
    }
    steps.push_back(std::move(pair));
  }
  return steps;
}

int ReduceScatterOwner(int rank, int step, int ranks) { return Modulo(rank + step + 1, ranks); }

}  // namespace quantgate
