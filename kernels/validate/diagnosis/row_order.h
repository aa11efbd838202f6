// Rows or columns of one tensor as another has them in another order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/validate/diagnosis/fit.h"

namespace quantgate {

struct RowOrder {
  /// "has its rows rotated by 2 from row 16 on", "has the halves of its columns swapped".
  std::string text;
  std::vector<int64_t> from;   ///< from[i]: the row (column) of the expected that row i is.
  bool is_permutation = true;  ///< Whether each row of the expected is in one place.
};

/// The order that gives the most rows (or columns) of `subject`; nothing where that is the order of
/// `expected`, or where most rows are found nowhere. Of equal rows each is found once, and again
/// only where none is left and its values are not all the same: rows of zeros are anybody's. Rows
/// are found by their values; where those do
/// not agree bit for bit and there are at most kNearestLinesMax, by the least distance of a few
/// elements, which a fit must then confirm.
std::optional<RowOrder> FindRowOrder(const Values& expected, const Values& subject, bool of_rows);

}  // namespace quantgate
