#include "kernels/training/sharding/shard_bounds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"

namespace quantgate {

int64_t ElementsOf(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  return elements;
}

ShardBounds EvenBounds(int64_t count, int ranks, int64_t multiple) {
  const int64_t pieces = (count + multiple - 1) / multiple;
  ShardBounds bounds = {0};
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t own = pieces / ranks + (rank < pieces % ranks ? 1 : 0);
    bounds.push_back(std::min(count, bounds.back() + own * multiple));
  }
  return bounds;
}

std::vector<ShardBounds> FlatBounds(std::span<const Shape> shapes, int ranks, int64_t multiple) {
  std::vector<int64_t> begins = {0};
  for (const Shape& shape : shapes) begins.push_back(begins.back() + ElementsOf(shape));
  const ShardBounds cuts = EvenBounds(begins.back(), ranks, multiple);
  std::vector<ShardBounds> bounds(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const int64_t cut : cuts) {
      bounds[i].push_back(std::clamp(cut, begins[i], begins[i + 1]) - begins[i]);
    }
  }
  return bounds;
}

std::vector<int64_t> LengthsOf(const ShardBounds& bounds) {
  std::vector<int64_t> lengths;
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) {
    lengths.push_back(bounds[rank + 1] - bounds[rank]);
  }
  return lengths;
}

absl::Status CheckBounds(std::string_view field, const ShardBounds& bounds, int ranks,
                         int64_t count) {
  const bool is_right = bounds.size() == static_cast<size_t>(ranks) + 1 && bounds.front() == 0 &&
                        bounds.back() == count && std::is_sorted(bounds.begin(), bounds.end());
  if (is_right) return absl::OkStatus();
  return Refuse(
      field, absl::StrJoin(bounds, ", "),
      absl::StrCat("must ascend from 0 to ", count, ", with a part for each of ", ranks, " ranks"));
}

}  // namespace quantgate
