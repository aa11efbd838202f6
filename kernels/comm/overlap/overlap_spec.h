// OverlapSpec: how the GEMMs of tensor-parallel layers overlap with communication, as a request
// asks for it. What the request leaves open depends on the recipe (docs/ranks.md section 10.1).
#pragma once

#include <map>
#include <string>
#include <utility>

#include "kernels/comm/overlap/overlap_method.h"

namespace quantgate {

struct OverlapSpec {
  /// The methods that the request names; the others are the defaults.
  std::map<std::pair<OverlapSide, GemmRole>, OverlapMethod> methods = {};
  bool aggregate = false;  ///< As in OverlapPlan; likewise below.
  int pieces = 1;
  int splits = 4;

  /// Whether it names no method but none, and no way of cutting: it asks for nothing that ranks
  /// without communication could not do.
  bool names_nothing() const;
  /// "default", "column_fprop=none,pieces=2": what differs from the defaults.
  std::string Text() const;
  friend bool operator==(const OverlapSpec&, const OverlapSpec&) = default;
};

/// "column_fprop", "row_wgrad".
std::string OverlapKey(OverlapSide side, GemmRole role);

/// The plan of a unit: the methods that the request names, and elsewhere those of the table, which
/// give way; a number of splits names the row-parallel fprop's, and external for wgrad the ring of
/// dgrad unless the request names another dgrad. A column-parallel wgrad that the request leaves
/// open has kNone where dgrad scatters dx itself.
OverlapPlan OverlapPlanOf(const OverlapSpec& spec, OverlapSide side, const Recipe& recipe);

}  // namespace quantgate
