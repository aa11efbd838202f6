// The changes of a layer that a diagnosis tries.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/diagnosis/layer_hypotheses.h"

namespace quantgate {

/// A change that has not been made yet, since its tensors may be large.
struct ProposedChange {
  std::string what;  ///< "the weight is transposed".
  std::function<absl::StatusOr<LayerChange>()> make;
  /// Whether `what` says itself how sure it is, where the outputs' values are no evidence: NaN.
  bool says_how_sure = false;
};

/// The changes that could touch exactly the outputs in `failing`, the likeliest first. `row_order`:
/// the order in which y has its rows; empty: as expected.
absl::StatusOr<std::vector<ProposedChange>> ProposeChanges(const LayerCase& of, LayerModel& model,
                                                           const std::set<std::string>& failing,
                                                           const std::vector<int64_t>& row_order);

}  // namespace quantgate
