// OverlapSpec: which GEMMs of divided layers overlap how, as a request asks for it. What it leaves
// open depends on the recipe (docs/ranks.md section 10.1).
#pragma once

#include <map>
#include <string>
#include <utility>

#include "kernels/comm/overlap/overlap_method.h"

namespace quantgate {

struct OverlapSpec {
  /// Those that are asked for by name.
  std::map<std::pair<OverlapSide, GemmRole>, OverlapMethod> methods = {};
  bool aggregate = false;
  int pieces = 1;
  int splits = 4;

  /// "default", "column_fprop=none,pieces=2": what differs from the defaults.
  std::string Text() const;
  friend bool operator==(const OverlapSpec&, const OverlapSpec&) = default;
};

/// "column_fprop", "row_wgrad".
std::string OverlapKey(OverlapSide side, GemmRole role);

/// What is asked for, and the table's methods elsewhere; but none for dgrad and wgrad under a
/// backward override, and for a wgrad beside a dgrad with another method than the table's.
OverlapPlan OverlapPlanOf(const OverlapSpec& spec, OverlapSide side, const Recipe& recipe);

}  // namespace quantgate
